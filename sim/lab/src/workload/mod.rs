//! Workloads: sequences of allocation requests, as data.
//!
//! ```text
//!  sizes × lifetimes × arrivals, and a seed ──┐
//!  a malloc lab's trace (.rep), CSV ──────────┼──> operations: allocate, free, resize block number n
//!  a kernel's trace ──────────────────────────┘
//! ```
//!
//! The same seed gives the same operations on every machine and in every later version: see [`rng`].
//!
//! | module | |
//! |---|---|
//! | [`op`] | an operation on a block |
//! | [`sizes`], [`lifetimes`], [`arrivals`] | the three parts of a generated workload |
//! | [`kernel`] | a kernel's trace |
//! | `recorded` | the malloc lab's traces and CSV |
//! | [`rng`] | random numbers that are the same in every run |
//! | [`error`] | errors in workloads |
//!
//! Lifetimes drawn from a distribution are only a model of a program. Wilson and others, in "Dynamic Storage
//! Allocation: A Survey and Critical Review" (1995), warn that programs do not behave like random traces. Claims about
//! real programs therefore need recorded traces.

pub mod arrivals;
pub mod error;
pub mod kernel;
pub mod lifetimes;
mod lines;
mod made;
pub mod op;
mod recorded;
pub mod rng;
pub mod sizes;
mod spec;

pub use arrivals::Arrivals;
pub use error::{OpsError, SpecError};
pub use kernel::KernelOps;
pub use lifetimes::Lifetimes;
pub use made::{GeneratedOperations, Workload};
pub use op::Op;
pub use rng::Rng;
pub use sizes::Sizes;

use lines::Lines;
use std::path::Path;

/// The operations of a workload of any kind.
#[derive(Debug)]
pub enum WorkloadOps {
    /// Operations generated from distributions.
    GeneratedOperations(Box<GeneratedOperations>),
    /// Operations from a file that has been read completely.
    Recorded(std::vec::IntoIter<Op>),
    /// The operations of a kernel's trace, which are read lazily.
    Kernel(Box<KernelOps>),
}

impl WorkloadOps {
    /// Opens a file of operations; the file may be compressed (`.gz`, `.xz` or `.zst`). A file `.rep` is a trace of the
    /// malloc lab, a file `.csv` has one operation on each line, and any other file is a kernel's trace.
    ///
    /// # Errors
    /// Fails if the file cannot be read, or its contents do not match its name: see [`OpsError`].
    pub fn open(path: &Path) -> Result<Self, OpsError> {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let packed = [".gz", ".xz", ".zst"].into_iter().find_map(|suffix| name.strip_suffix(suffix));
        let name = packed.unwrap_or(&name);
        match name.rsplit_once('.') {
            Some((_, "rep")) => Ok(Self::Recorded(
                recorded::read_malloc_lab_trace(Lines::open(path, recorded::REP_FORMAT)?)?.into_iter(),
            )),
            Some((_, "csv")) => {
                Ok(Self::Recorded(recorded::csv(Lines::open(path, recorded::CSV)?)?.into_iter()))
            }
            _ => Ok(Self::Kernel(Box::new(KernelOps::open(path)?))),
        }
    }
}

impl Iterator for WorkloadOps {
    type Item = Result<Op, OpsError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::GeneratedOperations(made) => made.next().map(Ok),
            Self::Recorded(ops) => ops.next().map(Ok),
            Self::Kernel(ops) => ops.next().map(|op| op.map_err(OpsError::from)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_file_format_follows_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let write_file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let rep = b"100\n1\n2\n1\na 0 8\nf 0\n";
        let read_ops = |path: &Path| WorkloadOps::open(path).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
        let plain = read_ops(&write_file("short.rep", rep));
        let packed = zstd::encode_all(&rep[..], 1).unwrap();
        // The file's content, not its name, determines the kind of compression.
        for name in ["short.rep.zst", "short.rep.gz", "short.rep.xz"] {
            assert_eq!(read_ops(&write_file(name, &packed)), plain);
        }
        assert_eq!(read_ops(&write_file("short.csv", b"a,0,8\nf,0\n")), plain);
        let error = |path: &Path| WorkloadOps::open(path).unwrap_err().to_string();
        for name in ["binary.rep", "binary.csv"] {
            let text = error(&write_file(name, b"a,0,8\n\0"));
            assert!(
                text.contains(&format!("{name}: not text; expected `a")),
                "the error must not mention a kernel's trace: {text}"
            );
        }
        std::fs::create_dir(folder.path().join("folder.csv")).unwrap();
        assert!(
            error(&folder.path().join("folder.csv")).contains("folder.csv: a directory; expected `alloc,ID")
        );
        assert!(error(&folder.path().join("none.rep")).ends_with("none.rep: cannot open"));
        assert!(error(&write_file("empty.csv", b"")).ends_with("empty.csv: the file is empty"));
        assert!(error(&write_file("other.txt", rep)).contains("this is a malloc lab trace"));
        assert!(error(&write_file("other.txt", b"# tracer: nop\n")).contains("no event in"));
        assert!(
            error(&write_file("wrong.rep", &[b'1', b'\n', 0xff, b'\n'])).contains("wrong.rep:2: no header")
        );
    }
}
