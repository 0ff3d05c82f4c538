//! What is said on standard error when the heap must not be used.

use core::fmt;
use std::io::Write as _;

/// Standard error, a line at a time and without the heap. What does not go out is lost: there is nobody to tell that it is closed.
pub(crate) struct Lines {
    line: [u8; 512],
    len: usize,
}

impl Lines {
    pub(crate) fn new() -> Self {
        Self { line: [0; 512], len: 0 }
    }
    fn flush(&mut self) {
        // No `eprintln!`: it panics when standard error is closed.
        let _ = std::io::stderr().write_all(&self.line[..self.len]);
        self.len = 0;
    }
}

impl fmt::Write for Lines {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes() {
            if self.len == self.line.len() {
                self.flush();
            }
            self.line[self.len] = byte;
            self.len += 1;
            if byte == b'\n' {
                self.flush();
            }
        }
        Ok(())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.flush();
    }
}
