//! Options of the process-wide malloc, from the environment: `USLAB_OPTIONS=stats=1,check=1,huge_pages=never`.
//!
//! | option | values | |
//! |---|---|---|
//! | `stats` | `0`, `1` | prints the table of caches at exit to standard error, in the format of `/proc/slabinfo` with [statistics](crate::Statistics) |
//! | `leaks` | `0`, `1` | reports unreachable objects at exit on standard error, by the call stack of their allocation (see [`leaks`](crate::report::leaks)); implies `slab_debug=FU`, unless that option is set |
//! | `check` | `0`, `1` | each free checks that its address is an object of its cache and in use (default: 1 in builds with debug assertions) |
//! | `slab_debug` | letters of `FZPUTA`, `:` and names of caches, `;` | debug checks by cache name, as Linux's `slab_debug`: see [`flags`](crate::debug::flags) |
//! | `guard` | a number | samples one in that many allocations of up to a page: a sample has a page between two inaccessible ones, and its errors, faults included, are reported with call stacks; `0` disables it. Default: [`Uslab::guard_every`](crate::Uslab::guard_every); 500,000 with `libuslab.so`; 1,000 with `guard_pages` |
//! | `guard_slots` | 1 to 512 | most samples in use at a time, 128 by default |
//! | `harden` | `0`, `1` | all of [`Harden::ALL`](crate::Harden::ALL) or nothing; the following options change it if they come later |
//! | `random_order`, `zero_on_free`, `zero_on_alloc`, `canaries`, `zero_size`, `guard_pages`, `slab_guards` | `0`, `1` | an option of [`Harden`]; each implies checked frees |
//! | `quarantine` | bytes, or with `k`, `m`, `g` | [`Harden::quarantine`]: freed objects of each cache in quarantine; `0` disables it |
//! | `harden_seed` | a number | seed of the random choices, instead of a secret: for tests |
//! | `huge_pages` | `system`, `advise`, `never` | see [`HugePages`] |
//! | `limit` | bytes, or with `k`, `m`, `g` | limit of blocks up to 4 MiB and mappings above together, kept freed ones included. As much address space is reserved for the blocks, 64 GiB by default |
//! | `huge_cache` | bytes, or with `k`, `m`, `g` | most freed mappings above 4 MiB that are kept for reuse, 256 MiB by default (see [`huge`](crate::huge)); `0` keeps none |
//! | `reap` | milliseconds | interval of a thread that frees unused memory (see [`reaper`](crate::reaper)); `0` for no thread. Default: [`Uslab::reap_every`](crate::Uslab::reap_every); no thread with `libuslab.so` |
//! | `dump` | a file | `libuslab.so` only: file for the statistics that a signal requests, see [`Dump`] |
//! | `profile` | bytes, or with `k`, `m`, `g` | `libuslab.so` only: a [heap profile](crate::profile) with that sampling rate, `512k` for instance; `dump` names its file, which ends in `.pb.gz` or `.folded`. The file has addresses; `uslab flame` and `pprof` look up their symbols |
//! | `dump_signal` | `USR1`, `USR2` | that signal; `USR2` by default |
//! | `record` | a file | `libuslab.so` only: records each call of malloc and free in that file, for `uslab replay`; all inlined paths are closed. If the file exists, the pid is appended to its name. The name cannot contain a comma |
//! | `record_limit` | bytes, or with `k`, `m`, `g` | largest size of a recording, 1 GiB by default |
//!
//! An unknown option or a bad value is reported on standard error and ignored, because an allocator's options should
//! not end a program. The options are read before any allocator exists, so the parser allocates no memory. Setuid
//! programs (`AT_SECURE`) ignore all options.

use crate::debug::flags::DebugRules;
use crate::debug::lines::Lines;
use crate::harden::Harden;
use crate::process::bootstrap;
use core::alloc::Layout;
use core::ffi::CStr;
use core::fmt::{self, Write};
use std::time::Duration;
use uslab_buddy::{HugePages, PAGE_SIZE};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) stats: bool,
    pub(crate) leaks: bool,
    pub(crate) check: Option<bool>,
    pub(crate) slab_debug: Option<&'static str>,
    pub(crate) harden: Harden,
    pub(crate) guard: Option<u32>,
    pub(crate) guard_slots: Option<u32>,
    pub(crate) huge_pages: HugePages,
    pub(crate) limit: Option<usize>,
    pub(crate) huge_cache: Option<usize>,
    pub(crate) reap: Option<Duration>,
    pub(crate) dump: Option<&'static [u8]>,
    pub(crate) dump_signal: DumpSignal,
    pub(crate) profile: Option<usize>,
    pub(crate) record: Option<&'static [u8]>,
    pub(crate) record_limit: Option<usize>,
}

/// Destination, format and signal of a statistics dump.
///
/// The file's extension selects the format: JSON for `.json`, and Prometheus text for `.prom`. For `.pb.gz`, the dump
/// is the heap profile in `pprof`'s format. For `.folded`, the dump is the live bytes as folded stacks. Heap profiles
/// and folded stacks contain addresses instead of symbols. Any other extension selects the format of `/proc/slabinfo`.
///
/// ```
/// use uslab::Uslab;
/// use uslab::options::DumpSignal;
///
/// # if cfg!(unix) {
/// // A user sets it in the shell.
/// // SAFETY: no other thread runs yet.
/// unsafe { std::env::set_var("USLAB_OPTIONS", "dump=/tmp/slabs-%p.json,dump_signal=USR1") };
/// let dump = Uslab.dump().ok_or("no dump is requested")?;
/// assert_eq!(dump.file, b"/tmp/slabs-%p.json");
/// assert_eq!(dump.signal, DumpSignal::Usr1);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Dump {
    /// Name of the dump's file, which cannot contain a comma. `%p` is replaced by the process's pid, and `%n` by the
    /// number of the dump, counted from one.
    pub file: &'static [u8],
    /// Signal that triggers the dump.
    pub signal: DumpSignal,
}

/// A signal without a predefined meaning that triggers a dump.
///
/// ```
/// use uslab::options::DumpSignal;
///
/// assert_eq!(DumpSignal::default(), DumpSignal::Usr2); // unless `dump_signal` is set
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DumpSignal {
    /// `SIGUSR1`.
    Usr1,
    /// `SIGUSR2`.
    #[default]
    Usr2,
}

/// Returns `true` if the program has rights that the user who set its environment may lack (setuid).
#[cfg(not(target_family = "wasm"))]
fn has_elevated_rights() -> bool {
    #[cfg(target_os = "linux")]
    // SAFETY: `getauxval` reads a constant of the process.
    return unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    #[cfg(all(unix, not(target_os = "linux")))]
    // SAFETY: these functions only read ids of the process.
    return unsafe { libc::getuid() != libc::geteuid() || libc::getgid() != libc::getegid() };
    #[cfg(not(unix))]
    return false;
}

const EXPECTED_OPTIONS: &str = "stats=0|1, leaks=0|1, check=0|1, slab_debug=FZPUTA[:CACHE..][;..], harden=0|1 or a part of it, guard=N, guard_slots=1..512, huge_pages=system|advise|never, limit=BYTES[k|m|g], huge_cache=BYTES[k|m|g], reap=MS, \
                        dump=FILE, dump_signal=USR1|USR2, profile=BYTES[k|m|g], record=FILE or record_limit=BYTES[k|m|g]";

/// Value of `USLAB_OPTIONS`, which is always `None` on WebAssembly, because it has no environment.
#[cfg(target_family = "wasm")]
fn environment() -> Option<&'static CStr> {
    None
}
/// Value of `USLAB_OPTIONS`, or `None` if the process must ignore it.
#[cfg(not(target_family = "wasm"))]
fn environment() -> Option<&'static CStr> {
    // This code does not use `std::env`, which allocates. SAFETY: the name ends in a NUL. As in any C program, no
    // other thread may change the environment concurrently.
    let value = unsafe { libc::getenv(c"USLAB_OPTIONS".as_ptr()) };
    if value.is_null() || has_elevated_rights() {
        return None;
    }
    // SAFETY: strings that the C library returns end in a NUL.
    Some(unsafe { CStr::from_ptr(value) })
}

impl Options {
    pub(crate) fn are_options_given() -> bool {
        environment().is_some()
    }

    pub(crate) fn from_environment() -> Self {
        let Some(text) = environment().and_then(|text| copy_text_permanently(text.to_bytes())) else {
            return Self::default();
        };
        Self::parse(text, |invalid| {
            print_message(format_args!(
                "uslab: USLAB_OPTIONS: `{}`: expected {EXPECTED_OPTIONS}; ignored",
                invalid.escape_ascii()
            ));
        })
    }

    pub(crate) fn dump(&self) -> Option<Dump> {
        self.dump.map(|file| Dump { file, signal: self.dump_signal })
    }
    /// File and byte limit of the requested recording.
    pub(crate) fn record(&self) -> Option<(&'static [u8], usize)> {
        Some((self.record?, self.record_limit.unwrap_or(1 << 30)))
    }

    fn parse(text: &'static [u8], mut on_invalid: impl FnMut(&[u8])) -> Self {
        let mut options = Self::default();
        for part in text.split(|byte| *byte == b',').filter(|part| !part.is_empty()) {
            if options.apply_option(part).is_none() {
                on_invalid(part);
            }
        }
        options
    }

    fn apply_option(&mut self, part: &'static [u8]) -> Option<()> {
        let (name, value) = part.split_at(part.iter().position(|byte| *byte == b'=')?);
        let flag = |value: &[u8]| match value {
            b"=0" => Some(false),
            b"=1" => Some(true),
            _ => None,
        };
        match name {
            b"stats" => self.stats = flag(value)?,
            b"leaks" => self.leaks = flag(value)?,
            b"check" => self.check = Some(flag(value)?),
            b"slab_debug" => {
                let text = core::str::from_utf8(&value[1..]).ok()?;
                DebugRules::of_static(text)?;
                self.slab_debug = Some(text);
            }
            b"huge_pages" => {
                self.huge_pages = match value {
                    b"=system" => HugePages::System,
                    b"=advise" => HugePages::Advise,
                    b"=never" => HugePages::Never,
                    _ => return None,
                };
            }
            b"harden" => {
                let seed = self.harden.seed;
                self.harden = Harden { seed, ..if flag(value)? { Harden::ALL } else { Harden::OFF } };
            }
            b"random_order" => self.harden.random_order = flag(value)?,
            b"zero_on_free" => self.harden.zero_on_free = flag(value)?,
            b"zero_on_alloc" => self.harden.zero_on_alloc = flag(value)?,
            b"canaries" => self.harden.canaries = flag(value)?,
            b"zero_size" => self.harden.zero_size = flag(value)?,
            b"guard_pages" => self.harden.guard_pages = flag(value)?,
            b"slab_guards" => self.harden.slab_guards = flag(value)?,
            b"guard" => self.guard = Some(u32::try_from(number(&value[1..])?).ok()?),
            b"guard_slots" => {
                let slots = number(&value[1..])?;
                self.guard_slots = Some((1..=512).contains(&slots).then_some(slots as u32)?);
            }
            b"quarantine" => self.harden.quarantine = if value == b"=0" { 0 } else { bytes(&value[1..])? },
            b"harden_seed" => self.harden.seed = Some(number(&value[1..])? as u64),
            b"huge_cache" => self.huge_cache = Some(if value == b"=0" { 0 } else { bytes(&value[1..])? }),
            b"limit" => self.limit = Some(bytes(&value[1..]).filter(|bytes| *bytes >= PAGE_SIZE)?),
            b"reap" => self.reap = Some(Duration::from_millis(number(&value[1..])? as u64)),
            b"dump" if value != b"=" => self.dump = Some(&value[1..]),
            b"dump_signal" => {
                self.dump_signal = match value {
                    b"=USR1" => DumpSignal::Usr1,
                    b"=USR2" => DumpSignal::Usr2,
                    _ => return None,
                };
            }
            b"profile" => self.profile = Some(bytes(&value[1..])?),
            b"record" if value != b"=" => self.record = Some(&value[1..]),
            b"record_limit" => self.record_limit = Some(bytes(&value[1..])?),
            _ => return None,
        }
        Some(())
    }
}

/// Copies a text of the environment permanently, because some programs overwrite this text to change their displayed
/// name.
fn copy_text_permanently(text: &[u8]) -> Option<&'static [u8]> {
    let copy = bootstrap::alloc(Layout::for_value(text))?;
    // SAFETY: the copy has `text.len()` bytes, and is never unmapped or shared.
    unsafe {
        copy.copy_from_nonoverlapping(core::ptr::NonNull::from(text).cast(), text.len());
        Some(core::slice::from_raw_parts(copy.as_ptr(), text.len()))
    }
}

/// Parses a size in bytes with an optional suffix, such as `64m`.
fn bytes(text: &[u8]) -> Option<usize> {
    let (digits, shift) = match text.split_last()? {
        (b'k', digits) => (digits, 10),
        (b'm', digits) => (digits, 20),
        (b'g', digits) => (digits, 30),
        _ => (text, 0),
    };
    number(digits)?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

fn number(digits: &[u8]) -> Option<usize> {
    // Only digits are accepted, whereas `parse` would also accept a sign.
    let text =
        core::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text?.parse().ok()
}

/// Writes a line to standard error in a single write, without using the heap.
pub(super) fn print_message(message: fmt::Arguments<'_>) {
    // If standard error is closed, the error cannot be reported.
    let _ = writeln!(Lines::new(), "{message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &'static str) -> (Options, Vec<String>) {
        let mut invalid = vec![];
        let options =
            Options::parse(text.as_bytes(), |part| invalid.push(String::from_utf8_lossy(part).into_owned()));
        (options, invalid)
    }

    #[test]
    fn unknown_options_are_reported_and_ignored() {
        assert_eq!(parse(""), (Options::default(), vec![]));
        let all = Options {
            stats: true,
            leaks: true,
            check: Some(false),
            slab_debug: Some("FZ:malloc-64;-"),
            harden: Harden { canaries: false, quarantine: 4096, seed: Some(7), ..Harden::ALL },
            guard: Some(1000),
            guard_slots: Some(64),
            huge_pages: HugePages::Never,
            limit: Some(64 << 20),
            huge_cache: Some(1 << 30),
            reap: Some(Duration::from_millis(250)),
            dump: Some(b"/tmp/a=%p.json"),
            dump_signal: DumpSignal::Usr1,
            profile: Some(512 << 10),
            record: Some(b"/tmp/a"),
            record_limit: Some(1 << 20),
        };
        let text = "stats=1,leaks=1,check=0,slab_debug=FZ:malloc-64;-,harden_seed=7,harden=1,canaries=0,quarantine=4k,guard=1000,guard_slots=64,huge_pages=never,limit=64m,huge_cache=1g,reap=250,dump=/tmp/a=%p.json,dump_signal=USR1,profile=512k,\
                    record=/tmp/a,record_limit=1m";
        assert_eq!(parse(text), (all, vec![]));
        let (options, invalid) = parse(
            "stat=1,stats=2,stats,limit=0,limit=4095,limit=k,limit=99999999999g,huge_pages=,stats=1,=,dump=,dump,dump_signal=KILL,reap=,reap=1s,reap,record=,record_limit=0,slab_debug=Q,guard=+5,limit=+64m",
        );
        assert_eq!(options, Options { stats: true, ..Options::default() });
        assert_eq!(invalid.len(), 20, "{invalid:?}");
        let (options, invalid) = parse("huge_cache=0,huge_cache=,huge_cache=-1,huge_cache");
        assert_eq!((options.huge_cache, invalid.len()), (Some(0), 3), "{invalid:?}");
    }
}
