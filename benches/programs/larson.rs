//! Imitates the threads of a server: each thread replaces random blocks, and passes all its blocks to its successor
//! thread.
//!
//! Source: Larson and Krishnan, "Memory allocation for long-running server applications" (ISMM 1998), section 4.1. A
//! thread starts with the blocks of an exited thread; the initial threads start with blocks of the main thread. A
//! second variant of the program passes the block's size to each free, as sized deallocation in C++ does.

use crate::common::{AllocationApi, Block, Malloc, Parameter, Parameters, Program, Random, THREADS};
use std::ffi::{CStr, c_void};
use std::thread::Scope;
use uslab_magazine::sync::{AtomicPtr, Ordering};

pub(crate) const PLAIN: Program = Program {
    name: "larson",
    about: "threads replace random blocks, and leave their blocks to successors; an operation is a replacement",
    parameters: PARAMETERS,
    run: run::<Malloc>,
};

pub(crate) const LARSON_SIZED: Program = Program {
    name: "larson-sized",
    about: "the same, freed by size: free_sized, else C++'s sized delete, else free",
    parameters: PARAMETERS,
    run: |parameters| {
        eprintln!("frees by {}", SizedApi::find());
        run::<SizedApi>(parameters)
    },
};

const PARAMETERS: &[Parameter] = &[
    THREADS,
    Parameter::new("blocks", 5_000, 500, "blocks that a thread holds"),
    Parameter::new("min", 8, 8, "bytes of the smallest block"),
    Parameter::new("max", 1_000, 1_000, "bytes of the largest block"),
    Parameter::new("replacements", 500_000, 20_000, "replacements by a thread before its successor starts"),
    Parameter::new("generations", 20, 4, "successive threads in each place"),
];

fn run<A: AllocationApi + 'static>(parameters: &Parameters) -> u64 {
    let (threads, blocks) = (parameters.size("threads"), parameters.size("blocks"));
    let (min, max) = (parameters.size("min"), parameters.size("max"));
    let mut random = Random::new(0);
    let mut all_blocks: Vec<Block<A>> =
        (0..threads * blocks).map(|_| Block::new(random.in_range(min, max), random.stamp())).collect();
    // The blocks are shuffled, so that neighbours belong to different threads.
    for i in (1..all_blocks.len()).rev() {
        all_blocks.swap(i, random.below(i + 1));
    }
    let server = Server {
        min,
        max,
        replacements: parameters.get("replacements"),
        generations: parameters.get("generations"),
    };
    std::thread::scope(|scope| {
        for thread in 0..threads as u64 {
            let own_blocks = all_blocks.split_off(all_blocks.len() - blocks);
            scope.spawn(move || server.run_thread(scope, own_blocks, Random::new(1 + thread), 1));
        }
    });
    threads as u64 * server.generations * server.replacements
}

#[derive(Clone, Copy)]
struct Server {
    min: usize,
    max: usize,
    replacements: u64,
    generations: u64,
}

impl Server {
    fn run_thread<'s, A: AllocationApi + 'static>(
        self,
        scope: &'s Scope<'s, '_>,
        mut blocks: Vec<Block<A>>,
        mut random: Random,
        generation: u64,
    ) {
        for _ in 0..self.replacements {
            let place = random.below(blocks.len());
            // The assignment frees the old block after the new block is allocated.
            blocks[place] = Block::new(random.in_range(self.min, self.max), random.stamp());
        }
        if generation < self.generations {
            scope.spawn(move || self.run_thread(scope, blocks, random, generation + 1));
        }
    }
}

/// Allocation functions that pass the block's size to free, if the malloc in use supports this.
struct SizedApi;

struct Functions {
    alloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void, usize),
}

/// Function pointers of the malloc in use, set before the first thread starts.
static MALLOC_FUNCTIONS: AtomicPtr<Functions> = AtomicPtr::new(std::ptr::null_mut());

impl SizedApi {
    /// Looks up the malloc's functions for sized frees, and returns a name for them.
    fn find() -> &'static str {
        // SAFETY: the name is a valid C string.
        let find = |name: &CStr| unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        let [free_sized, new, delete] = [c"free_sized", c"_Znwm", c"_ZdlPvm"].map(find);
        type Alloc = unsafe extern "C" fn(usize) -> *mut c_void;
        type Free = unsafe extern "C" fn(*mut c_void, usize);
        let (name, functions) = if !free_sized.is_null() {
            // SAFETY: C23's function `free_sized` has this signature.
            let free = unsafe { std::mem::transmute::<*mut c_void, Free>(free_sized) };
            ("free_sized", Functions { alloc: libc::malloc, free })
        } else if !new.is_null() && !delete.is_null() {
            // SAFETY: C++'s functions with these names have these signatures: `operator new(size_t)`, `operator
            // delete(void*, size_t)`.
            let (alloc, free) = unsafe {
                (
                    std::mem::transmute::<*mut c_void, Alloc>(new),
                    std::mem::transmute::<*mut c_void, Free>(delete),
                )
            };
            ("sized delete", Functions { alloc, free })
        } else {
            ("free", Functions { alloc: libc::malloc, free: free_unsized })
        };
        // Relaxed: threads that use the functions are started later.
        MALLOC_FUNCTIONS.store(Box::leak(Box::new(functions)), Ordering::Relaxed);
        name
    }
    #[inline(always)]
    fn functions() -> &'static Functions {
        // SAFETY: the pointer is set before any thread starts, never changed and never freed.
        unsafe { &*MALLOC_FUNCTIONS.load(Ordering::Relaxed) }
    }
}

unsafe extern "C" fn free_unsized(memory: *mut c_void, _size: usize) {
    // SAFETY: the caller passes a block of `malloc`, once.
    unsafe { libc::free(memory) };
}

impl AllocationApi for SizedApi {
    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        // SAFETY: the call has no precondition.
        unsafe { (Self::functions().alloc)(size).cast() }
    }
    #[inline(always)]
    unsafe fn free(memory: *mut u8, size: usize) {
        // SAFETY: the caller passes a block from `alloc` with this size, once; both functions are from the same set.
        unsafe { (Self::functions().free)(memory.cast(), size) };
    }
}
