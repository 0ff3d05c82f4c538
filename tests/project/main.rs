//! Checks statements about the project in documents, manifests and sources.
#![cfg(not(any(loom, shuttle, uslab_heap, uslab_no_rseq)))]

mod documents;
mod imports;
mod programs;
mod surface;
