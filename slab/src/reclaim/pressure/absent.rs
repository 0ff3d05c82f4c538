//! Pressure events on systems without them.

use super::Psi;
use std::io;

/// There is nothing to watch.
#[derive(Debug)]
pub(crate) enum Watched {}

impl Psi {
    /// Starts watching.
    ///
    /// # Errors
    /// Always; the error names the file.
    pub(crate) fn watch(&self) -> io::Result<Watched> {
        let text = format!("{}: memory pressure is reported only on Linux", self.path.display());
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }
}

/// Waits for the next event of `watched`.
pub(crate) fn next(watched: &Watched, _: &io::PipeReader) -> bool {
    match *watched {}
}
