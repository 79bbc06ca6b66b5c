//! The balancer without a runtime, a clock or a network. Doc comments name the cases of the README (`BA-43`).

mod change;
mod drain;
mod fixture;
mod health;
mod outliers;
mod policies;
mod races;
mod slow_start;
mod waiting;
