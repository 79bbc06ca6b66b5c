//! A primary and two streaming replicas behind one gateway: routes, lag, drains, crashes and promotions.

mod busy;
mod console;
mod failover;
mod faults;
mod load;
mod names;
mod policies;
mod routes;
mod stage;
mod storm;
