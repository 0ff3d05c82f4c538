//! Pressure events on systems other than Linux, which do not have them.

use super::Psi;
use std::io;

/// An uninhabited type, because these systems have no pressure to watch.
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

/// Waits for the next event of `watched`, of whose type no value exists on these systems.
pub(crate) fn next(watched: &Watched, _: &io::PipeReader) -> bool {
    match *watched {}
}
