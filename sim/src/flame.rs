//! The command `uslab flame`: shows which code holds how much memory, from a heap profile, as text and as a
//! page.
//!
//! A program under the preload library writes a profile on a signal
//! (`USLAB_OPTIONS=profile=512k,dump=/tmp/heap.pb.gz`). A program that links the library calls
//! `uslab::profile::Profile::pprof`. A heap profile contains addresses; the functions' names are looked up in
//! the executables and libraries that the profile names.

mod code;
mod names;
mod pprof;

use crate::web;
use anyhow::{Context, bail, ensure};
use names::Names;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// The template of the profile page, built from `sim/web` by `.ci/web --write`.
const TEMPLATE: &str = include_str!("../web/built/profile.html");
/// The error for a file that does not contain a heap profile.
const EXPECTED: &str = "not a heap profile: expected one of pprof (`.pb.gz`) or folded stacks (`.folded`)";
/// The first bytes of a pprof profile.
const GZIP_MAGIC: &[u8] = &[0x1f, 0x8b];
const MAX_SHOWN_STACKS: usize = 20;

/// A heap profile: the memory that each call stack held when the profile was written.
#[derive(Clone, Debug, Serialize)]
pub struct Flame {
    /// The name of the profile's file.
    pub title: String,
    /// The call stacks in the order of the file, with equal stacks merged.
    pub stacks: Vec<Stack>,
    /// One message for each executable or library that gave no function names.
    #[serde(skip)]
    pub unused: Vec<String>,
}

/// The memory that one call stack holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stack {
    /// The name of the cache, followed by the functions, outermost first.
    pub frames: Vec<String>,
    /// The bytes that the stack holds.
    pub bytes: u64,
}

impl Flame {
    /// Creates a profile from stacks, and removes the allocator's innermost frames.
    fn new(title: &str, stacks: Vec<Stack>) -> anyhow::Result<Self> {
        let mut places = BTreeMap::<Vec<String>, usize>::new();
        let mut merged: Vec<Stack> = vec![];
        let mut all = 0_u64;
        for Stack { mut frames, bytes } in stacks {
            all =
                all.checked_add(bytes).context("expected stacks that hold less than 2^64 bytes in total")?;
            frames[1..].reverse();
            let outside = names::frames_outside_allocator(&frames[1..]).iter().rev();
            let frames: Vec<String> = frames[..1].iter().chain(outside).cloned().collect();
            match places.get(&frames) {
                Some(&at) => merged[at].bytes += bytes,
                None => {
                    places.insert(frames.clone(), merged.len());
                    merged.push(Stack { frames, bytes });
                }
            }
        }
        Ok(Self { title: title.to_owned(), stacks: merged, unused: vec![] })
    }
    /// Reads a profile in the format of folded stacks.
    fn folded(title: &str, text: &str, names: &mut Names) -> anyhow::Result<Self> {
        let mut stack = |(number, line): (usize, &str)| {
            let parts = line.rsplit_once(' ').and_then(|(frames, bytes)| Some((frames, bytes.parse().ok()?)));
            let (frames, bytes) = parts.filter(|(frames, _)| !frames.is_empty()).with_context(|| {
                format!("line {number}: expected frames separated by `;`, then a blank and a number of bytes")
            })?;
            let frames =
                frames.split(';').flat_map(|frame| names.functions_of_frame(frame).into_iter().rev());
            Ok(Stack { frames: frames.collect(), bytes })
        };
        let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty());
        let stacks = lines.map(&mut stack).collect::<anyhow::Result<_>>()?;
        Self::new(title, stacks)
    }
    /// Parses the contents of a file, in pprof's format or as folded stacks. The reader also opens the files that the
    /// profile names, because they contain the names of functions.
    ///
    /// # Errors
    /// Fails if the contents have neither format, or if the sum of the bytes overflows.
    pub fn parse(title: &str, content: &[u8]) -> anyhow::Result<Self> {
        let mut names = Names::default();
        let flame = if content.starts_with(GZIP_MAGIC) {
            pprof::read(title, content, &mut names)
        } else if let Ok(text) = str::from_utf8(content) {
            Self::folded(title, text, &mut names)
        } else {
            bail!("`{title}` is {EXPECTED}")
        };
        let flame = flame.with_context(|| format!("`{title}` is {EXPECTED}"))?;
        Ok(Self { unused: names.unused(), ..flame })
    }
    /// Reads a profile from a file.
    ///
    /// # Errors
    /// Fails if the file cannot be read, is not a profile, or contains no stack.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let content = std::fs::read(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        let title = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
        let flame = Self::parse(&title, &content)?;
        ensure!(!flame.stacks.is_empty(), "`{}` has no stack: no sample held memory", path.display());
        Ok(flame)
    }
    /// Returns the sum of the bytes of all stacks.
    pub fn bytes(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.bytes).sum()
    }
    /// Returns a web page with the flame graph.
    ///
    /// # Errors
    /// Fails only if the profile cannot be written as JSON, which does not happen in practice.
    pub fn page(&self) -> anyhow::Result<String> {
        Ok(web::page(TEMPLATE, &[("{profile}", &web::json(self)?)]))
    }
}

impl fmt::Display for Flame {
    /// Writes the stacks that hold the most memory, each with the name of its cache and its innermost
    /// functions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.bytes();
        writeln!(f, "{}: {all} bytes in {} stacks", self.title, self.stacks.len())?;
        let mut stacks: Vec<_> = self.stacks.iter().collect();
        stacks.sort_by_key(|stack| std::cmp::Reverse(stack.bytes));
        for stack in stacks.iter().take(MAX_SHOWN_STACKS) {
            let share = 100.0 * stack.bytes as f64 / all.max(1) as f64;
            let (cache, functions) = stack.frames.split_first().map_or(("", &[][..]), |(c, f)| (c, f));
            let inner: Vec<_> = functions.iter().rev().take(3).map(String::as_str).collect();
            writeln!(f, "{:>14} {share:>5.1} %  {cache:14}  {}", stack.bytes, inner.join(" < "))?;
        }
        if stacks.len() > MAX_SHOWN_STACKS {
            writeln!(f, "and {} more stacks; `--html FILE` shows all", stacks.len() - MAX_SHOWN_STACKS)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "malloc-64;main;reads a file;lines 600\nlarge;main;</script> 100\nhuge 100\n";

    fn parse(text: &str) -> anyhow::Result<Flame> {
        Flame::parse("heap", text.as_bytes())
    }

    #[test]
    fn invalid_heap_profile_lines_are_refused() {
        let flame = parse(TEXT).unwrap();
        assert_eq!(flame.stacks[0].frames, ["malloc-64", "main", "reads a file", "lines"]);
        assert_eq!((flame.stacks.len(), flame.bytes()), (3, 800));
        for bad in ["main", "main x", " 7", "a 1\nb"] {
            let error = format!("{:#}", parse(bad).unwrap_err());
            assert!(error.starts_with("`heap` is not a heap profile: expected "), "{error}");
            assert!(error.contains(": line ") && error.contains(": expected frames"), "{error}");
        }
        let error = format!("{:#}", parse(&format!("a {}\nb 1", u64::MAX)).unwrap_err());
        assert!(error.contains("less than 2^64 bytes"), "{error}");
    }

    #[test]
    fn stacks_differing_only_inside_the_allocator_are_merged() {
        let flame = parse("c;main;f;malloc;uslab::a 1\nc;main 2\nc;main;f;malloc 4\nd;main;f 8\n").unwrap();
        let stacks: Vec<_> = flame.stacks.iter().map(|stack| (stack.frames.join(";"), stack.bytes)).collect();
        assert_eq!(stacks, [("c;main;f".into(), 5), ("c;main".into(), 2), ("d;main;f".into(), 8)]);
    }

    #[cfg(target_os = "linux")]
    #[inline(never)]
    fn leaking_function(cache: &uslab::KmemCache) -> uslab::Block<'_> {
        std::hint::black_box(cache.alloc_block(uslab::Gfp::KERNEL).unwrap())
    }

    /// The test reads a profile of the test process, in pprof's format and as folded stacks.
    #[cfg(target_os = "linux")]
    #[test]
    fn function_names_are_read_from_mapped_files() {
        let subsystem = uslab::Subsystem::new(uslab::Config::default()).unwrap();
        let cache = uslab::KmemCache::builder("inode", 600).build_in(&subsystem).unwrap();
        subsystem.start_profile(1).unwrap();
        // The loop must not be unrolled, so that its call has a single address.
        let held: Vec<_> = (0..std::hint::black_box(100)).map(|_| leaking_function(&cache)).collect();
        let profile = subsystem.profile();
        let (mut packed, mut folded) = (vec![], vec![]);
        profile.pprof(&mut packed).unwrap();
        profile.folded(|sample| sample.live.bytes, &mut folded).unwrap();
        assert!(!String::from_utf8_lossy(&folded).contains("leaking_function"));
        for content in [packed, folded] {
            let flame = Flame::parse("heap", &content).unwrap();
            let is_held = |stack: &&Stack| stack.frames[0] == "inode";
            let [stack] = flame.stacks.iter().filter(is_held).collect::<Vec<_>>()[..] else {
                panic!("{flame:?}")
            };
            assert_eq!(stack.bytes, 60_000);
            let [.., outer, innermost] = &stack.frames[..] else { panic!("{stack:?}") };
            assert!(innermost.ends_with("::leaking_function"), "{stack:?}");
            assert!(
                stack.frames.iter().any(|frame| frame.contains("function_names_are_read")),
                "{outer}: {stack:?}"
            );
        }
        drop(held);
    }

    /// Changing any byte of a profile causes no panic, and each error that results names the accepted formats.
    #[test]
    fn damaged_heap_profiles_are_refused() {
        let pack = |message: &[u8]| {
            let mut gzip = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
            std::io::Write::write_all(&mut gzip, message).unwrap();
            gzip.finish().unwrap()
        };
        // The profile has one sample of location 1, whose address is 1 and which has no mapping.
        let good =
            [&[10, 4, 8, 1, 16, 1, 18, 4, 8, 1, 16, 1, 34, 4, 8, 1, 24, 7, 50, 0, 50, 5][..], b"space"]
                .concat();
        let flame = Flame::parse("heap", &pack(&good)).unwrap();
        assert_eq!(flame.stacks, [Stack { frames: vec!["space".into(), "0x7".into()], bytes: 1 }]);
        let refused = |content: &[u8], cause: &str| {
            let error = format!("{:#}", Flame::parse("heap", content).unwrap_err());
            assert!(error.starts_with("`heap` is not a heap profile: expected one of pprof"), "{error}");
            assert!(error.contains(cause), "{error}");
        };
        refused(&[0xff, 0xfe], "");
        refused(&pack(&good)[..12], "cannot be unpacked");
        refused(&pack(b"text"), "not a message of profile.proto");
        refused(&pack(b""), "the profile's samples have no values");
        refused(&pack(&[10, 2, 8, 9, 18, 2, 16, 1]), "the profile lacks string 9");
        refused(&pack(&[&good[..6], &good[12..], &[18, 4, 8, 2, 16, 1]].concat()), "lacks location 2");
        refused(&pack(&[&good[..], &[18, 2, 8, 1]].concat()), "a sample of the profile lacks a value");
        let negative = [&[18, 11, 16][..], &[0xff; 9], &[1]].concat();
        refused(&pack(&[&good[..], &negative].concat()), "-1: expected at least 0");
        for at in 0..good.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = good.clone();
                damaged[at] = byte;
                let _ = Flame::parse("heap", &pack(&damaged));
                let _ = Flame::parse("heap", &pack(&damaged[..at]));
            }
        }
    }

    #[test]
    fn flame_text_lists_the_largest_stacks_first() {
        let text = parse(TEXT).unwrap().to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "heap: 800 bytes in 3 stacks");
        assert_eq!(lines[1], "           600  75.0 %  malloc-64       lines < reads a file < main");
    }

    #[test]
    fn flame_web_page_is_self_contained() {
        let page = parse(TEXT).unwrap().page().unwrap();
        web::check(&page);
        assert!(page.contains(r#""frames":["large","main","\u003c/script>"],"bytes":100"#));
    }
}
