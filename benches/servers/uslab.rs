//! The example server, built with `Uslab`, whose reaper returns memory as the preload library's reaper does.

#[path = "../../slab/examples/server/main.rs"]
mod server;

#[global_allocator]
static ALLOCATOR: uslab::Uslab = uslab::Uslab;

fn main() -> std::process::ExitCode {
    uslab::Uslab.reap_every(std::time::Duration::from_millis(500));
    server::main()
}
