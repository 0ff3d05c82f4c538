//! Checks of the magazine layer: scenarios for loom and shuttle, property tests on simulated CPUs, and a comparison of
//! the tutorial with the code.

#[cfg(loom)]
mod models;
#[cfg(not(any(loom, shuttle)))]
mod properties;
#[cfg(any(loom, shuttle))]
mod scenarios;
#[cfg(shuttle)]
mod schedules;
#[cfg(loom)]
mod tutorial;
#[cfg(any(loom, shuttle))]
#[cfg_attr(shuttle, allow(dead_code, reason = "schedules use less of it than models"))]
mod world;
