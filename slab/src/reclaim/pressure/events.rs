//! Pressure events on Linux: a watcher writes a trigger to a file, which becomes ready at each event.

use super::Psi;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};

pub(crate) type Watched = OwnedFd;

impl Psi {
    /// Starts watching for memory pressure.
    ///
    /// # Errors
    /// Fails if the file does not exist, or if the kernel rejects the trigger. The error names the file.
    pub(crate) fn watch(&self) -> io::Result<Watched> {
        let with_path =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", self.path.display()));
        let mut file = OpenOptions::new().read(true).write(true).open(&self.path).map_err(with_path)?;
        let trigger = format!("some {} {}\0", self.stall.as_micros(), self.window.as_micros());
        file.write_all(trigger.as_bytes()).map_err(with_path)?;
        Ok(file.into())
    }
}

/// Waits for the next event of `watched`. Returns `false` once `stop` is closed or broken, or if no further event can
/// happen.
pub(crate) fn next(watched: &Watched, stop: &io::PipeReader) -> bool {
    loop {
        let mut fds =
            [PollFd::new(watched.as_fd(), PollFlags::POLLPRI), PollFd::new(stop.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return false,
        }
        let seen = |fd: &PollFd<'_>| fd.revents().unwrap_or(PollFlags::empty());
        if !seen(&fds[1]).is_empty() || seen(&fds[0]).intersects(PollFlags::POLLERR | PollFlags::POLLNVAL) {
            return false;
        }
        if seen(&fds[0]).contains(PollFlags::POLLPRI) {
            return true;
        }
    }
}
