//! Shadow models: plain maps of the owners of all memory. Tests compare shadow models with a subsystem on simulated
//! CPUs that runs the same steps. Property tests and the fuzzer generate the steps, and this module checks the
//! invariants.

pub mod caches;
pub mod handles;
pub mod memory;

use crate::cache::per_cpu::Magazines;
use crate::debug::faults::{CONSTRUCTOR_PANIC, Faults, POINTS, Rule};
use arbitrary::Arbitrary;
use std::panic::resume_unwind;
use uslab_buddy::{Backend, PageConfig};
use uslab_magazine::Cpus;
use uslab_magazine::sync::catch_panic;

/// Returns a configuration of `bytes` bytes of heap memory for simulated CPUs, without a reserve.
pub(crate) fn pages(cpus: u32, nodes: u32, bytes: usize) -> PageConfig {
    let mut config = PageConfig::default_for(Cpus::simulated(cpus, nodes).unwrap()).limit(bytes);
    config.min_free_kib = Some(0);
    config.backend = Backend::Heap;
    map_large_memory();
    config
}

/// Makes the C library map each large allocation anew. A test case allocates megabytes from the heap, but accesses
/// little of this memory. Freshly mapped memory is zero, and only touched pages take time. Reused memory would have to
/// be cleared, which would take three quarters of the tests' time. By default, the C library keeps large memory once
/// the program has freed some of it.
fn map_large_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: this option of the C library's heap may be set at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20);
    }
}

/// Magazine sizes so small that a few steps reach the depot. Larger magazines would need more reserved memory, which
/// each test case fills with zeros.
const SMALL: Magazines = Magazines::Sized { capacity: 2, stock: 1, depot_limit: 1 };

/// Refuses calls at the fault point with index `point`, starting with the `nth` call. If the index is too large,
/// refuses calls at all fault points.
#[derive(Clone, Debug, Arbitrary)]
pub(crate) struct Refuse {
    pub(crate) point: u8,
    pub(crate) nth: u8,
    pub(crate) times: Option<u8>,
}

struct Refusals {
    faults: Faults,
    any: bool,
}

impl Refusals {
    fn new(config: &mut PageConfig) -> Self {
        config.faults = Faults::new(0);
        Self { faults: config.faults.clone(), any: false }
    }
    fn begin(&mut self, refuse: &Refuse) {
        let every = Rule::every(POINTS.get(usize::from(refuse.point)).copied());
        let (nth, times) = (u64::from(refuse.nth) + 1, refuse.times.map(u64::from));
        self.faults.arm(vec![Rule { nth, times, ..every }]);
        self.any = true;
    }
    fn end(&mut self) {
        self.faults.disarm();
        self.any = false;
    }
}

/// Runs `operation`, or returns `None` if an injected constructor panic ended it.
fn catch_injected_panic<R>(operation: impl FnOnce() -> R) -> Option<R> {
    match catch_panic(operation) {
        Ok(done) => Some(done),
        Err(panic) if panic.downcast_ref::<&str>() == Some(&CONSTRUCTOR_PANIC) => None,
        Err(panic) => resume_unwind(panic),
    }
}
