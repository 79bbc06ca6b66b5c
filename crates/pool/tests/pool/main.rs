//! The behaviour of a pool, with connections that are numbers and cores that are stepped by hand or run as threads.

mod fake;

mod control;
mod cores;
mod model;
mod one_core;
mod stress;
mod upkeep;
