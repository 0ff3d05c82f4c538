//! Objects that stay constructed: connections whose buffers, locks and registrations are reused.
//!
//! The example does the same work with the cache and with `Box`, and prints how many connections each of them
//! constructed.

use std::collections::HashMap;
use std::error::Error;
use uslab::sync::{Counter, Mutex};
use uslab::{ObjectCache, OwnedBox, object_cache};

static CONSTRUCTED_CONNECTIONS: Counter = Counter::new(0);

/// A connection is expensive to construct, so the cache constructs it only once.
struct Connection {
    peer: Mutex<Option<u32>>,
    input: Vec<u8>,
    headers: HashMap<String, String>,
}

impl Connection {
    fn new() -> Self {
        CONSTRUCTED_CONNECTIONS.add(1);
        Self {
            peer: Mutex::new(None),
            input: Vec::with_capacity(16 << 10),
            headers: HashMap::with_capacity(32),
        }
    }
    /// Resets the connection to the state of a new connection, but keeps its memory.
    fn reset(&mut self) {
        *self.peer.get_mut() = None;
        self.input.clear();
        self.headers.clear();
    }
    fn serve(&mut self, peer: u32) -> usize {
        *self.peer.get_mut() = Some(peer);
        self.input.extend_from_slice(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n");
        self.headers.insert("host".to_owned(), "example".to_owned());
        self.input.len() + self.headers.len()
    }
}

object_cache! {
    static CONNECTIONS: ObjectCache<Connection> =
        ObjectCache::builder("connection").ctor(Connection::new).reset(Connection::reset).build();
}

const REQUESTS: u32 = 10_000;
const OPEN_CONNECTIONS: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    // Threads own their connections without borrowing the cache.
    let threads: Vec<_> = (0..2)
        .map(|thread| {
            std::thread::spawn(move || {
                let mut open: Vec<OwnedBox<Connection>> = Vec::new();
                let mut served = 0;
                for request in 0..REQUESTS {
                    let mut connection = CONNECTIONS.get()?.alloc_owned()?;
                    assert!(connection.input.is_empty() && connection.input.capacity() == 16 << 10);
                    served += connection.serve(thread << 16 | request);
                    open.push(connection);
                    if open.len() == OPEN_CONNECTIONS {
                        open.clear();
                    }
                }
                Ok::<_, Box<dyn Error + Send + Sync>>(served)
            })
        })
        .collect();
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")?.map_err(|error| error.to_string())?;
    }
    let with_the_cache = CONSTRUCTED_CONNECTIONS.get();

    for request in 0..REQUESTS {
        let mut connection = Box::new(Connection::new());
        connection.serve(request);
    }
    println!(
        "With the cache, {} requests constructed {with_the_cache} connections; with Box, {REQUESTS} requests constructed {}",
        2 * REQUESTS,
        CONSTRUCTED_CONNECTIONS.get() - with_the_cache
    );
    let cache = CONNECTIONS.get()?;
    println!(
        "shrink destructs the free connections: {} slabs were freed, {} destructors ran",
        cache.shrink(),
        cache.info().destructed
    );
    Ok(())
}
