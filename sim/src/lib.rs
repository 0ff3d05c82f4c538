//! The study side of `uslab`: kernel traces, their replay, and what can be measured on the way.

pub mod trace;
