//! A kernel's memory trace as operations: its objects, by the bytes that were asked for.
//!
//! What a kernel keeps in caches is here what its callers wanted of it. Frees of objects from before the trace, or of those whose
//! allocation had no event, have no block and are counted; pages are left to the page allocator. Objects of a trace have no
//! alignment in it: 8 bytes, the kernel's least.

use super::op::Op;
use crate::trace::{FreeOrigin, OpKind, Recording, Resolver, TraceError};
use core::alloc::Layout;
use rustc_hash::FxHashMap;
use std::path::Path;
use uslab::SlabInfo;

const ALIGN: usize = 8;

/// The operations of a kernel's trace, read as they are needed.
#[derive(Debug)]
pub struct KernelOps {
    ops: Resolver,
    /// The number of the live object at each address.
    live: FxHashMap<u64, u64>,
    next: u64,
    unseen: u64,
}

impl KernelOps {
    /// Reads the trace at `path`, ftrace, `perf script` or `trace-cmd report` text; `-` is standard input.
    ///
    /// # Errors
    /// As [`Recording::open`].
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        Self::of(Recording::open(path)?)
    }
    /// The operations of a recording.
    ///
    /// # Errors
    /// The temporary file of a long trace fails.
    pub fn of(recording: Recording) -> Result<Self, TraceError> {
        let ops = recording.resolve(None::<&SlabInfo>)?;
        Ok(Self { ops, live: FxHashMap::default(), next: 0, unseen: 0 })
    }

    /// Frees of objects whose allocation was not seen, so far.
    pub fn unseen(&self) -> u64 {
        self.unseen
    }

    fn free(&mut self, ptr: u64) -> Option<Op> {
        let id = self.live.remove(&ptr);
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
                    let id = self.next;
                    self.next += 1;
                    self.live.insert(ptr.0, id);
                    // Objects are at most 4 MiB, and a size of nothing still has an address.
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
