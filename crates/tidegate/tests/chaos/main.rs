//! Random load with random faults under a printed seed, and invariants that hold at the end.
//!
//! `TIDEGATE_SEED` repeats a run.

mod quiescence;
mod reply_routing;
