//! The example server on the C library's allocator.

#[path = "../../slab/examples/server/main.rs"]
mod server;

fn main() -> std::process::ExitCode {
    server::main()
}
