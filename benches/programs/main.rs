//! Small programs that mostly allocate and free; they run with a malloc preloaded.
//!
//! Each program was written from the published description of a well-known allocator benchmark; its file names the
//! source. All programs call the C library's functions, and do a fixed amount of work with fixed seeds. Each program
//! checks its stored data, and fails if the allocator mixes up two blocks. On standard output, each program prints its
//! number of operations, which is the same for every allocator. On standard error, each program prints its largest
//! resident set.

mod alloc_test;
mod cache;
mod cfrac;
mod common;
mod glibc;
mod larson;
mod malloc_large;
mod mstress;
mod objects;
mod returns;
mod rptest;
mod xmalloc;
mod zeros;

use common::{Parameters, Program};
use std::process::ExitCode;

const PROGRAMS: [Program; 16] = [
    alloc_test::PROGRAM,
    cache::SCRATCH,
    cache::CACHE_THRASH,
    cfrac::PROGRAM,
    glibc::GLIBC_SIMPLE,
    glibc::THREAD,
    larson::PLAIN,
    larson::LARSON_SIZED,
    malloc_large::PROGRAM,
    mstress::PROGRAM,
    objects::PROGRAM,
    returns::PROGRAM,
    rptest::PROGRAM,
    xmalloc::PROGRAM,
    xmalloc::XMALLOC_ONE_SIZE,
    zeros::PROGRAM,
];

fn help() {
    println!(
        "usage: programs NAME [--quick] [--PARAMETER NUMBER]...\n\nDefaults are shown without and with --quick."
    );
    for program in &PROGRAMS {
        println!("\n{}: {}", program.name, program.about);
        for p in program.parameters {
            let default =
                if p.full_value == 0 { String::new() } else { format!(" [{}; {}]", p.full_value, p.quick) };
            println!("    --{:<14}{}{default}", p.name, p.about);
        }
    }
}

/// Returns the largest resident set of this process in KiB. Does not use `getrusage`, because a child process inherits
/// its parent's peak.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok())
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    if name == "--help" || name == "-h" {
        help();
        return ExitCode::SUCCESS;
    }
    let Some(program) = PROGRAMS.iter().find(|program| program.name == name) else {
        let names: Vec<_> = PROGRAMS.iter().map(|program| program.name).collect();
        eprintln!(
            "programs: unknown program {name:?}; expected one of {}; --help describes the programs",
            names.join(", ")
        );
        return ExitCode::from(2);
    };
    let parameters = match Parameters::parse(program, arguments) {
        Ok(parameters) => parameters,
        Err(error) => {
            eprintln!("programs: {error}");
            return ExitCode::from(2);
        }
    };
    let operations = (program.run)(&parameters);
    println!("{operations} operations");
    if let Some(peak) = peak() {
        eprintln!("peak {peak} KiB");
    }
    ExitCode::SUCCESS
}
