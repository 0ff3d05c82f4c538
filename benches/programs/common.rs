//! Code that all programs share: parameters, random numbers, and blocks that detect writes by other owners.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Description of the program on one line of the `--help` text.
    pub(crate) about: &'static str,
    pub(crate) parameters: &'static [Parameter],
    pub(crate) run: fn(&Parameters) -> u64,
}

/// A numeric parameter that the command line can set.
pub(crate) struct Parameter {
    pub(crate) name: &'static str,
    /// Default value of the parameter; 0 means the number of CPUs.
    pub(crate) full_value: u64,
    /// Default value of the parameter with `--quick`.
    pub(crate) quick: u64,
    /// Unit and meaning of the parameter.
    pub(crate) about: &'static str,
}

impl Parameter {
    pub(crate) const fn new(name: &'static str, full_value: u64, quick: u64, about: &'static str) -> Self {
        Self { name, full_value, quick, about }
    }
}

/// The parameter `threads`, which every program with threads has.
pub(crate) const THREADS: Parameter =
    Parameter::new("threads", 0, 0, "concurrent threads; the default is the number of CPUs");

/// Values of the parameters in one run.
pub(crate) struct Parameters(Vec<(&'static str, u64)>);

impl Parameters {
    /// Starts with the default values of `program`, and applies the command line `arguments`.
    pub(crate) fn parse(
        program: &Program,
        mut arguments: impl Iterator<Item = String>,
    ) -> Result<Self, String> {
        let (mut quick, mut given_values) = (false, Vec::new());
        while let Some(argument) = arguments.next() {
            if argument == "--quick" {
                quick = true;
                continue;
            }
            let known_parameter = |p: &&Parameter| argument.strip_prefix("--") == Some(p.name);
            let Some(parameter) = program.parameters.iter().find(known_parameter) else {
                let accepted: Vec<_> = program.parameters.iter().map(|p| format!("--{}", p.name)).collect();
                return Err(format!(
                    "{}: unknown option {argument}; expected --quick, {}",
                    program.name,
                    accepted.join(", ")
                ));
            };
            let value = arguments.next().unwrap_or_default();
            match value.parse() {
                Ok(number @ 1..) => given_values.push((parameter.name, number)),
                _ => return Err(format!("{argument} {value:?}: expected a number from 1")),
            }
        }
        let value = |p: &Parameter| {
            let given_values = given_values.iter().rev().find(|(name, _)| *name == p.name);
            match given_values.map_or(if quick { p.quick } else { p.full_value }, |(_, number)| *number) {
                0 => std::thread::available_parallelism().map_or(1, |cpus| cpus.get() as u64),
                number => number,
            }
        };
        let numbers = Self(program.parameters.iter().map(|p| (p.name, value(p))).collect());
        let bound = |name| {
            numbers.0.iter().find(|(known_parameter, _)| *known_parameter == name).map(|(_, number)| *number)
        };
        match (bound("min"), bound("max")) {
            (Some(min), Some(max)) if min > max => Err(format!("--min {min} is above --max {max}")),
            _ => Ok(numbers),
        }
    }
    /// Returns the value of the parameter called `name`.
    pub(crate) fn get(&self, name: &str) -> u64 {
        self.0
            .iter()
            .find(|(known_parameter, _)| *known_parameter == name)
            .expect("the program must have the parameter")
            .1
    }
    pub(crate) fn size(&self, name: &str) -> usize {
        self.get(name) as usize
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014); it yields the same numbers in every run.
pub(crate) struct Random(u64);

impl Random {
    /// Makes a random generator; each value of `stream` gives a different sequence.
    pub(crate) fn new(stream: u64) -> Self {
        Self((stream + 1).wrapping_mul(0xd134_2543_de82_ef95))
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Returns a random number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
    /// Returns a random number from `min` to `max`, both included.
    pub(crate) fn in_range(&mut self, min: usize, max: usize) -> usize {
        min + self.below(max - min + 1)
    }
    /// Returns a random number from `2^low` up to, but not including, `2^high`; its logarithm is uniformly distributed.
    pub(crate) fn log_uniform(&mut self, min_log: u32, max_log: u32) -> usize {
        let power = 1 << self.in_range(min_log as usize, max_log as usize - 1);
        power + self.below(power)
    }
    /// Returns a random stamp to write to a block.
    pub(crate) fn stamp(&mut self) -> u32 {
        self.next() as u32
    }
}

const PAGE: usize = 4096;

/// The allocation functions that a program calls.
pub(crate) trait AllocationApi {
    /// Allocates at least `size` bytes, aligned to 8; returns null if the allocation fails.
    fn alloc(size: usize) -> *mut u8;
    /// Frees memory.
    ///
    /// # Safety
    /// `memory` was returned by `alloc` for this size, and the caller no longer uses it.
    unsafe fn free(memory: *mut u8, size: usize);
}

/// The C functions `malloc` and `free`.
pub(crate) struct Malloc;

impl AllocationApi for Malloc {
    #[inline(always)]
    fn alloc(size: usize) -> *mut u8 {
        // SAFETY: the call has no precondition.
        unsafe { libc::malloc(size).cast() }
    }
    #[inline(always)]
    unsafe fn free(memory: *mut u8, _size: usize) {
        // SAFETY: the caller passes a block from `alloc`, once.
        unsafe { libc::free(memory.cast()) };
    }
}

/// A block with its owner's stamp at both ends; the stamps are checked when the block is freed. The stamp check detects
/// a block that the allocator gave to two owners or overwrote.
pub(crate) struct Block<A: AllocationApi = Malloc> {
    memory: NonNull<u8>,
    size: u32,
    stamp: u32,
    api: std::marker::PhantomData<A>,
}

// SAFETY: a block owns its memory, which any thread may use and free.
unsafe impl<A: AllocationApi> Send for Block<A> {}

impl<A: AllocationApi> Block<A> {
    /// Allocates a block of `size` bytes, which may be from 4 bytes to 4 GiB.
    #[inline(always)]
    pub(crate) fn new(size: usize, stamp: u32) -> Self {
        let size = size.max(size_of::<u32>());
        // SAFETY: the memory came from `A::alloc` with this size.
        unsafe { Self::from_raw(A::alloc(size), size, stamp) }
    }
    /// # Safety
    /// `memory` is null or was returned by `A::alloc` for `size` bytes, and `size` is at least 4.
    #[inline(always)]
    unsafe fn from_raw(memory: *mut u8, size: usize, stamp: u32) -> Self {
        let Some(memory) = NonNull::new(memory) else {
            handle_alloc_error(Layout::from_size_align(size, 1).expect("a size"))
        };
        let block = Self { memory, size: size as u32, stamp, api: std::marker::PhantomData };
        block.write(0);
        block.write(size - 4);
        block
    }
    /// Returns the word that must be stored at `offset`. The word repeats the bytes of the stamp, so overlapping words
    /// agree in their common bytes.
    #[inline(always)]
    fn word(&self, offset: usize) -> u32 {
        self.stamp.rotate_right(8 * (offset % 4) as u32)
    }
    #[inline(always)]
    fn write(&self, offset: usize) {
        debug_assert!(offset + 4 <= self.size as usize);
        // SAFETY: the word is within the block.
        unsafe { self.memory.add(offset).cast().write_unaligned(self.word(offset).to_le()) };
    }
    #[inline(always)]
    fn check(&self, offset: usize) {
        debug_assert!(offset + 4 <= self.size as usize);
        // SAFETY: the word is within the block, and was written before.
        let actual = u32::from_le(unsafe { self.memory.add(offset).cast().read_unaligned() });
        if actual != self.word(offset) {
            self.report_corruption(offset, actual);
        }
    }
    #[cold]
    fn report_corruption(&self, offset: usize, actual: u32) -> ! {
        // The heap is damaged, so `free` may not work either. The program therefore does not unwind.
        eprintln!(
            "corrupted: the block of {} bytes at {:p} holds {actual:#010x} at byte {offset}, where its owner wrote {:#010x}",
            self.size,
            self.memory,
            self.word(offset)
        );
        std::process::exit(1);
    }
    /// Writes the stamp to the whole block.
    pub(crate) fn fill(&mut self) {
        let words = self.size as usize / 4;
        // SAFETY: the words are within the block, aligned as `AllocationApi::alloc` promises, and borrowed exclusively.
        let words = unsafe { std::slice::from_raw_parts_mut(self.memory.cast().as_ptr(), words) };
        words.fill(self.stamp.to_le());
    }
    /// Checks that the stamp fills the whole block.
    pub(crate) fn check_block_stamps(&self) {
        // SAFETY: the words are within the block and aligned; `fill` wrote them.
        let words =
            unsafe { std::slice::from_raw_parts(self.memory.cast::<u32>().as_ptr(), self.size as usize / 4) };
        // The loop has no early exit, so that it is vectorised.
        let difference = words.iter().fold(0, |difference, word| difference | (word ^ self.stamp.to_le()));
        if difference != 0 {
            (0..words.len()).for_each(|word| self.check(4 * word));
        }
    }
    /// Writes one stamped word to each page of the block.
    pub(crate) fn touch(&mut self) {
        (0..=self.size as usize - 4).step_by(PAGE).for_each(|offset| self.write(offset));
    }
    /// Checks the stamped word in each page.
    pub(crate) fn check_page_stamps(&self) {
        (0..=self.size as usize - 4).step_by(PAGE).for_each(|offset| self.check(offset));
    }
    /// Adds 1 to the block's first word `times` times; each addition is a separate load and store.
    pub(crate) fn count(&mut self, times: u64) {
        let first = self.memory.cast::<u32>();
        for _ in 0..times {
            // SAFETY: the word is within the block, aligned as `AllocationApi::alloc` promises, and was written before.
            unsafe { first.write_volatile(first.read_volatile().to_le().wrapping_add(1).to_le()) };
        }
        self.stamp = self.stamp.wrapping_add(times as u32);
        self.check(0);
        self.write(self.size as usize - 4);
    }
}

impl Block {
    /// Allocates a block with `calloc`, checks that the memory is zero, and stamps it like [`new`](Block::new).
    pub(crate) fn zeroed(size: usize, stamp: u32) -> Self {
        let size = size.max(size_of::<u32>());
        // SAFETY: the call has no precondition.
        let memory: *mut u8 = unsafe { libc::calloc(1, size).cast() };
        if !memory.is_null() {
            // SAFETY: the memory came from `calloc`, which initialised all bytes.
            let bytes = unsafe { std::slice::from_raw_parts(memory, size) };
            if let Some(index) = bytes.iter().position(|byte| *byte != 0) {
                eprintln!("corrupted: calloc of {size} bytes at {memory:p} is not zero at byte {index}");
                std::process::exit(1);
            }
        }
        // SAFETY: `free` may free memory from `calloc`.
        unsafe { Self::from_raw(memory, size, stamp) }
    }
}

impl<A: AllocationApi> Drop for Block<A> {
    #[inline(always)]
    fn drop(&mut self) {
        self.check(0);
        self.check(self.size as usize - 4);
        // SAFETY: the memory came from `A::alloc` with this size, and this block owns it.
        unsafe { A::free(self.memory.as_ptr(), self.size as usize) };
    }
}
