//! How the layer is checked: models for loom, schedules for shuttle, both on one world; property tests on simulated CPUs; and that
//! the tutorial says what is so.

#[cfg(any(loom, uslab_models))]
mod models;
#[cfg(not(any(loom, shuttle)))]
mod properties;
#[cfg(shuttle)]
mod schedules;
#[cfg(loom)]
mod tutorial;
#[cfg(any(loom, shuttle, uslab_models))]
#[cfg_attr(shuttle, allow(dead_code, reason = "schedules use less of it than models"))]
mod world;
