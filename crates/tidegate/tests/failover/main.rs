//! A primary and two streaming replicas behind one gateway: routing, replication lag, draining, crashes and promotions.

mod cluster;
mod dns;
mod full_pools;
mod load;
mod policies;
mod promotion;
mod random_faults;
mod replica_faults;
mod routes;
mod show_hosts;
