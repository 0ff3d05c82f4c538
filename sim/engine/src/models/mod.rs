//! Models of other allocators' policies. Each is one file, and says what its rules are and where they are from.

pub mod bonwick94;
pub mod magazines01;
pub mod sheaves;
pub mod slab;
pub mod slub;
pub mod uslab;
