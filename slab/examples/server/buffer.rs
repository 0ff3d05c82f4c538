//! Bytes from or to a client.

use allocator_api2_02::alloc::Allocator;
use allocator_api2_02::collections::TryReserveError;
use allocator_api2_02::vec::Vec;
use std::io;
use tokio::net::TcpStream;

/// Least number of bytes of room for a read.
const ROOM: usize = 16 << 10;
/// Most bytes that a freed buffer keeps.
const KEPT: usize = 64 << 10;

/// Appends bytes to a vector with room for them. (`extend_from_slice` of allocator-api2 0.2 copies byte by byte.)
///
/// # Panics
/// If there is no room.
pub(crate) fn append<A: Allocator>(to: &mut Vec<u8, A>, bytes: &[u8]) {
    to.spare_capacity_mut()[..bytes.len()].write_copy_of_slice(bytes);
    // SAFETY: that many bytes behind the old ones were just written.
    unsafe { to.set_len(to.len() + bytes.len()) };
}

/// A queue of bytes. Its memory is allocated on first use and kept: the object stays constructed.
pub(crate) struct Buffer<A: Allocator> {
    bytes: Vec<u8, A>,
    /// Start of the queue.
    start: usize,
}

impl<A: Allocator> Buffer<A> {
    pub(crate) fn new_in(memory: A) -> Self {
        Self { bytes: Vec::new_in(memory), start: 0 }
    }

    /// Prepares the buffer for its next user: empty, and no larger than usual.
    pub(crate) fn reset(&mut self) {
        self.consume(self.len());
        if self.bytes.capacity() > KEPT {
            self.bytes.shrink_to(0);
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes `n` bytes from the front.
    pub(crate) fn consume(&mut self, n: usize) {
        self.start += n;
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        }
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// Memory is short; nothing is appended then.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), TryReserveError> {
        self.reserve(bytes.len())?;
        append(&mut self.bytes, bytes);
        Ok(())
    }

    /// Makes room for `n` bytes.
    fn reserve(&mut self, n: usize) -> Result<(), TryReserveError> {
        if self.bytes.capacity() - self.bytes.len() >= n {
            return Ok(());
        }
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.try_reserve(n.max(ROOM))
    }

    /// Appends what the client has sent, as far as there is room; `Ok(0)` if it will send nothing more.
    ///
    /// # Errors
    /// `WouldBlock` if it has sent nothing yet, `OutOfMemory` without room; else the socket's errors.
    pub(crate) fn receive(&mut self, stream: &TcpStream) -> io::Result<usize> {
        self.reserve(ROOM).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let received = stream.try_read_buf(&mut self.bytes.spare_capacity_mut())?;
        // SAFETY: that many bytes behind the old ones were just written.
        unsafe { self.bytes.set_len(self.bytes.len() + received) };
        Ok(received)
    }
}
