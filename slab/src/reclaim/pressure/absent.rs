//! Pressure events on systems other than Linux; these systems have no pressure events.

use super::Psi;
use std::io;

/// Uninhabited, because no pressure can be watched.
#[derive(Debug)]
pub(crate) enum Watched {}

impl Psi {
    /// Starts watching for pressure.
    ///
    /// # Errors
    /// Always fails; the error names the file.
    pub(crate) fn watch(&self) -> io::Result<Watched> {
        let text = format!("{}: memory pressure is reported only on Linux", self.path.display());
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }
}

/// Waits for the next event of `watched`; on these systems, no value of its type exists.
pub(crate) fn next(watched: &Watched, _: &io::PipeReader) -> bool {
    match *watched {}
}
