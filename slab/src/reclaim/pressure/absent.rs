//! Pressure events on systems other than Linux, which do not support them.

use super::Psi;
use std::io;

/// An uninhabited type, because these systems have no pressure to watch.
#[derive(Debug)]
pub(crate) enum Watched {}

impl Psi {
    /// Starts watching for memory pressure.
    ///
    /// # Errors
    /// Always fails; the error names the missing file.
    pub(crate) fn watch(&self) -> io::Result<Watched> {
        let text = format!("{}: memory pressure is reported only on Linux", self.path.display());
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }
}

/// Waits for the next event of `watched`. No value of type `Watched` exists on systems other than Linux.
pub(crate) fn next(watched: &Watched, _: &io::PipeReader) -> bool {
    match *watched {}
}
