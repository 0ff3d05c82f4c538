//! Checks what pages, manifests and sources say about the project.
#![cfg(not(any(loom, shuttle, uslab_heap, uslab_no_rseq)))]

mod documents;
mod imports;
mod programs;
mod surface;
