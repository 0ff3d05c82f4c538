//! Memory sources of the server: object caches, or `Box` and thus the program's allocator.

use super::buffer::Buffer;
use super::connection::Connection;
use super::store::Entry;
use allocator_api2_02::alloc::{Allocator, Global};
use std::error::Error;
use std::fmt::Write;
use std::ops::DerefMut;
use std::time::Duration;
use uslab::buddy::{PAGE_SIZE, PageConfig};
use uslab::magazine::Cpus;
use uslab::{AllocError, CacheBox, Config, Info, Limit, Malloc, ObjectCache, Reaper, Subsystem};

/// A source of memory for all data of clients and keys. A source is a reference, so the functions take it by value.
pub(crate) trait Memory: Copy + Send + Sync + 'static {
    /// Allocator for keys, values, tables, and the contents of buffers.
    type Bytes: Allocator + Copy + Send + Sync + 'static;
    /// An owned object, such as an entry, a buffer or a connection.
    type Object<T: Send + 'static>: DerefMut<Target = T> + Send;

    fn byte_allocator(self) -> Self::Bytes;
    fn alloc_entry(self) -> Result<Self::Object<Entry<Self::Bytes>>, AllocError>;
    fn alloc_buffer(self) -> Result<Self::Object<Buffer<Self::Bytes>>, AllocError>;
    /// Allocates a connection that has received no bytes yet. If the number of connections is at its limit, the call
    /// waits.
    fn alloc_connection(
        self,
    ) -> impl Future<Output = Result<Self::Object<Connection<Self>>, AllocError>> + Send;

    /// Returns lines for the `INFO` command; each line has a name, a colon, and numbers.
    fn info(self) -> String;
    /// Returns the table of caches in the format of the kernel's slabinfo.
    fn slabinfo(self) -> String;
    /// Returns the statistics of each heap, with the heap's name.
    fn heaps(self) -> Vec<(&'static str, Info)>;
}

/// The memory source that uses `Box`. The `Box` source has no memory limit. If the program's allocator fails, the
/// program aborts.
#[derive(Clone, Copy)]
pub(crate) struct Heap;

impl Memory for Heap {
    type Bytes = Global;
    type Object<T: Send + 'static> = Box<T>;

    fn byte_allocator(self) -> Global {
        Global
    }
    fn alloc_entry(self) -> Result<Box<Entry<Global>>, AllocError> {
        Ok(Box::new(Entry::new_in(Global)))
    }
    fn alloc_buffer(self) -> Result<Box<Buffer<Global>>, AllocError> {
        Ok(Box::new(Buffer::new_in(Global)))
    }
    async fn alloc_connection(self) -> Result<Box<Connection<Self>>, AllocError> {
        Ok(Box::new(Connection::new_in(Global)))
    }
    fn info(self) -> String {
        "memory:box\r\n".to_owned()
    }
    fn slabinfo(self) -> String {
        String::new()
    }
    fn heaps(self) -> Vec<(&'static str, Info)> {
        Vec::new()
    }
}

/// Interval between two passes of the reaper. After one interval, idle memory moves from magazines to slabs and per-CPU
/// pages; some intervals later it is decommitted.
const REAP_INTERVAL: Duration = Duration::from_millis(500);

/// The source of memory that uses object caches; they belong to two subsystems. The limit only applies to keys and
/// values, so a client can still connect at the limit, get the error, and delete a key. The server's caches exist until
/// the process exits.
pub(crate) struct Caches {
    data: Subsystem,
    clients: Subsystem,
    strings: &'static Malloc,
    entries: ObjectCache<Entry<&'static Malloc>>,
    buffers: ObjectCache<Buffer<&'static Malloc>>,
    connections: ObjectCache<Connection<&'static Caches>>,
    _reapers: [Reaper; 2],
}

impl Caches {
    /// Makes caches for about `connections` connections; the keys, the values and the hash table together take at most
    /// `limit` bytes. The function `as_asked` applies the command line options to the configurations of both
    /// subsystems.
    pub(crate) fn new(
        limit: Option<usize>,
        max_clients: Option<u32>,
        as_asked: impl Fn(Config) -> Config,
    ) -> Result<&'static Self, Box<dyn Error>> {
        let pages = PageConfig::default_for(Cpus::os());
        let data = Subsystem::new(as_asked(Config::new(match limit {
            Some(bytes) => pages.limit(bytes),
            None => pages,
        })))?;
        let clients = Subsystem::new(as_asked(Config::default()))?;
        let strings: &'static Malloc = Box::leak(Box::new(Malloc::new(&data)?));
        let buffered: &'static Malloc = Box::leak(Box::new(Malloc::new(&clients)?));
        let entries = ObjectCache::builder("entry").ctor(move || Entry::new_in(strings)).reset(Entry::reset);
        let buffers =
            ObjectCache::builder("buffer").ctor(move || Buffer::new_in(buffered)).reset(Buffer::reset);
        let connections = ObjectCache::builder("connection")
            .ctor(move || Connection::new_in(buffered))
            .reset(Connection::reset)
            .limit(Limit::Objects(max_clients.map_or(u64::MAX, u64::from)));
        let reap = |subsystem| Reaper::builder(REAP_INTERVAL).start(subsystem);
        Ok(Box::leak(Box::new(Self {
            entries: entries.build_in(&data)?,
            buffers: buffers.build_in(&clients)?,
            connections: connections.build_in(&clients)?,
            _reapers: [reap(&data)?, reap(&clients)?],
            strings,
            data,
            clients,
        })))
    }
}

impl Memory for &'static Caches {
    type Bytes = &'static Malloc;
    type Object<T: Send + 'static> = CacheBox<'static, T>;

    fn byte_allocator(self) -> &'static Malloc {
        self.strings
    }
    fn alloc_entry(self) -> Result<CacheBox<'static, Entry<&'static Malloc>>, AllocError> {
        self.entries.alloc()
    }
    fn alloc_buffer(self) -> Result<CacheBox<'static, Buffer<&'static Malloc>>, AllocError> {
        self.buffers.alloc()
    }
    async fn alloc_connection(self) -> Result<CacheBox<'static, Connection<Self>>, AllocError> {
        self.connections.acquire().await
    }

    /// The output omits caches that never had a slab.
    fn info(self) -> String {
        let mut text = "memory:uslab\r\n".to_owned();
        for (whose, subsystem) in [("data", &self.data), ("clients", &self.clients)] {
            let info = subsystem.info();
            for zone in &info.pages.zones {
                let backed = (zone.managed - zone.uncommitted - zone.discarded) as usize * PAGE_SIZE;
                let used = zone.allocated as usize * PAGE_SIZE;
                // Writing to a string does not fail.
                _ = write!(text, "{whose}:bytes_used={used},bytes_from_system={backed}\r\n");
            }
            let blocks = info.kmalloc_large.allocs - info.kmalloc_large.frees;
            _ = write!(text, "{whose}_blocks:used={blocks}\r\n");
            for cache in info.caches.iter().filter(|cache| cache.slabs_made > 0) {
                let (used, kept, slabs) = (cache.used, cache.in_magazines + cache.in_depot, cache.slabs);
                _ = write!(text, "{whose}_{}:used={used},kept={kept},slabs={slabs}\r\n", cache.name);
            }
        }
        text
    }
    fn slabinfo(self) -> String {
        format!("{}{}", self.data.slabinfo(), self.clients.slabinfo())
    }
    fn heaps(self) -> Vec<(&'static str, Info)> {
        vec![("data", self.data.info()), ("clients", self.clients.info())]
    }
}
