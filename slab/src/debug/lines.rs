//! Output to standard error without the heap.

use core::fmt;

/// Writer to standard error that writes one line at a time, and does not use the heap. A line that cannot be written is
/// lost.
pub(crate) struct Lines {
    line: [u8; 512],
    len: usize,
}

impl Lines {
    pub(crate) fn new() -> Self {
        Self { line: [0; 512], len: 0 }
    }
    fn flush(&mut self) {
        let line = &self.line[..self.len];
        // The write does not use `std`'s lock, which another thread may have held at a fork.
        #[cfg(unix)]
        // SAFETY: pointer and length describe the line.
        let _ = unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
        // This code does not use `eprintln!`, which panics if standard error is closed.
        #[cfg(not(unix))]
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line);
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
