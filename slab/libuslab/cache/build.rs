//! Sets the link arguments: the library's soname, as in the `Makefile`, and `-z nodelete`.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuslab-cache.so.0");
    // The library stays mapped after `dlclose`, because threads, signal handlers and allocated objects refer to it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
