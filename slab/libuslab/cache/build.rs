//! The name by which programs that are linked with the library ask for it: see the `Makefile`.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libuslab-cache.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
