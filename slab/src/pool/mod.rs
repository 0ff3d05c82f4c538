//! Pools: objects of one size in memory that the caller chose, for one thread, without the machinery of a cache.
