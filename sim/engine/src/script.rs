//! Parses streams that users wrote by hand.
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
//! | `cpus N` | the number of CPUs, 1 to 64; must be the first line |
//! | `zone KIND PAGES` | a zone of memory, `dma`, `dma32`, `normal` or `movable`; without any, 1 GiB of `normal` |
//! | `cache NAME BYTES` | a cache, and the size of its objects |
//! | `CPU alloc [N] [CACHE]` | allocates an object, or N of them, of CACHE or of the cache that was named last |
//! | `CPU free [N] [newest\|oldest] [CACHE]` | frees objects, by default the newest first |
//! | `CPU free @I` | frees the object with number I, counted from 0 in the order of allocation |
//! | `CPU alloc-pages ORDER [N]` | allocates a block of `2^ORDER` pages, or N of them |
//! | `CPU free-pages [N] [newest\|oldest]` | frees blocks, by default the newest first |
//! | `CPU shrink` | frees the empty slabs of all caches |
//! | `# TEXT` | a mark |
//!
//! Each allocation and each free is one operation; consecutive operations are one microsecond apart.

use crate::machine::MAX_MACHINE_MEMORY;
use crate::stream::{Kind, Stream, Writer};
use core::str::FromStr;
use uslab_buddy::{MAX_ORDER, PAGE_SIZE, ZoneKind};

/// The largest number of objects that a script may allocate; also the largest number of blocks.
const MAX_ALLOCATIONS: usize = 100_000;
const MAX_CPUS: u32 = 64;

/// The error for a script with an invalid or impossible line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, `{text}`: {reason}")]
pub struct ScriptError {
    /// The line number, counted from 1.
    pub line: usize,
    /// The line's text.
    pub text: String,
    /// A description of the error and of the accepted input.
    pub reason: String,
}

const EXPECTED: &str = "expected `cpus N`, `zone KIND PAGES`, `cache NAME BYTES`, `CPU alloc [N] [CACHE]`, \
                        `CPU free [N] [newest|oldest] [CACHE]`, `CPU free @I`, `CPU alloc-pages ORDER [N]`, \
                        `CPU free-pages [N] [newest|oldest]`, `CPU shrink` or `# TEXT`";

/// The state of the parser while it reads a script.
struct Script {
    writer: Writer,
    cpus: u32,
    caches: Vec<String>,
    /// The cache of each object that was ever allocated, and the numbers of the objects that are still allocated.
    caches_of_objects: Vec<u32>,
    live: Vec<usize>,
    /// The number of pages of all zones.
    pages: u64,
    /// The number of blocks that were ever allocated, and the numbers and orders of the blocks that are still
    /// allocated.
    blocks_born: usize,
    blocks: Vec<(usize, u8)>,
}

/// Parses a script into a stream.
///
/// # Errors
/// Fails if a line is invalid, or names an unknown CPU, cache or object. A script may allocate at most 100,000 objects,
/// and have at most 1 GiB of memory.
pub fn script(text: &str) -> Result<Stream, ScriptError> {
    let mut script: Option<Script> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let error = |reason: String| ScriptError { line: index + 1, text: line.to_owned(), reason };
        match &mut script {
            None => {
                let cpus = line.strip_prefix("cpus ").and_then(|n| n.trim().parse().ok());
                let cpus = cpus.filter(|cpus| (1..=MAX_CPUS).contains(cpus));
                let cpus = cpus.ok_or_else(|| error(format!("expected `cpus N`, N from 1 to {MAX_CPUS}")))?;
                let writer = Writer::new("script".to_owned(), cpus);
                let (caches, caches_of_objects, live, blocks) = (vec![], vec![], vec![], vec![]);
                script = Some(Script {
                    writer,
                    cpus,
                    caches,
                    caches_of_objects,
                    live,
                    pages: 0,
                    blocks_born: 0,
                    blocks,
                });
            }
            Some(script) => script.line(line).map_err(error)?,
        }
    }
    match script {
        Some(script) if script.caches_of_objects.len() + script.blocks_born > 0 => Ok(script.writer.finish()),
        _ => Err(ScriptError {
            line: text.lines().count(),
            text: String::new(),
            reason: "nothing is allocated".to_owned(),
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
            if self.caches.iter().any(|known_object| known_object == name) {
                return Err(format!("the cache {name} already exists"));
            }
            self.caches.push(name.to_owned());
            self.writer.cache(name.to_owned(), Kind::Named, size);
            return Ok(());
        }
        if let ["zone", kind, pages] = *words.as_slice() {
            return self.zone(kind, pages);
        }
        let [cpu, verb, arguments @ ..] = words.as_slice() else { return Err(EXPECTED.to_owned()) };
        let cpu = number::<u32>(cpu).ok_or(EXPECTED)?;
        if cpu >= self.cpus {
            return Err(format!("unknown CPU {cpu}; expected 0 to {}", self.cpus - 1));
        }
        match (*verb, arguments) {
            ("shrink", []) => {
                self.begin();
                self.writer.shrink(cpu, None);
                Ok(())
            }
            ("free", [number]) if number.starts_with('@') => {
                let object = number[1..].parse::<usize>().map_err(|_| EXPECTED)?;
                let index = self.live.iter().position(|known_object| *known_object == object);
                self.free(cpu, index.ok_or_else(|| format!("object {object} is not in use"))?);
                Ok(())
            }
            ("alloc-pages", arguments) => self.alloc_pages(cpu, arguments),
            ("free-pages", arguments) => self.free_pages(cpu, arguments),
            ("alloc" | "free", arguments) => self.repeat_operation(cpu, *verb == "alloc", arguments),
            _ => Err(EXPECTED.to_owned()),
        }
    }

    fn repeat_operation(&mut self, cpu: u32, alloc: bool, arguments: &[&str]) -> Result<(), String> {
        let (n, arguments) = match arguments {
            [n, arguments @ ..] if number::<usize>(n).is_some() => (number(n).unwrap_or(1), arguments),
            arguments => (1, arguments),
        };
        let (oldest, arguments) = match arguments {
            ["oldest", arguments @ ..] if !alloc => (true, arguments),
            ["newest", arguments @ ..] if !alloc => (false, arguments),
            arguments => (false, arguments),
        };
        let cache = match arguments {
            [] => self
                .caches
                .len()
                .checked_sub(1)
                .ok_or("expected `cache NAME BYTES` before the first operation")?,
            [name] => {
                let known_cache = self.caches.iter().position(|known_object| known_object == name);
                known_cache.ok_or_else(|| {
                    format!("unknown cache {name}; expected one of {}", self.caches.join(", "))
                })?
            }
            _ => return Err(EXPECTED.to_owned()),
        } as u32;
        if alloc && n > MAX_ALLOCATIONS - self.caches_of_objects.len() {
            return Err(format!("expected at most {MAX_ALLOCATIONS} objects in a script"));
        }
        for repetition in 0..n {
            if alloc {
                self.begin();
                let object = self.caches_of_objects.len();
                self.writer.alloc(cpu, cache, object as u64, 0);
                self.caches_of_objects.push(cache);
                self.live.push(object);
                continue;
            }
            let mut live = self.live.iter();
            let is_of_cache = |object: &usize| self.caches_of_objects[*object] == cache;
            let index = if oldest { live.position(is_of_cache) } else { live.rposition(is_of_cache) };
            let index = index.ok_or_else(|| {
                format!("only {repetition} objects of {} are in use", self.caches[cache as usize])
            })?;
            self.free(cpu, index);
        }
        Ok(())
    }

    fn zone(&mut self, kind: &str, pages: &str) -> Result<(), String> {
        let kind = match kind {
            "dma" => ZoneKind::Dma,
            "dma32" => ZoneKind::Dma32,
            "normal" => ZoneKind::Normal,
            "movable" => ZoneKind::Movable,
            _ => return Err("expected a zone `dma`, `dma32`, `normal` or `movable`".to_owned()),
        };
        if self.writer.operations() > 0 {
            return Err("expected zones before the first operation".to_owned());
        }
        let remaining_pages = MAX_MACHINE_MEMORY / PAGE_SIZE as u64 - self.pages;
        let pages = number::<u64>(pages).filter(|pages| (1..=remaining_pages).contains(pages));
        let pages = pages.ok_or_else(|| format!("expected 1 to {remaining_pages} pages"))?;
        self.pages += pages;
        self.writer.zone(kind, pages as u32);
        Ok(())
    }
    fn alloc_pages(&mut self, cpu: u32, arguments: &[&str]) -> Result<(), String> {
        let (order, n) = match *arguments {
            [order] => (order, "1"),
            [order, n] => (order, n),
            _ => return Err(EXPECTED.to_owned()),
        };
        let order = number::<u8>(order).filter(|order| *order <= MAX_ORDER);
        let order = order.ok_or_else(|| format!("expected an order of 0 to {MAX_ORDER}"))?;
        let n = number::<usize>(n).ok_or(EXPECTED)?;
        if n > MAX_ALLOCATIONS - self.blocks_born {
            return Err(format!("expected at most {MAX_ALLOCATIONS} blocks in a script"));
        }
        for _ in 0..n {
            self.begin();
            self.writer.alloc_pages(cpu, address(self.blocks_born), order, 0);
            self.blocks.push((self.blocks_born, order));
            self.blocks_born += 1;
        }
        Ok(())
    }
    fn free_pages(&mut self, cpu: u32, arguments: &[&str]) -> Result<(), String> {
        let (n, which_blocks) = match *arguments {
            [] => ("1", "newest"),
            [which_blocks @ ("newest" | "oldest")] => ("1", which_blocks),
            [n] => (n, "newest"),
            [n, which_blocks] => (n, which_blocks),
            _ => return Err(EXPECTED.to_owned()),
        };
        let n = number::<usize>(n).filter(|_| matches!(which_blocks, "newest" | "oldest")).ok_or(EXPECTED)?;
        if n > self.blocks.len() {
            return Err(format!("only {} blocks are in use", self.blocks.len()));
        }
        for _ in 0..n {
            self.begin();
            let index = if which_blocks == "oldest" { 0 } else { self.blocks.len() - 1 };
            let (block, order) = self.blocks.remove(index);
            self.writer.free_pages(cpu, address(block), order);
        }
        Ok(())
    }

    fn begin(&mut self) {
        let time = self.writer.operations() * 1000;
        self.writer.begin(time);
    }
    /// Frees the allocated object at position `index` of the list of allocated objects.
    fn free(&mut self, cpu: u32, index: usize) {
        self.begin();
        self.writer.free(cpu, self.live.remove(index) as u64);
    }
}

/// Returns the address of a page that is in no block yet.
fn address(block: usize) -> u64 {
    (block as u64) << MAX_ORDER
}

fn number<T: FromStr>(word: &str) -> Option<T> {
    word.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Engine, Machine, Shipping};

    #[test]
    fn script_runs_each_of_its_operations() {
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
    fn script_frees_the_oldest_and_newest_objects() {
        // Object 1 remains allocated: a second free of object 0 or 2 is refused.
        let begin = "cpus 1\ncache node 64\n0 alloc 3\n0 free oldest\n0 free newest\n";
        for (line, is_valid) in [("0 free @0", false), ("0 free @1", true), ("0 free @2", false)] {
            assert_eq!(script(&format!("{begin}{line}")).is_ok(), is_valid, "{line}");
        }
    }

    #[test]
    fn script_defines_the_zones_of_the_machine() {
        let text = "cpus 1\nzone dma32 4096\nzone normal 1024\n0 alloc-pages 3 4\n0 free-pages 2 oldest\n0 free-pages\n0 alloc-pages 10";
        let stream = script(text).unwrap();
        let machine = Machine::new(&stream).unwrap();
        let mut engine = Engine::new(Shipping::on(&machine), &stream);
        engine.run(u64::MAX).unwrap();
        engine.check().unwrap();
        let pages = engine.view(vec![], &[]).pages;
        assert_eq!((engine.operations(), pages.managed, pages.blocks), (8, 5120, 8 + 1024));
    }
    #[test]
    fn impossible_script_line_error_names_the_line_number() {
        for (text, reason) in [
            ("", "nothing is allocated"),
            ("cpus 4", "nothing is allocated"),
            ("cpus 0", "line 1, `cpus 0`: expected `cpus N`, N from 1 to 64"),
            ("0 alloc", "expected `cpus N`"),
            ("cpus 1\n0 alloc", "line 2, `0 alloc`: expected `cache NAME BYTES` before the first operation"),
            ("cpus 1\ncache a 4", "8 to 8192 bytes"),
            ("cpus 1\ncache a 8\ncache a 8", "the cache a already exists"),
            ("cpus 1\ncache a 8\n1 alloc", "unknown CPU 1; expected 0 to 0"),
            ("cpus 1\ncache a 8\n\n0 alloc 3 b", "line 4, `0 alloc 3 b`: unknown cache b; expected one of a"),
            ("cpus 1\ncache a 8\n0 alloc 100001", "at most 100000 objects"),
            // Tests the largest possible number.
            (&format!("cpus 1\ncache a 8\n0 alloc\n0 alloc {}", usize::MAX), "at most 100000 objects"),
            ("cpus 1\ncache a 8\n0 alloc 2\n0 free 3", "only 2 objects of a are in use"),
            ("cpus 1\ncache a 8\n0 alloc 2\n0 free @2", "object 2 is not in use"),
            ("cpus 1\ncache a 8\n0 alloc oldest", "unknown cache oldest"),
            ("cpus 1\ncache a 8\n0 frob", "expected `cpus N`, `zone KIND PAGES`, `cache NAME BYTES`"),
            ("cpus 1\nzone high 8", "expected a zone `dma`, `dma32`, `normal` or `movable`"),
            ("cpus 1\nzone normal 0", "expected 1 to 262144 pages"),
            ("cpus 1\nzone dma32 4096\nzone normal 258049", "expected 1 to 258048 pages"),
            ("cpus 1\n0 alloc-pages 0\nzone normal 4096", "expected zones before the first operation"),
            ("cpus 1\n0 alloc-pages", "`CPU alloc-pages ORDER [N]`"),
            ("cpus 1\n0 alloc-pages 11", "expected an order of 0 to 10"),
            (&format!("cpus 1\n0 alloc-pages 0\n0 alloc-pages 0 {}", usize::MAX), "at most 100000 blocks"),
            ("cpus 1\n0 alloc-pages 0\n0 free-pages 2", "only 1 blocks are in use"),
            ("cpus 1\n0 alloc-pages 0\n0 free-pages first", "`CPU free-pages [N] [newest|oldest]`"),
        ] {
            let error = script(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
