//! Passes the compiler's version to the program, which prints the version with measured times. The program cannot find
//! out at run time which compiler built it.

use std::env::var;
use std::process::Command;

fn main() {
    let rustc = var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(rustc).arg("--version").output();
    let version =
        version.map_or_else(|_| String::new(), |said| String::from_utf8_lossy(&said.stdout).into_owned());
    let version = if version.trim().is_empty() { "an unknown compiler" } else { version.trim() };
    let level = var("OPT_LEVEL").unwrap_or_default();
    let flags = var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default().replace('\u{1f}', " ");
    let flags = if flags.is_empty() { "no flags".to_owned() } else { format!("flags {flags}") };
    println!("cargo::rustc-env=USLAB_COMPILER={version}, opt-level {level}, {flags}");
    println!("cargo::rerun-if-changed=build.rs");
}
