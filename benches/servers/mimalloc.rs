//! The example server, built with mimalloc as its global allocator.

#[path = "../../slab/examples/server/main.rs"]
mod server;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    server::main()
}
