//! What the project says of itself, in pages, manifests and sources.
#![cfg(not(any(loom, shuttle, uslab_heap, uslab_no_rseq)))]

mod documents;
mod imports;
mod programs;
mod surface;
