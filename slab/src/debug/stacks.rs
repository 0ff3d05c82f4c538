//! Interned call stacks, which reports print for allocations and frees.
//!
//! A saved call stack is identified by a 32-bit number ([`CallStack`]). Equal call stacks share one record, which is
//! found by a hash and never freed. The table of records has separate memory, mapped a mebibyte at a time, up to 64
//! MiB. The table's code neither allocates nor takes a lock, because a malloc uses the table. If the table is full, or
//! if the thread is already saving a stack, the result is [`CallStack::NONE`].
//!
//! With the cargo feature `stacks`, the crate `backtrace` unwinds the frames; without the feature every stack is empty.
//! Symbols are looked up only when a call stack is printed, because the lookup reads the program's debug information,
//! and allocates.

use core::fmt;
use core::hash::Hasher;
use core::mem::offset_of;
use core::ptr::null_mut;
use std::cell::Cell;
use std::hash::DefaultHasher;
use uslab_buddy::region::Region;
use uslab_buddy::{Backend, Faults, PAGE_SIZE};
use uslab_magazine::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};
use uslab_magazine::sync::unseen::{AtomicPtr, AtomicU32};

/// Maximum number of saved frames of a stack; the outermost frames are cut off.
const MAX_SAVED_FRAMES: usize = 40;
/// Maximum number of printed frames. The allocator's innermost frames do not count towards the maximum, because their
/// number varies.
#[cfg(feature = "stacks")]
const MAX_PRINTED_FRAMES: usize = 24;
/// Number of hash buckets, each of which is a list of records.
const HASH_BUCKETS: usize = 1 << 14;
/// Number of words in a piece of the table's memory.
const WORDS_PER_TABLE_CHUNK: u32 = 1 << 17;
const TABLE_CHUNKS: usize = 64;
/// Number of words of a record before its frames. The first word of a record is its hash. The second word contains the
/// next record and the number of frames.
const HEADER: u32 = 2;

/// Number of a saved call stack. Equal call stacks have the same number.
///
/// ```
/// use uslab::debug::stacks::CallStack;
///
/// assert!(CallStack::NONE.frames().is_empty());
/// assert_eq!(CallStack::NONE.to_string(), "  (no stack)\n");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallStack(u32);

#[derive(Debug)]
pub(crate) struct Depot {
    lists: [AtomicU32; HASH_BUCKETS],
    pieces: [AtomicPtr<u64>; TABLE_CHUNKS],
    /// Number of words of the table that are in use. Word 0 is never used, so no record has number 0.
    used: AtomicU32,
}

pub(super) static DEPOT: Depot = Depot {
    lists: [const { AtomicU32::new(0) }; HASH_BUCKETS],
    pieces: [const { AtomicPtr::new(null_mut()) }; TABLE_CHUNKS],
    used: AtomicU32::new(HEADER),
};

std::thread_local! {
    /// True while the thread is saving a call stack or looking up symbols. An allocation during a symbol lookup saves
    /// no call stack. A report during a save has no symbols.
    static IS_THREAD_BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f`. If the thread is already inside a call of `run_once`, returns `None` without running `f`.
fn run_once<R>(f: impl FnOnce() -> R) -> Option<R> {
    struct StackWalkGuard;
    impl Drop for StackWalkGuard {
        fn drop(&mut self) {
            IS_THREAD_BUSY.set(false);
        }
    }
    // A thread that is exiting may have destroyed this thread-local.
    if IS_THREAD_BUSY.try_with(|busy| busy.replace(true)).unwrap_or(true) {
        return None;
    }
    let _done = StackWalkGuard;
    Some(f())
}

impl Depot {
    /// For debuggers: offset of the pieces' addresses, number of words in a piece, and number of words before a
    /// record's frames.
    pub(super) const LAYOUT: [usize; 3] =
        [offset_of!(Self, pieces), WORDS_PER_TABLE_CHUNK as usize, HEADER as usize];

    /// Address of the record with number `at`, which [`take`](Self::take) returned.
    fn record(&self, at: u32) -> *mut u64 {
        // Acquire: pairs with the Release of `map`, so that the memory is mapped.
        self.pieces[(at / WORDS_PER_TABLE_CHUNK) as usize]
            .load(Acquire)
            .wrapping_add((at % WORDS_PER_TABLE_CHUNK) as usize)
    }
    /// Reserves `words` unused words in one piece of the table, and returns the number of the first word.
    fn take(&self, words: u32) -> Option<u32> {
        // Relaxed: this counter alone decides which thread gets the reserved words.
        let mut used = self.used.load(Relaxed);
        let at = loop {
            let remaining_words = WORDS_PER_TABLE_CHUNK - used % WORDS_PER_TABLE_CHUNK;
            let at = if words <= remaining_words { used } else { used + remaining_words };
            if (at + words) as usize > WORDS_PER_TABLE_CHUNK as usize * TABLE_CHUNKS {
                return None;
            }
            match self.used.compare_exchange_weak(used, at + words, Relaxed, Relaxed) {
                Ok(_) => break at,
                Err(now) => used = now,
            }
        };
        self.map(&self.pieces[(at / WORDS_PER_TABLE_CHUNK) as usize]).then_some(at)
    }
    /// Maps a piece of the table's memory, unless it is already mapped.
    fn map(&self, piece: &AtomicPtr<u64>) -> bool {
        // Relaxed: `record` loads the pointer again, with Acquire.
        if !piece.load(Relaxed).is_null() {
            return true;
        }
        let bytes = WORDS_PER_TABLE_CHUNK as usize * size_of::<u64>();
        let Some(region) = Region::committed(bytes, PAGE_SIZE, Backend::default(), &Faults::default()) else {
            return false;
        };
        // Release: pairs with the Acquire of `record`. If the exchange fails, another thread has mapped the piece, and
        // this thread does not read the piece here.
        if piece.compare_exchange(null_mut(), region.base().as_ptr().cast(), AcqRel, Relaxed).is_ok() {
            core::mem::forget(region);
        }
        true
    }

    fn frames(&self, at: u32) -> &'static [usize] {
        let record = self.record(at);
        // SAFETY: a record that is on a list or in a `CallStack` is complete, and never changes.
        unsafe {
            let frames = (record.add(1).read() >> 32) as usize;
            core::slice::from_raw_parts(record.add(HEADER as usize).cast(), frames)
        }
    }
    /// Searches a bucket's list, from record `at` up to record `end`, for the record of `frames`.
    fn find(&self, mut at: u32, end: u32, hash: u64, frames: &[usize]) -> Option<u32> {
        while at != end {
            let record = self.record(at);
            // SAFETY: a record that is on a list is complete, and never changes.
            let (known, next) = unsafe { (record.read(), record.add(1).read() as u32) };
            if known == hash && self.frames(at) == frames {
                return Some(at);
            }
            at = next;
        }
        None
    }
    /// Finds the record of `frames`, or creates it.
    fn save(&self, frames: &[usize]) -> Option<u32> {
        let mut hasher = DefaultHasher::new();
        frames.iter().for_each(|frame| hasher.write_usize(*frame));
        let hash = hasher.finish();
        let list = &self.lists[hash as usize % HASH_BUCKETS];
        // Acquire: pairs with the Release below, so that records are complete.
        let mut first = list.load(Acquire);
        if let Some(known) = self.find(first, 0, hash, frames) {
            return Some(known);
        }
        let at = self.take(HEADER + frames.len() as u32)?;
        let record = self.record(at);
        loop {
            // SAFETY: until the record is on its list, only this thread has the words.
            unsafe {
                record.write(hash);
                record.add(1).write(u64::from(first) | (frames.len() as u64) << 32);
                record
                    .add(HEADER as usize)
                    .cast::<usize>()
                    .copy_from_nonoverlapping(frames.as_ptr(), frames.len());
            }
            // Release: pairs with the Acquire load of the list above, and with the Acquire of a
            // failed exchange.
            match list.compare_exchange(first, at, Release, Acquire) {
                Ok(_) => return Some(at),
                // Another thread may have added the same stack, in which case the words that this thread reserved stay
                // unused.
                Err(now) => match self.find(now, first, hash, frames) {
                    Some(known) => return Some(known),
                    None => first = now,
                },
            }
        }
    }
}

impl CallStack {
    /// The empty call stack.
    pub const NONE: Self = Self(0);

    /// Saves the caller's call stack, without the frame of this function.
    ///
    /// Cost: some 100 ns for each unwound frame, plus a table lookup.
    #[cold]
    #[inline(never)]
    pub(crate) fn save() -> Self {
        #[cfg_attr(not(feature = "stacks"), allow(unused_mut, reason = "nothing is found"))]
        let (mut frames, mut len) = ([0; MAX_SAVED_FRAMES], 0);
        let _here = core::hint::black_box(&frames);
        #[cfg(feature = "stacks")]
        {
            // Frames of functions called from here are at lower addresses.
            let own_frame = core::ptr::from_ref(_here).addr();
            run_once(|| {
                // SAFETY: `backtrace`'s lock protects only the symbol lookup, and this code only unwinds frames.
                unsafe {
                    backtrace::trace_unsynchronized(|frame| {
                        // The outermost return address of a thread is null.
                        if frame.sp().addr() > own_frame && !frame.ip().is_null() {
                            frames[len] = frame.ip().addr();
                            len += 1;
                        }
                        len < MAX_SAVED_FRAMES
                    });
                }
            });
        }
        if len == 0 { Self::NONE } else { DEPOT.save(&frames[..len]).map_or(Self::NONE, Self) }
    }

    #[cfg(test)]
    pub(crate) fn from_frames(frames: &[usize]) -> Self {
        Self(DEPOT.save(frames).unwrap())
    }
    /// Returns the stack's number, for callers that pack it into a word with other bits.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
    pub(crate) fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Returns the stack's return addresses, innermost first.
    pub fn frames(self) -> &'static [usize] {
        if self == Self::NONE { &[] } else { DEPOT.frames(self.0) }
    }

    /// Returns the stack without the allocator's innermost frames, which depend on the path that served the object.
    /// Without symbols, returns the stack unchanged.
    ///
    /// The call allocates memory.
    pub(crate) fn outer(self) -> Self {
        #[cfg(feature = "stacks")]
        if let Some(outer) = run_once(|| outer(self.frames())) {
            return DEPOT.save(outer).map_or(self, Self);
        }
        self
    }

    /// Returns the stack without the leading frames for which `is_own` returns `true`. Returns the stack unchanged if
    /// no frame would remain, or if the table is full. The library `libuslab` calls this function.
    pub fn skip(self, is_own: impl Fn(usize) -> bool) -> Self {
        let first = self.frames().iter().position(|&at| !is_own(at));
        first.and_then(|first| DEPOT.save(&self.frames()[first..])).map_or(self, Self)
    }

    /// Calls `see` with each function on the stack, innermost first, and skips the allocator's functions. An inlined
    /// call counts as a separate function.
    ///
    /// The call reads the program's debug information, which takes tens of megabytes. `uslab flame` and `pprof` read
    /// the debug information outside the program.
    pub fn each_function(self, mut see: impl FnMut(Function<'_>)) {
        let named = cfg!(feature = "stacks") && run_once(|| self.for_each_named_function(&mut see)).is_some();
        if !named {
            self.frames().iter().for_each(|&at| see(Function { at, name: None, file: None }));
        }
    }
    #[cfg(not(feature = "stacks"))]
    fn for_each_named_function(self, _see: &mut impl FnMut(Function<'_>)) {}
    #[cfg(feature = "stacks")]
    fn for_each_named_function(self, see: &mut impl FnMut(Function<'_>)) {
        for (nth, &at) in outer(self.frames()).iter().enumerate() {
            let mut functions = vec![];
            backtrace::resolve(core::ptr::with_exposed_provenance_mut(at), |symbol| {
                let name = symbol.name().map(|name| format!("{name:#}"));
                let file = symbol.filename().map(|file| file.to_string_lossy().into_owned());
                functions.push((name, file.zip(symbol.lineno())));
            });
            // The first frame may have functions of the allocator inlined.
            let whose = |(name, _): &(Option<String>, _)| {
                name.as_deref().map_or(FunctionOwner::Others, FunctionOwner::owner_of)
            };
            let own = if nth == 0 { allocator_frames(functions.iter().map(whose)) } else { 0 };
            for (name, file) in &functions[if own < functions.len() { own } else { 0 }..] {
                let file = file.as_ref().map(|(file, line)| (&**file, *line));
                see(Function { at, name: name.as_deref(), file });
            }
            if functions.is_empty() {
                see(Function { at, name: None, file: None });
            }
        }
    }
}

/// Returns the frames of the stack outside the allocator, at most [`MAX_PRINTED_FRAMES`]. If all frames belong to the
/// allocator, returns all frames.
#[cfg(feature = "stacks")]
fn outer(frames: &'static [usize]) -> &'static [usize] {
    match allocator_frames(frames.iter().map(|&at| FunctionOwner::at(at))) {
        own if own < frames.len() => &frames[own..frames.len().min(own + MAX_PRINTED_FRAMES)],
        _ => frames,
    }
}

/// Counts the leading frames that belong to the allocator, including Rust library frames between them.
#[cfg(feature = "stacks")]
fn allocator_frames(frames: impl Iterator<Item = FunctionOwner>) -> usize {
    let inner = frames.take_while(|whose| *whose != FunctionOwner::Others);
    inner.enumerate().filter(|(_, whose)| *whose == FunctionOwner::Own).last().map_or(0, |(at, _)| at + 1)
}

#[cfg(feature = "stacks")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FunctionOwner {
    Own,
    /// The Rust library, whose frames appear between the allocator's frames in builds without inlining.
    Library,
    Others,
}

#[cfg(feature = "stacks")]
impl FunctionOwner {
    /// Returns the owner of the function at address `at`, into which other functions may be inlined.
    fn at(at: usize) -> Self {
        let mut whose = Self::Others;
        backtrace::resolve(core::ptr::with_exposed_provenance_mut(at), |symbol| {
            whose = symbol.name().map_or(Self::Others, |name| Self::owner_of(&format!("{name:#}")));
        });
        whose
    }
    fn owner_of(name: &str) -> Self {
        let path = name.trim_start_matches(['<', '&']);
        let is_of = |crates: &[&str]| {
            crates.iter().any(|of| path.strip_prefix(of).is_some_and(|rest| rest.starts_with("::")))
        };
        match () {
            () if path.contains("::tests::") => Self::Others,
            () if is_of(&["uslab", "uslab_magazine", "uslab_buddy", "uslab_pool", "uslab_sync"]) => Self::Own,
            () if is_of(&["core", "alloc", "std"]) => Self::Library,
            () => Self::Others,
        }
    }
}

/// A function on a [call stack](CallStack), which is printed by name.
///
/// If the name is unknown, the code's offset in its file is printed, so that a debugger can look it up. In a static
/// program, the address is printed instead.
///
/// ```
/// use uslab::{Config, Gfp, KmemCache, Subsystem};
///
/// let subsystem = Subsystem::new(Config::default())?;
/// let inodes = KmemCache::builder("inode", 600).build_in(&subsystem)?;
/// subsystem.start_profile(1)?;
/// let _block = inodes.alloc_block(Gfp::KERNEL)?;
/// let mut names = Vec::new();
/// subsystem.profile().samples[0].stack.each_function(|function| names.extend(function.name.map(str::to_owned)));
/// # #[cfg(feature = "stacks")]
/// assert!(names.iter().any(|name| name.contains("main")), "{names:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function<'a> {
    /// Return address of the call.
    pub at: usize,
    /// Name of the function.
    pub name: Option<&'a str>,
    /// Source file and line of the call.
    pub file: Option<(&'a str, u32)>,
}

impl fmt::Display for Function<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name, self.file) {
            (Some(name), Some((file, line))) => write!(f, "{name} ({file}:{line})"),
            (Some(name), None) => f.write_str(name),
            (None, _) => match module(self.at) {
                Some((file, offset)) => write!(f, "{file}+{offset:#x}"),
                None => write!(f, "{:#x}", self.at),
            },
        }
    }
}

/// Returns the file that contains the code at an address, and the code's offset in that file. The call does not
/// allocate.
#[cfg(all(unix, not(target_family = "wasm")))]
fn module(at: usize) -> Option<(std::borrow::Cow<'static, str>, usize)> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the call writes the description of an address, or nothing; all zeros is also a valid description.
    let (found, info) = unsafe {
        let found = libc::dladdr(core::ptr::with_exposed_provenance(at), info.as_mut_ptr());
        (found, info.assume_init())
    };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader owns the name, which lives as long as the file is loaded. The code of the file is on a call
    // stack, so the file is loaded.
    let name = unsafe { core::ffi::CStr::from_ptr(info.dli_fname) };
    Some((name.to_string_lossy(), at.wrapping_sub(info.dli_fbase.addr())))
}
#[cfg(not(all(unix, not(target_family = "wasm"))))]
fn module(_at: usize) -> Option<(std::borrow::Cow<'static, str>, usize)> {
    None
}

impl fmt::Display for CallStack {
    /// Writes one function per line, indented by two spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("  (no stack)\n");
        }
        let mut outcome = Ok(());
        self.each_function(|function| outcome = outcome.and_then(|()| writeln!(f, "  {function}")));
        outcome
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[cfg(feature = "stacks")]
    #[test]
    fn stack_frame_shows_the_function_name() {
        let mut names = vec![];
        CallStack::save().each_function(|function| names.push((function.at, function.name.is_some())));
        let named = |at| names.iter().any(|&(other, named)| other == at && named);
        assert!(
            names.iter().any(|(_, named)| *named)
                && names.iter().all(|&(at, is_named)| is_named || !named(at))
        );
    }

    /// Regression test: in a build without inlining, a leak was reported twice. A frame of `Option::map_or_else` had
    /// ended the removal of leading frames too early.
    #[cfg(feature = "stacks")]
    #[test]
    fn call_stack_omits_library_frames_between_allocator_frames() {
        use FunctionOwner::{Library, Others, Own};
        for (name, whose) in [
            ("uslab::cache::alloc::<impl uslab::cache::Cache>::alloc", Own),
            ("<uslab::objects::typed::ObjectCache<T>>::alloc", Own),
            ("uslab_sync::std::Mutex<T>::lock", Own),
            ("<core::option::Option<T>>::map_or_else", Library),
            ("alloc::vec::Vec<T>::push", Library),
            ("uslab_server::serve", Others),
            ("server::main", Others),
            ("malloc", Others),
        ] {
            assert_eq!(FunctionOwner::owner_of(name), whose, "{name}");
        }
        for (frames, cut) in [
            (&[Own, Library, Own, Others][..], 3),
            (&[Own, Library, Others], 1),
            (&[Others, Own, Others], 0),
            (&[Library, Own, Library, Library, Others, Own], 2),
            (&[Own, Own], 2),
            (&[], 0),
        ] {
            assert_eq!(allocator_frames(frames.iter().copied()), cut, "{frames:?}");
        }
        let after = |f: *const ()| f.addr() + 1;
        let inner = after(CallStack::save as *const ());
        let frames: &'static [usize] = Vec::leak(vec![inner, inner, after(libc::getpid as *const ())]);
        assert_eq!(outer(frames), &frames[2..]);
        assert_eq!(outer(&frames[..2]), &frames[..2], "a stack without allocator frames is kept completely");
        assert_eq!(CallStack::from_frames(frames).outer().frames(), &frames[2..]);
    }

    #[test]
    fn skipping_frames_removes_only_the_innermost_frames() {
        let stack = CallStack::from_frames(&[3, 4, 9, 3]);
        assert_eq!(stack.skip(|at| at < 9).frames(), [9, 3]);
        assert_eq!((stack.skip(|_| false), stack.skip(|_| true)), (stack, stack));
        assert_eq!(CallStack::NONE.skip(|_| false), CallStack::NONE);
    }

    #[cfg(feature = "stacks")]
    #[test]
    fn call_stack_of_only_allocator_frames_is_shown_completely() {
        let shown_frames = |frames: &[usize]| {
            let mut shown_frames = vec![];
            CallStack::from_frames(frames)
                .each_function(|function| shown_frames.push((function.at, function.name.is_some())));
            // If functions are inlined, several functions share one address.
            shown_frames.dedup();
            shown_frames
        };
        let inner = [CallStack::save as *const (), CallStack::outer as *const ()].map(|f| f.addr() + 1);
        assert_eq!(shown_frames(&inner), inner.map(|at| (at, true)));
        assert_eq!(shown_frames(&[16, 32]), [(16, false), (32, false)]);
    }

    #[cfg(feature = "stacks")]
    #[test]
    fn call_stack_deeper_than_the_maximum_is_truncated() {
        #[inline(never)]
        fn deep(levels: usize) -> CallStack {
            let stack = if levels > 0 { deep(levels - 1) } else { CallStack::save() };
            // With a tail call, the frame of one level would be missing.
            core::hint::black_box(stack)
        }
        assert_eq!(deep(core::hint::black_box(2 * MAX_SAVED_FRAMES)).frames().len(), MAX_SAVED_FRAMES);
    }

    /// Regression test: one call site with deep call stacks was reported as two, because the stacks had different
    /// numbers of allocator frames.
    #[cfg(feature = "stacks")]
    #[test]
    fn call_stack_depth_limit_ignores_allocator_frames() {
        let return_address = |f: *const ()| f.addr() + 1;
        let shown_frames = |own: usize, others: usize| {
            let mut frames = vec![return_address(CallStack::save as *const ()); own];
            frames.extend((0..others).map(|nth| return_address(libc::getpid as *const ()) + nth));
            CallStack::from_frames(&frames).outer()
        };
        assert_eq!(shown_frames(2, MAX_SAVED_FRAMES - 2), shown_frames(9, MAX_SAVED_FRAMES - 9));
        assert_eq!(shown_frames(2, MAX_SAVED_FRAMES - 2).frames().len(), MAX_PRINTED_FRAMES);
        assert_eq!(
            shown_frames(2, MAX_PRINTED_FRAMES - 1).frames().len(),
            MAX_PRINTED_FRAMES - 1,
            "a shallow stack is complete"
        );
    }

    #[cfg(feature = "stacks")]
    #[test]
    fn call_stack_starts_with_the_caller_of_the_unwinder() {
        let mut first = None;
        CallStack::save().each_function(|function| {
            first.get_or_insert_with(|| function.name.unwrap_or_default().to_owned());
        });
        assert!(first.is_some_and(|name| !name.contains("backtrace")));
        // Checks the saved stack, before symbols decide which frames are shown.
        assert_eq!(FunctionOwner::at(CallStack::save().frames()[0]), FunctionOwner::Others);
        let unknown_function = Function { at: 16, name: None, file: None };
        assert!(unknown_function.to_string().contains("0x10"), "{unknown_function}");
    }

    #[test]
    fn equal_call_stacks_share_one_record() {
        let frames: Vec<Vec<usize>> =
            (0..5000).map(|n| (0..1 + n % MAX_SAVED_FRAMES).map(|i| 4096 * n + i).collect()).collect();
        let save = || frames.iter().map(|frames| DEPOT.save(frames).unwrap()).collect::<Vec<_>>();
        let threads: Vec<Vec<u32>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(save)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(threads.iter().all(|saved| *saved == threads[0]), "all threads must get the same number");
        for (record, frames) in threads[0].iter().zip(&frames) {
            assert_eq!(DEPOT.frames(*record), frames);
        }
        let mut numbers = threads[0].clone();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), frames.len());
    }

    fn empty(used: u32) -> Depot {
        Depot {
            lists: [const { AtomicU32::new(0) }; HASH_BUCKETS],
            pieces: [const { AtomicPtr::new(null_mut()) }; TABLE_CHUNKS],
            used: AtomicU32::new(used),
        }
    }

    #[test]
    fn call_stack_record_is_found_by_hash_and_frames() {
        let depot = empty(HEADER);
        let at = depot.save(&[1, 2]).unwrap();
        // SAFETY: the record is complete, and begins with its hash.
        let hash = unsafe { depot.record(at).read() };
        let find = |hash, frames: [usize; 2]| depot.find(at, 0, hash, &frames);
        assert_eq!([find(hash, [1, 2]), find(hash ^ 1, [1, 2]), find(hash, [1, 3])], [Some(at), None, None]);
        let saved = (0..1000).filter_map(|n| depot.save(&[n])).count();
        let used = depot.lists.iter().filter(|list| list.load(Relaxed) > 0).count();
        assert!(saved == 1000 && used > 900, "{saved} records in {used} lists");
    }

    /// A record must not cross the boundary of two pieces, and a full table must be reported.
    #[test]
    fn full_call_stack_table_is_reported() {
        let depot = empty(WORDS_PER_TABLE_CHUNK - 3);
        let at = depot.save(&[1, 2]).unwrap();
        assert_eq!((at, depot.frames(at)), (WORDS_PER_TABLE_CHUNK, &[1, 2][..]));
        depot.used.store(WORDS_PER_TABLE_CHUNK * TABLE_CHUNKS as u32 - 4, Relaxed);
        let last = depot.save(&[3, 4]).unwrap();
        assert_eq!(
            (depot.save(&[5]), depot.save(&[3, 4]), depot.save(&[1, 2])),
            (None, Some(last), Some(at))
        );
    }

    #[cfg(feature = "stacks")]
    #[test]
    fn saved_call_stack_names_the_calling_function() {
        #[inline(never)]
        fn callee_saves_the_call_stack() -> CallStack {
            core::hint::black_box(CallStack::save())
        }
        // All call stacks come from one call site, because `black_box` prevents loop unrolling.
        let stacks: Vec<_> = (0..core::hint::black_box(3)).map(|_| callee_saves_the_call_stack()).collect();
        assert!(stacks.iter().all(|stack| *stack == stacks[0] && *stack != CallStack::NONE), "{stacks:?}");
        assert_ne!(core::hint::black_box(CallStack::save()), stacks[0]);
        let text = stacks[0].to_string();
        assert!(
            text.lines().next().is_some_and(|line| line.contains("callee_saves_the_call_stack")),
            "{text}"
        );
        assert_eq!(CallStack::from_number(stacks[0].number()), stacks[0]);
        // A malloc may have called this code, so neither a call stack nor symbols are available
        // here.
        let (inner, places) = run_once(|| (CallStack::save(), stacks[0].to_string())).unwrap();
        assert_eq!(inner, CallStack::NONE);
        // A static program has no loader that knows the code's offset.
        let place = if cfg!(target_feature = "crt-static") { "  0x" } else { "+0x" };
        assert!(places.contains(place) && !places.contains("callee_saves_the_call_stack"), "{places}");
    }
}
