//! Reads a kernel's memory trace as operations on the kernel's objects, with the requested sizes.
//!
//! The sizes are what the kernel's callers requested, and not the object sizes of the kernel's caches. If a trace lacks
//! the allocation of an object, the object's free is only counted. Events that concern pages are ignored. A trace
//! records no alignments, so all operations have the kernel's smallest alignment, 8 bytes.

use super::op::Op;
use core::alloc::Layout;
use rustc_hash::FxHashMap;
use std::path::Path;
use uslab::SlabInfo;
use uslab_trace::{FreeOrigin, OpKind, Recording, Resolver, TraceError};

const ALIGN: usize = 8;

/// The operations of a kernel's trace, which are read lazily.
#[derive(Debug)]
pub struct KernelOps {
    ops: Resolver,
    /// For each address, the number of the live object at this address.
    live_blocks: FxHashMap<u64, u64>,
    next_id: u64,
    unseen: u64,
}

impl KernelOps {
    /// Opens the trace at `path`: text of ftrace, `perf script` or `trace-cmd report`; `-` is standard input.
    ///
    /// # Errors
    /// Fails in the cases that [`Recording::open`] documents.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        Self::of(Recording::open(path)?)
    }
    /// Returns the operations that the recording contains.
    ///
    /// # Errors
    /// Fails if the temporary file for a long trace cannot be written.
    pub fn of(recording: Recording) -> Result<Self, TraceError> {
        let ops = recording.resolve(None::<&SlabInfo>)?;
        Ok(Self { ops, live_blocks: FxHashMap::default(), next_id: 0, unseen: 0 })
    }

    /// Returns the number of frees so far whose allocation was not recorded.
    pub fn unrecorded_frees(&self) -> u64 {
        self.unseen
    }

    fn free(&mut self, ptr: u64) -> Option<Op> {
        let id = self.live_blocks.remove(&ptr);
        self.unseen += u64::from(id.is_none());
        id.map(|id| Op::Free { id })
    }
}

impl Iterator for KernelOps {
    type Item = Result<Op, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let op = match self.ops.next_op() {
                Ok(Some(op)) => op,
                Ok(None) => return None,
                Err(error) => return Some(Err(error)),
            };
            let op = match op.kind {
                OpKind::Alloc { ptr, bytes_req, .. } => {
                    let id = self.next_id;
                    self.next_id += 1;
                    self.live_blocks.insert(ptr.0, id);
                    // Objects are at most 4 MiB, and an object of 0 bytes still has an address.
                    let layout = Layout::from_size_align(bytes_req.max(1) as usize, ALIGN).ok();
                    layout.map(|layout| Op::Alloc { id, layout })
                }
                OpKind::Free { ptr, origin: FreeOrigin::Matched { .. }, .. }
                | OpKind::HiddenFree { ptr, .. } => self.free(ptr.0),
                OpKind::Free { .. } => {
                    self.unseen += 1;
                    None
                }
                OpKind::PageAlloc { .. } | OpKind::PageFree { .. } | OpKind::Mark { .. } => None,
            };
            if let Some(op) = op {
                return Some(Ok(op));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uslab_trace::Source;

    #[test]
    fn traced_kernel_objects_become_workload_blocks() {
        let alloc = |time, ptr: u32, bytes| {
            format!(
                "  sh-1 [000] ..... 1.{time:06}: kmalloc: call_site=f+0x1/0x2 ptr=00000000{ptr:08x} bytes_req={bytes} \
                 bytes_alloc=128 gfp_flags=GFP_KERNEL node=-1 accounted=false\n"
            )
        };
        let free = |time, ptr: u32| {
            format!("  sh-1 [000] ..... 1.{time:06}: kfree: call_site=f+0x1/0x2 ptr=00000000{ptr:08x}\n")
        };
        // A second allocation at one address implies a free that was not recorded.
        let text = [
            free(0, 0x10),
            alloc(1, 0x20, 100),
            alloc(2, 0x30, 65),
            free(3, 0x20),
            alloc(4, 0x30, 70),
            free(5, 0x30),
        ]
        .concat();
        let source = Source::from_reader("objects", Box::new(std::io::Cursor::new(text)), None).unwrap();
        let mut ops = KernelOps::of(Recording::read(source, |_| {}).unwrap()).unwrap();
        let layout = |size| Layout::from_size_align(size, ALIGN).unwrap();
        let all: Vec<_> = ops.by_ref().map(Result::unwrap).collect();
        let expected = [
            Op::Alloc { id: 0, layout: layout(100) },
            Op::Alloc { id: 1, layout: layout(65) },
            Op::Free { id: 0 },
            Op::Free { id: 1 },
            Op::Alloc { id: 2, layout: layout(70) },
            Op::Free { id: 2 },
        ];
        assert_eq!((&all[..], ops.unrecorded_frees()), (&expected[..], 1));
    }
}
