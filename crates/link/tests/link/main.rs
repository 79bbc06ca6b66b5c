//! Links against blocking peers, in both modes: io_uring (where the kernel allows it) and epoll.

mod buffers;
mod listeners;
mod park;
mod plain;
mod stage;
mod timers;
mod tls;
