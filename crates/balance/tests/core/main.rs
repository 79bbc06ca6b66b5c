//! The balancer without a runtime, a clock or a network. Each test is named after its number in the README's table.

mod change;
mod drain;
mod health;
mod house;
mod outliers;
mod races;
mod shares;
mod turns;
mod waiting;
