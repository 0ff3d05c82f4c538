//! Cost of an allocation and free, and memory per thread, when many threads allocate. All threads of the benchmark
//! exist at the same time, and the scheduler may move them between CPUs.

use std::ffi::c_void;
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::sync::Barrier;
use std::time::Duration;
use uslab_benches::pools::Null;
use uslab_benches::resident::resident;
use uslab_benches::team::mean;
use uslab_benches::{
    Bench, Column, Contender, Kind, LazySubject, Subject, ThreadAccess, Work, clock, contenders,
};

/// Number of objects that one thread holds at the same time.
const BATCH: usize = 64;
/// Number of batches that run between two readings of the thread's CPU time.
const BATCHES_PER_READING: usize = 8;
const MIB: f64 = 1048576.0;
/// Stack size of a thread in bytes, smaller than a huge page.
const STACK: usize = 256 << 10;

#[derive(Clone)]
struct Crowd {
    threads: usize,
    /// Number of timed rounds that each thread runs.
    turns: usize,
}

/// Allocates and frees [`BATCHES_PER_READING`] batches, one after the other. Returns the CPU time that the calling
/// thread used.
fn turn<S: Subject>(local: &mut S::ThreadAccess<'_>) -> Duration {
    let start_time = clock::cpu();
    for _ in 0..BATCHES_PER_READING {
        let objects: [_; BATCH] = std::array::from_fn(|stamp| local.alloc(stamp as u64));
        for object in objects {
            local.free(object);
        }
    }
    clock::cpu() - start_time
}

/// Runs a [`turn`] without timing, and checks that each object has the stamp that was written to it.
fn check<S: Subject>(local: &mut S::ThreadAccess<'_>) {
    let objects: [_; BATCH] = std::array::from_fn(|stamp| local.alloc(stamp as u64));
    for (stamp, object) in objects.into_iter().enumerate() {
        assert!(
            !S::HAS_DISJOINT_OBJECTS || local.stamp(&object) == stamp as u64,
            "{}: an object holds the stamp of another object",
            S::NAME
        );
        local.free(object);
    }
}

impl Crowd {
    /// Returns CPU nanoseconds per allocation and free (averaged over the threads), and MiB of memory.
    fn measure<S: Subject>(&self, subject: &S) -> Vec<f64> {
        let barrier = &Barrier::new(self.threads + 1);
        let worker = || {
            let mut local = subject.local();
            check::<S>(&mut local);
            turn::<S>(&mut local);
            // Every thread has allocated before the first thread is timed.
            barrier.wait();
            let mut cpu_time = Duration::ZERO;
            for _ in 0..self.turns {
                cpu_time += turn::<S>(&mut local);
                std::thread::yield_now();
            }
            // The main thread reads the memory between the two waits of the members.
            barrier.wait();
            barrier.wait();
            cpu_time.as_nanos() as f64 / (self.turns * BATCHES_PER_READING * BATCH) as f64
        };
        let before = resident();
        std::thread::scope(|scope| {
            let spawn = |_| std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, worker);
            let workers: Vec<_> = (0..self.threads).map(spawn).collect::<Result<_, _>>().expect("threads");
            barrier.wait();
            barrier.wait();
            let during = resident();
            barrier.wait();
            let pairs = workers.into_iter().map(|worker| worker.join().expect("the thread must not panic"));
            vec![mean(&pairs.collect::<Vec<_>>()), (during - before) / MIB]
        })
    }
}

/// Returns the resident memory, in MiB, of threads that do not call malloc. Every thread that the standard library
/// creates calls malloc, and that memory would count for every subject.
fn idle_threads_mib(threads: usize) -> f64 {
    extern "C" fn worker(barrier: *mut c_void) -> *mut c_void {
        // Uses about as much of the stack as other members use outside the malloc.
        black_box([0_u64; 256]);
        // SAFETY: the caller joins this thread before it drops the barrier.
        let barrier = unsafe { &*barrier.cast_const().cast::<Barrier>() };
        barrier.wait();
        barrier.wait();
        std::ptr::null_mut()
    }
    let barrier = Barrier::new(threads + 1);
    let argument = std::ptr::from_ref(&barrier).cast_mut().cast::<c_void>();
    let mut workers = Vec::with_capacity(threads);
    let before = resident();
    // SAFETY: the attributes are initialized before they are used. Threads get a valid argument, and each thread is
    // joined once.
    unsafe {
        let mut attributes = MaybeUninit::uninit();
        assert_eq!(libc::pthread_attr_init(attributes.as_mut_ptr()), 0);
        assert_eq!(libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK), 0);
        for _ in 0..threads {
            let mut thread = MaybeUninit::uninit();
            let error_code = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), worker, argument);
            assert_eq!(error_code, 0, "threads");
            workers.push(thread.assume_init());
        }
        barrier.wait();
        let during = resident();
        barrier.wait();
        for thread in workers {
            libc::pthread_join(thread, std::ptr::null_mut());
        }
        (during - before) / MIB
    }
}

impl Work for Crowd {
    fn live(&self) -> usize {
        self.threads * BATCH
    }
    fn suits<S: Subject>(&self) -> bool {
        // Excludes the floor (the harness without an allocator), whose ring would grow with the threads.
        S::KIND != Kind::Floor && (!S::LINEAR || self.live() <= 10_000)
    }
    fn run<S: Subject>(&self, lazy_subject: &LazySubject<S>) -> Vec<f64> {
        self.measure(lazy_subject.get())
    }
}

pub(crate) fn row(bench: &mut Bench) {
    bench.row(
        "crowd",
        "CPU ns for an allocation of 64 B and its free, on each of many threads that are not pinned; MiB of all threads while they idle, minus the MiB of `null`; one process per contender",
    );
    for threads in [1, 4, 64, 512, 4096] {
        let crowd =
            Crowd { threads: bench.scale(threads), turns: (bench.scale(4096) / bench.scale(threads)).max(4) };
        // The memory of a few threads is below the precision of the readings.
        let memory = (threads >= 64).then(|| {
            Column::lower("memory", "MiB").subtract_floor().count_in_summary_row("memory of a crowd")
        });
        let columns = [Some(Column::lower("pair", "ns")), memory];
        let mut all = contenders::<8>(&crowd);
        let null = move || vec![crowd.measure(&Null::new(BATCH))[0], idle_threads_mib(crowd.threads)];
        all.push(Contender::new(Null::NAME, Null::KIND, null));
        bench.isolated_group(format!("{threads} threads"), columns.into_iter().flatten(), all);
    }
}
