//! Behaviour of a pool with fake connections; cores run step by step or as threads.

mod fake;

mod control;
mod cores;
mod maintenance;
mod model;
mod one_core;
mod stress;
