//! Tests the command `uslab` as a separate process, and replays of traces.
#![cfg(not(any(loom, shuttle, uslab_heap, uslab_no_rseq)))]

mod common;

mod all_traces;
mod bad_input;
mod callers;
mod cli;
mod course;
mod designs;
mod kernels;
mod lab;
mod lines;
mod page;
mod questions;
mod record;
mod samples;
mod scale;
mod shrinks;
mod slabs;
mod story;
mod stress;
mod study;
mod sweep;
mod texts;
mod watch;
