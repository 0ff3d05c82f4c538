//! What the library says of itself to the dynamic linker: its name, as in the `Makefile`, and that it stays.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuslab-cache.so.0");
    // `dlclose` leaves it mapped: threads, signal handlers and objects that it gave out refer to it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
