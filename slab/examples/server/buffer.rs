//! A queue of bytes received from a client or to be sent to a client.

use allocator_api2_02::alloc::Allocator;
use allocator_api2_02::collections::TryReserveError;
use allocator_api2_02::vec::Vec;
use std::io;
use tokio::net::TcpStream;

/// Minimum number of free bytes in the buffer for a read.
const MIN_READ_ROOM: usize = 16 << 10;
/// Maximum capacity in bytes that a freed buffer keeps.
const MAX_KEPT_BUFFER_BYTES: usize = 64 << 10;

/// Appends bytes to a vector that has enough capacity for them. `extend_from_slice` of allocator-api2 0.2 would copy
/// byte by byte.
///
/// # Panics
/// Panics if the vector's capacity is too small.
pub(crate) fn append<A: Allocator>(to: &mut Vec<u8, A>, bytes: &[u8]) {
    to.spare_capacity_mut()[..bytes.len()].write_copy_of_slice(bytes);
    // SAFETY: this number of bytes after the old bytes was just written.
    unsafe { to.set_len(to.len() + bytes.len()) };
}

/// A queue of bytes of one connection. The queue's memory is allocated on first use and then kept, so the object stays
/// constructed.
pub(crate) struct Buffer<A: Allocator> {
    bytes: Vec<u8, A>,
    /// Index in `bytes` of the first byte of the queue.
    start: usize,
}

impl<A: Allocator> Buffer<A> {
    pub(crate) fn new_in(memory: A) -> Self {
        Self { bytes: Vec::new_in(memory), start: 0 }
    }

    /// Prepares the buffer for its next user: empties it, and frees excess memory.
    pub(crate) fn reset(&mut self) {
        self.consume(self.len());
        if self.bytes.capacity() > MAX_KEPT_BUFFER_BYTES {
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

    /// Removes `n` bytes from the front of the queue.
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
    /// If memory is short, appends nothing and returns an error.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), TryReserveError> {
        self.reserve(bytes.len())?;
        append(&mut self.bytes, bytes);
        Ok(())
    }

    fn reserve(&mut self, n: usize) -> Result<(), TryReserveError> {
        if self.bytes.capacity() - self.bytes.len() >= n {
            return Ok(());
        }
        self.bytes.drain(..self.start);
        self.start = 0;
        self.bytes.try_reserve(n.max(MIN_READ_ROOM))
    }

    /// Appends as many bytes from the client's socket as the buffer has room for. Returns `Ok(0)` if the client has
    /// closed its sending side.
    ///
    /// # Errors
    /// Returns `WouldBlock` if no bytes have arrived, `OutOfMemory` if there is no room, and any error of the socket.
    pub(crate) fn receive(&mut self, stream: &TcpStream) -> io::Result<usize> {
        self.reserve(MIN_READ_ROOM).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let received = stream.try_read_buf(&mut self.bytes.spare_capacity_mut())?;
        // SAFETY: this number of bytes after the old bytes was just written.
        unsafe { self.bytes.set_len(self.bytes.len() + received) };
        Ok(received)
    }
}
