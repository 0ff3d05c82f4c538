//! Models of other allocators' policies. Each model is one file, whose documentation has the rules and their sources.

pub mod bonwick94;
pub mod magazines01;
pub mod sheaves;
pub mod slab;
pub mod slub;
pub mod uslab;
