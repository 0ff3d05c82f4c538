//! End-to-end tests, stress and real programs for uslab; and `check-all`, the runner behind `cargo check-all`.
