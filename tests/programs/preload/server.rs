//! A server process that runs as long as a test needs it.

use super::text;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::Duration;
use uslab_tests::libuslab;

/// The longest time, in tenths of a second, for which a test waits for an event that should happen immediately. If a
/// server hangs, its test fails after this time has passed.
const TIMEOUT: u32 = 600;

pub(crate) struct Server {
    child: Child,
    stop: Command,
    errors: PathBuf,
    with_library: bool,
}

impl Server {
    /// Starts the server in the foreground; `with_library` decides if the library is preloaded. `stop` is the command
    /// that ends the server.
    pub(crate) fn start(mut command: Command, stop: Command, dir: &Path, with_library: bool) -> Self {
        let errors = dir.join("stderr");
        command.stdout(File::create(dir.join("stdout")).unwrap()).stderr(File::create(&errors).unwrap());
        if with_library {
            command.env("LD_PRELOAD", libuslab()).env("USLAB_OPTIONS", "check=1,stats=1");
        }
        Server { child: command.spawn().expect("the program must start"), stop, errors, with_library }
    }

    /// Waits until the function `is_met` returns `true`.
    #[track_caller]
    pub(crate) fn wait_until(&mut self, condition: &str, is_met: impl Fn() -> bool) {
        for _ in 0..TIMEOUT {
            if is_met() {
                return;
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("{condition}: the server ended: {status}\n{}", self.errors());
            }
            sleep(Duration::from_millis(100));
        }
        panic!("{condition}: the condition did not hold within {} s\n{}", TIMEOUT / 10, self.errors());
    }

    /// Stops the server by its stop command. Returns the number of server processes that printed a statistics table of
    /// their caches.
    #[track_caller]
    pub(crate) fn end(mut self) -> usize {
        let stop_output = self.stop.output().expect("the program must start");
        assert!(stop_output.status.success(), "{}", text(&stop_output.stderr));
        let status = (0..TIMEOUT).find_map(|_| {
            sleep(Duration::from_millis(100));
            self.child.try_wait().unwrap()
        });
        let errors = self.errors();
        assert!(status.is_some_and(|status| status.success()), "{status:?}\n{errors}");
        assert!(!errors.contains("uslab: "), "{errors}");
        let tables = errors.matches("\nmalloc-64 ").count();
        assert_eq!(tables > 0, self.with_library, "{errors}");
        tables
    }

    fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // A test failed. The server is first stopped in order, because it has children.
            let _ = self.stop.output();
            sleep(Duration::from_secs(1));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
