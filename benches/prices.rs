//! Measures the cost of each option of the malloc. Two small programs run under `libuslab.so` with one option at a
//! time, under the C library's malloc, and under any installed hardened mallocs.

use anyhow::Context;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use uslab_benches::{Bench, Column, Contender, Kind};

/// Environment variable that makes this process run a program: the value holds the program's name and its number of
/// operations.
const PROGRAM: &str = "PRICES_PROGRAM";

/// Values of `USLAB_OPTIONS` that are compared.
const OPTIONS: [&str; 16] = [
    "guard=0",
    "guard=500000",
    "guard=0,profile=512k",
    "guard=0,check=1",
    "guard=0,check=1,slab_debug=F",
    "guard=0,check=1,slab_debug=FZP",
    "guard=0,check=1,slab_debug=FZPU",
    "guard=0,random_order=1",
    "guard=0,zero_size=1",
    "guard=0,guard_pages=1",
    "guard=0,slab_guards=1",
    "guard=0,zero_on_free=1",
    "guard=0,zero_on_alloc=1",
    "guard=0,quarantine=128k",
    "guard=0,canaries=1",
    "harden=1",
];

/// Names of hardened mallocs, and the paths of their libraries in Debian or in their own builds.
const HARDENED_MALLOCS: [(&str, &[&str]); 2] = [
    (
        "scudo",
        &[
            "/usr/lib/llvm-19/lib/clang/19/lib/linux/libclang_rt.scudo_standalone-x86_64.so",
            "/usr/lib/llvm-16/lib/clang/16/lib/linux/libclang_rt.scudo_standalone-x86_64.so",
            "/usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.scudo_standalone-x86_64.so",
        ],
    ),
    ("hardened_malloc", &["/usr/local/lib/libhardened_malloc.so", "/usr/lib/libhardened_malloc.so"]),
];

/// Number of blocks that the second program holds at the same time.
const HELD_BLOCKS: usize = 2000;

/// Allocates memory, and writes its first byte.
///
/// # Panics
/// Panics if the allocation fails.
fn malloc(bytes: usize) -> *mut u8 {
    // SAFETY: `malloc` accepts any size.
    let memory = unsafe { libc::malloc(bytes) }.cast::<u8>();
    assert!(!memory.is_null(), "no memory");
    // SAFETY: the memory was just allocated, with at least one byte.
    unsafe { memory.write(1) };
    black_box(memory)
}
/// # Safety
/// `memory` came from [`malloc`] or is null, and is freed only once.
unsafe fn free(memory: *mut u8) {
    // SAFETY: by contract, `memory` is a block of `malloc`, or null, and is freed once.
    unsafe { libc::free(memory.cast()) };
}

/// Repeatedly allocates and frees a block of 100 bytes.
fn pairs(operations: u64) {
    for _ in 0..operations {
        // SAFETY: the memory was just allocated.
        unsafe { free(malloc(100)) };
    }
}
/// Repeatedly replaces random blocks by blocks of random sizes from 16 to 4,000 bytes.
fn replace_random_blocks(operations: u64) {
    let mut blocks = vec![null_mut(); HELD_BLOCKS];
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for _ in 0..operations {
        // The generator is xorshift64 (Marsaglia, 2003).
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let place = (random >> 32) as usize % HELD_BLOCKS;
        let memory = malloc(16 + (random as u32 % 3985) as usize);
        // SAFETY: the pointer is null, or was allocated by an earlier iteration, which stored it here.
        unsafe { free(std::mem::replace(&mut blocks[place], memory)) };
    }
    // SAFETY: each pointer is null, or was allocated above and is not freed yet.
    blocks.into_iter().for_each(|memory| unsafe { free(memory) });
}

/// Runs a program, and prints the CPU nanoseconds per operation and the largest resident set in KiB.
fn run_program(requested_program: &str) -> anyhow::Result<()> {
    let (name, operations) = requested_program.rsplit_once(' ').context("expected a name and a number")?;
    let (program, operations): (fn(u64), u64) =
        (if name == "in turn" { pairs } else { replace_random_blocks }, operations.parse()?);
    program(operations / 10);
    let clock = nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID;
    let before = clock.now()?;
    program(operations);
    let elapsed = std::time::Duration::from(clock.now()? - before);
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB")).context("VmHWM")?;
    println!("{} {}", elapsed.as_nanos() as f64 / operations as f64, peak.trim().parse::<u64>()?);
    Ok(())
}

/// Runs a program under the given malloc, in a separate process.
fn round(
    program: &str,
    operations: usize,
    library: Option<&Path>,
    options: &str,
) -> anyhow::Result<Vec<f64>> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(PROGRAM, format!("{program} {operations}")).env("USLAB_OPTIONS", options);
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    let output = command.output()?;
    anyhow::ensure!(output.status.success(), "{program} with {options:?}: {output:?}");
    let printed = String::from_utf8(output.stdout)?;
    Ok(printed.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

fn main() -> anyhow::Result<()> {
    if let Some(requested_program) = std::env::var_os(PROGRAM) {
        return run_program(&requested_program.to_string_lossy());
    }
    let mut bench = Bench::start(
        "prices",
        "CPU ns for a malloc and its free under each option, and the largest resident set",
    );
    let own_library = uslab_tests::libuslab();
    let mut subjects = vec![("the C library's".to_owned(), Kind::General, None, "")];
    subjects
        .extend(OPTIONS.map(|options| (options.to_owned(), Kind::Ours, Some(own_library.clone()), options)));
    for (name, places) in HARDENED_MALLOCS {
        match places.iter().map(PathBuf::from).find(|place| place.is_file()) {
            Some(library) => subjects.push((name.to_owned(), Kind::General, Some(library), "")),
            None => eprintln!("prices: skipped {name}: none of {places:?} exists"),
        }
    }
    for (program, full_count, description) in [
        ("in turn", 2_000_000, "100 bytes, in turn"),
        ("mixed", 500_000, "random sizes of 16 to 4,000 bytes at 2,000 random places"),
    ] {
        let operations = bench.scale(full_count);
        let contenders = subjects.iter().cloned().map(|(name, kind, library, options)| {
            let round = move || {
                round(program, operations, library.as_deref(), options).unwrap_or_else(|error| {
                    eprintln!("prices: {error:#}");
                    vec![]
                })
            };
            Contender::new(name, kind, round)
        });
        bench.row(program, description);
        bench.group(
            program,
            [Column::lower("CPU time", "ns"), Column::lower("peak", "KiB")],
            contenders.collect(),
        );
    }
    bench.run()
}
