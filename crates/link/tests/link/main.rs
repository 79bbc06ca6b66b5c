//! Links against blocking peers, on io_uring (where the kernel allows it) and on epoll.

mod buffers;
mod listeners;
mod park;
mod plain;
mod stage;
mod timers;
mod tls;
