//! The example server, built with the C library's allocator.

#[path = "../../slab/examples/server/main.rs"]
mod server;

fn main() -> std::process::ExitCode {
    server::main()
}
