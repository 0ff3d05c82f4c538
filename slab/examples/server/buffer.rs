//! Bytes on their way from or to a client.

use allocator_api2_02::alloc::Allocator;
use allocator_api2_02::collections::TryReserveError;
use allocator_api2_02::vec::Vec;
use std::io;
use tokio::net::TcpStream;

/// The room for a read, and what is asked for at least, in bytes.
const ROOM: usize = 16 << 10;
/// What a buffer keeps at most when it goes back, in bytes.
const KEPT: usize = 64 << 10;

/// Adds bytes to what has room for them. (`extend_from_slice` of allocator-api2 0.2 copies byte by byte.)
///
/// # Panics
/// There is no room.
pub(crate) fn append<A: Allocator>(to: &mut Vec<u8, A>, bytes: &[u8]) {
    to.spare_capacity_mut()[..bytes.len()].write_copy_of_slice(bytes);
    // SAFETY: so many bytes behind the old ones were written just now.
    unsafe { to.set_len(to.len() + bytes.len()) };
}

/// A queue of bytes. Its memory comes with its first use and stays with it: what is constructed is kept.
pub(crate) struct Buffer<A: Allocator> {
    bytes: Vec<u8, A>,
    /// Where the queue begins.
    start: usize,
}

impl<A: Allocator> Buffer<A> {
    pub(crate) fn new_in(memory: A) -> Self {
        Self { bytes: Vec::new_in(memory), start: 0 }
    }

    /// As its next user should find it: empty, and no larger than usual.
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

    /// Takes `n` bytes away from the front.
    pub(crate) fn consume(&mut self, n: usize) {
        self.start += n;
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        }
    }

    /// Adds to the end.
    ///
    /// # Errors
    /// There is no memory; nothing is added then.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), TryReserveError> {
        self.reserve(bytes.len())?;
        append(&mut self.bytes, bytes);
        Ok(())
    }

    /// Room for `n` bytes.
    fn reserve(&mut self, n: usize) -> Result<(), TryReserveError> {
        if self.bytes.capacity() - self.bytes.len() >= n {
            return Ok(());
        }
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.try_reserve(n.max(ROOM))
    }

    /// Adds what the client has sent, as much as there is room for; `Ok(0)` if it will send nothing more.
    ///
    /// # Errors
    /// `WouldBlock` if it has sent nothing yet, `OutOfMemory` if there is no room; else as the socket.
    pub(crate) fn receive(&mut self, stream: &TcpStream) -> io::Result<usize> {
        self.reserve(ROOM).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let received = stream.try_read_buf(&mut self.bytes.spare_capacity_mut())?;
        // SAFETY: so many bytes behind the old ones were written just now.
        unsafe { self.bytes.set_len(self.bytes.len() + received) };
        Ok(received)
    }
}
