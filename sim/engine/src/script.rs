//! Streams that are written by hand.
//!
//! ```text
//! cpus 4
//! cache node 512
//! # CPU 0 fills
//! 0 alloc 30
//! 1 free 20 oldest
//! 1 free @25
//! 0 shrink
//! ```
//!
//! | line | |
//! |---|---|
//! | `cpus N` | the machine's CPUs, 1 to 64; the first line |
//! | `cache NAME BYTES` | a cache, and the size of its objects |
//! | `CPU alloc [N] [CACHE]` | allocates an object, or N of them, of the cache that was named last or of that one |
//! | `CPU free [N] [newest\|oldest] [CACHE]` | frees objects, the newest first if nothing else is said |
//! | `CPU free @I` | frees the object that was allocated as number I, from 0 |
//! | `CPU shrink` | gives the empty slabs of all caches back |
//! | `# TEXT` | a mark |
//!
//! Each object is an operation, a microsecond after the one before.

use crate::stream::{Kind, Stream, Writer};
use core::str::FromStr;

/// Objects that a script may allocate.
const MOST: usize = 100_000;
const MOST_CPUS: u32 = 64;

/// A line that cannot be read, or not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, `{text}`: {wrong}")]
pub struct ScriptError {
    /// The line, from 1.
    pub line: usize,
    /// What it says.
    pub text: String,
    /// What is wrong with it, and what would be accepted.
    pub wrong: String,
}

const EXPECTED: &str = "expected `cpus N`, `cache NAME BYTES`, `CPU alloc [N] [CACHE]`, `CPU free [N] [newest|oldest] [CACHE]`, \
                        `CPU free @I`, `CPU shrink` or `# TEXT`";

/// What is known while a script is read.
struct Script {
    writer: Writer,
    cpus: u32,
    caches: Vec<String>,
    /// The cache of each object that was ever allocated, and of those in use the numbers.
    born: Vec<u32>,
    live: Vec<usize>,
}

/// The stream of a script.
///
/// # Errors
/// A line cannot be read, names a CPU, a cache or an object that there is not, or asks for more than 100,000 objects.
pub fn script(text: &str) -> Result<Stream, ScriptError> {
    let mut script: Option<Script> = None;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let error = |wrong: String| ScriptError { line: at + 1, text: line.to_owned(), wrong };
        match &mut script {
            None => {
                let cpus = line.strip_prefix("cpus ").and_then(|n| n.trim().parse().ok());
                let cpus = cpus.filter(|cpus| (1..=MOST_CPUS).contains(cpus));
                let cpus =
                    cpus.ok_or_else(|| error(format!("expected `cpus N`, N from 1 to {MOST_CPUS}")))?;
                let writer = Writer::new("script".to_owned(), cpus);
                script = Some(Script { writer, cpus, caches: vec![], born: vec![], live: vec![] });
            }
            Some(script) => script.line(line).map_err(error)?,
        }
    }
    match script {
        Some(script) if !script.born.is_empty() => Ok(script.writer.finish()),
        _ => Err(ScriptError {
            line: text.lines().count(),
            text: String::new(),
            wrong: "nothing is allocated".to_owned(),
        }),
    }
}

impl Script {
    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(mark) = line.strip_prefix('#') {
            self.begin();
            self.writer.mark(mark.trim().to_owned());
            return Ok(());
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["cache", name, size] = *words.as_slice() {
            let size = number::<u32>(size).filter(|size| (8..=8192).contains(size));
            let size = size.ok_or("expected a size of 8 to 8192 bytes")?;
            if self.caches.iter().any(|own| own == name) {
                return Err(format!("there is a cache {name} already"));
            }
            self.caches.push(name.to_owned());
            self.writer.cache(name.to_owned(), Kind::Named, size);
            return Ok(());
        }
        let [cpu, what, rest @ ..] = words.as_slice() else { return Err(EXPECTED.to_owned()) };
        let cpu = number::<u32>(cpu).ok_or(EXPECTED)?;
        if cpu >= self.cpus {
            return Err(format!("there is no CPU {cpu}: expected 0 to {}", self.cpus - 1));
        }
        match (*what, rest) {
            ("shrink", []) => {
                self.begin();
                self.writer.shrink(cpu);
                Ok(())
            }
            ("free", [number]) if number.starts_with('@') => {
                let object = number[1..].parse::<usize>().map_err(|_| EXPECTED)?;
                let at = self.live.iter().position(|own| *own == object);
                self.free(cpu, at.ok_or_else(|| format!("object {object} is not in use"))?);
                Ok(())
            }
            ("alloc" | "free", rest) => self.many(cpu, *what == "alloc", rest),
            _ => Err(EXPECTED.to_owned()),
        }
    }

    fn many(&mut self, cpu: u32, alloc: bool, rest: &[&str]) -> Result<(), String> {
        let (n, rest) = match rest {
            [n, rest @ ..] if number::<usize>(n).is_some() => (number(n).unwrap_or(1), rest),
            rest => (1, rest),
        };
        let (oldest, rest) = match rest {
            ["oldest", rest @ ..] if !alloc => (true, rest),
            ["newest", rest @ ..] if !alloc => (false, rest),
            rest => (false, rest),
        };
        let cache = match rest {
            [] => self
                .caches
                .len()
                .checked_sub(1)
                .ok_or("there is no cache yet: `cache NAME BYTES` makes one")?,
            [name] => {
                let found = self.caches.iter().position(|own| own == name);
                found.ok_or_else(|| {
                    format!("there is no cache {name}; there are: {}", self.caches.join(", "))
                })?
            }
            _ => return Err(EXPECTED.to_owned()),
        } as u32;
        if alloc && n > MOST - self.born.len() {
            return Err(format!("a script allocates {MOST} objects at most"));
        }
        for done in 0..n {
            if alloc {
                self.begin();
                let object = self.born.len();
                self.writer.alloc(cpu, cache, object as u64, 0);
                self.born.push(cache);
                self.live.push(object);
                continue;
            }
            let mut live = self.live.iter();
            let mine = |object: &usize| self.born[*object] == cache;
            let at = if oldest { live.position(mine) } else { live.rposition(mine) };
            let at = at.ok_or_else(|| {
                format!("only {done} objects of {} are in use", self.caches[cache as usize])
            })?;
            self.free(cpu, at);
        }
        Ok(())
    }

    fn begin(&mut self) {
        let next = self.writer.operations() * 1000;
        self.writer.begin(next);
    }
    /// Frees the object at that place of those in use.
    fn free(&mut self, cpu: u32, at: usize) {
        self.begin();
        self.writer.free(cpu, self.live.remove(at) as u64);
    }
}

fn number<T: FromStr>(word: &str) -> Option<T> {
    word.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Machine, Shipping};

    #[test]
    fn a_script_runs_as_written() {
        let text = "cpus 2\ncache node 512\n# filled\n0 alloc 9\n1 free 3 oldest\n1 free @8\n0 free\n0 shrink\ncache leaf 64\n1 alloc\n0 free node";
        let stream = script(text).unwrap();
        assert_eq!(
            (stream.operations, stream.cpus, stream.caches.len()),
            (1 + 9 + 3 + 1 + 1 + 1 + 1 + 1, 2, 2)
        );
        assert_eq!(stream.marks[0].text, "filled");
        let machine = Machine::new(&stream).unwrap();
        let mut engine = Engine::new(Shipping::on(&machine), &stream);
        engine.run(stream.operations).unwrap();
        engine.check().unwrap();
        let view = engine.view(vec![], &[]);
        assert_eq!(
            view.caches.iter().map(|cache| cache.counts.used).collect::<Vec<_>>(),
            [9 - 3 - 1 - 1 - 1, 1]
        );
    }

    #[test]
    fn the_oldest_and_the_newest_are_who_they_are() {
        // Object 1 is left: a second free of 0 or 2 is refused.
        let begin = "cpus 1\ncache node 64\n0 alloc 3\n0 free oldest\n0 free newest\n";
        for (line, fine) in [("0 free @0", false), ("0 free @1", true), ("0 free @2", false)] {
            assert_eq!(script(&format!("{begin}{line}")).is_ok(), fine, "{line}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_named_with_its_line() {
        for (text, wrong) in [
            ("", "nothing is allocated"),
            ("cpus 4", "nothing is allocated"),
            ("cpus 0", "line 1, `cpus 0`: expected `cpus N`, N from 1 to 64"),
            ("0 alloc", "expected `cpus N`"),
            ("cpus 1\n0 alloc", "line 2, `0 alloc`: there is no cache yet"),
            ("cpus 1\ncache a 4", "8 to 8192 bytes"),
            ("cpus 1\ncache a 8\ncache a 8", "there is a cache a already"),
            ("cpus 1\ncache a 8\n1 alloc", "there is no CPU 1: expected 0 to 0"),
            ("cpus 1\ncache a 8\n\n0 alloc 3 b", "line 4, `0 alloc 3 b`: there is no cache b; there are: a"),
            ("cpus 1\ncache a 8\n0 alloc 100001", "100000 objects at most"),
            // As many as any number has.
            (&format!("cpus 1\ncache a 8\n0 alloc\n0 alloc {}", usize::MAX), "100000 objects at most"),
            ("cpus 1\ncache a 8\n0 alloc 2\n0 free 3", "only 2 objects of a are in use"),
            ("cpus 1\ncache a 8\n0 alloc 2\n0 free @2", "object 2 is not in use"),
            ("cpus 1\ncache a 8\n0 alloc oldest", "there is no cache oldest"),
            ("cpus 1\ncache a 8\n0 frob", "expected `cpus N`, `cache NAME BYTES`"),
        ] {
            let error = script(text).unwrap_err().to_string();
            assert!(error.contains(wrong), "{text}: {error}");
        }
    }
}
