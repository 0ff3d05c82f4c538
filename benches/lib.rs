//! Benchmarks of uslab, one file per question; see the README beside them.
