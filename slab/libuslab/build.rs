//! Sets the link arguments: the library's soname, as in the `Makefile`; `-z nodelete`; and gcc's static unwinder.

use std::path::Path;
use std::process::Command;

/// Returns `true` if the linker finds the unwinder as an archive (`libgcc_eh.a`); toolchains with only clang do not
/// have it.
fn has_unwinder_archive() -> bool {
    let linker = std::env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    let found = Command::new(linker).arg("-print-file-name=libgcc_eh.a").output();
    // If the file does not exist, the compiler prints only the file's name.
    found.is_ok_and(|found| Path::new(String::from_utf8_lossy(&found.stdout).trim()).is_absolute())
}

fn main() {
    // The unwinder takes call stacks and contains panics. Linked from the archive, the unwinder adds 60 KiB to this
    // library. With a shared unwinder, the loader would map `libgcc_s.so.1` into each process, which takes ten
    // system calls. The whole archive is linked, because the linker arguments name the shared library first.
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu") && has_unwinder_archive() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--push-state,--whole-archive,-l:libgcc_eh.a,--pop-state");
    }
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuslab.so.0");
    // The library stays mapped after `dlclose`, because threads, signal handlers and allocated objects refer to it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
