//! `uslab flame`: who holds how much memory, from folded stacks; as text and as a page.
//!
//! A program under the preload library writes such stacks on a signal (`USLAB_OPTIONS=profile=512k,dump=/tmp/heap.folded`), and one
//! with the library by `uslab::profile::Profile::folded`.

use crate::web;
use anyhow::{Context, ensure};
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// Built from `sim/web` by `.ci/web --write`.
const TEMPLATE: &str = include_str!("../web/built/profile.html");
/// Stacks that the text shows.
const SHOWN: usize = 20;

/// A profile of one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Flame {
    /// What it was read from.
    pub title: String,
    /// As the file has them.
    pub stacks: Vec<Stack>,
}

/// What one call stack holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stack {
    /// The outermost first; in front of all, the cache.
    pub frames: Vec<String>,
    /// What it holds.
    pub bytes: u64,
}

impl Flame {
    /// From the text of a file.
    ///
    /// # Errors
    /// A line that is no stack, or more bytes than there can be.
    pub fn parse(title: &str, text: &str) -> anyhow::Result<Self> {
        let stack = |(number, line): (usize, &str)| {
            let parts = line.rsplit_once(' ').and_then(|(frames, bytes)| Some((frames, bytes.parse().ok()?)));
            let (frames, bytes) = parts.filter(|(frames, _)| !frames.is_empty()).with_context(|| {
                format!("{title}:{number}: expected frames, separated by `;`, a blank and a number")
            })?;
            Ok(Stack { frames: frames.split(';').map(str::to_owned).collect(), bytes })
        };
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty());
        let stacks: Vec<Stack> = lines.map(stack).collect::<anyhow::Result<_>>()?;
        let all = stacks.iter().try_fold(0, |all: u64, stack| all.checked_add(stack.bytes));
        ensure!(all.is_some(), "{title}: expected stacks that hold less than 2^64 bytes together");
        Ok(Self { title: title.to_owned(), stacks })
    }
    /// From a file.
    ///
    /// # Errors
    /// It cannot be read, or is none, or has no stack.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        let title = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let flame = Self::parse(&title, &text)?;
        ensure!(!flame.stacks.is_empty(), "`{}` has no stack: nothing was held by a sample", path.display());
        Ok(flame)
    }
    /// Bytes of all stacks.
    pub fn bytes(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.bytes).sum()
    }
    /// A page of it.
    ///
    /// # Errors
    /// None that is known.
    pub fn page(&self) -> anyhow::Result<String> {
        Ok(web::page(TEMPLATE, &[("{profile}", &web::json(self)?)]))
    }
}

impl fmt::Display for Flame {
    /// The stacks that hold most, each with its cache and the innermost functions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.bytes();
        writeln!(f, "{}: {all} bytes in {} stacks", self.title, self.stacks.len())?;
        let mut stacks: Vec<_> = self.stacks.iter().collect();
        stacks.sort_by_key(|stack| std::cmp::Reverse(stack.bytes));
        for stack in stacks.iter().take(SHOWN) {
            let share = 100.0 * stack.bytes as f64 / all.max(1) as f64;
            let (cache, functions) = stack.frames.split_first().map_or(("", &[][..]), |(c, f)| (c, f));
            let inner: Vec<_> = functions.iter().rev().take(3).map(String::as_str).collect();
            writeln!(f, "{:>14} {share:>5.1} %  {cache:14}  {}", stack.bytes, inner.join(" < "))?;
        }
        if stacks.len() > SHOWN {
            writeln!(f, "and {} more; `--html FILE` shows all", stacks.len() - SHOWN)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "malloc-64;main;reads a file;lines 600\nlarge;main;</script> 100\nhuge 100\n";

    #[test]
    fn stacks_are_read_and_what_is_none_is_named() {
        let flame = Flame::parse("heap", TEXT).unwrap();
        assert_eq!(flame.stacks[0].frames, ["malloc-64", "main", "reads a file", "lines"]);
        assert_eq!((flame.stacks.len(), flame.bytes()), (3, 800));
        for bad in ["main", "main x", " 7", "a 1\nb"] {
            let error = Flame::parse("heap", bad).unwrap_err().to_string();
            assert!(error.starts_with("heap:") && error.contains(": expected frames"), "{error}");
        }
        let error = Flame::parse("heap", &format!("a {}\nb 1", u64::MAX)).unwrap_err().to_string();
        assert!(error.contains("less than 2^64 bytes"), "{error}");
    }

    #[test]
    fn the_text_has_the_largest_first() {
        let text = Flame::parse("heap", TEXT).unwrap().to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "heap: 800 bytes in 3 stacks");
        assert_eq!(lines[1], "           600  75.0 %  malloc-64       lines < reads a file < main");
    }

    #[test]
    fn a_page_holds_the_stacks_and_asks_for_nothing() {
        let page = Flame::parse("heap", TEXT).unwrap().page().unwrap();
        web::check(&page);
        assert!(page.contains(r#""frames":["large","main","\u003c/script>"],"bytes":100"#));
    }
}
