//! Sockets of one core: a thread that owns its connections, their buffers and its deadlines.
//!
//! A proxy spends most of its time in the kernel. Its cost is therefore the number of system calls per message, and the
//! number of times that a message crosses threads. A [`Reactor`] is the event loop of one thread: an executor for tasks
//! that never leave the thread, completion-based I/O (io_uring) or readiness-based I/O (epoll, where io_uring is
//! forbidden), and timers. A [`Link`] is one connection on it, in plain text or under TLS.
//!
//! The contract:
//!
//! - A link has at most one receive in flight and at most one unread [`Chunk`]; TCP flow control holds the peer back.
//! - An idle link owns no buffer. Bytes arrive in a buffer lent by the thread, and [`Chunk::park`] copies those that
//!   are kept into an allocation of their own size.
//! - Received bytes are never lost when a caller stops polling. Every `poll_*` function is cancel safe, and
//!   [`Link::poll_quiesce`] cancels a receive and keeps the bytes that it has taken.
//!
//! # Example
//!
//! ```
//! use std::{cell::Cell, ops::ControlFlow, os::unix::net::UnixStream, rc::Rc};
//! use tidegate_link::{Link, Reactor, ReactorConfig};
//!
//! # fn main() -> std::io::Result<()> {
//! let reactor = Reactor::new(&ReactorConfig::default())?;
//! let (near, far) = UnixStream::pair()?;
//! let (mut client, mut server) = (Link::new(&reactor, near.into())?, Link::new(&reactor, far.into())?);
//! reactor.spawn(async move {
//!     let request = server.read().await.expect("a request");
//!     server.write(request);
//!     let _ = server.flush().await;
//! });
//! let (done, waker) = (Rc::new(Cell::new(false)), reactor.waker());
//! let is_done = done.clone();
//! reactor.spawn(async move {
//!     client.write(&b"hello"[..]);
//!     client.flush().await.expect("an open connection");
//!     assert_eq!(&*client.read().await.expect("an echo"), b"hello");
//!     is_done.set(true);
//!     // The loop calls its closure before each wait: wake it, so that it does not block.
//!     waker.wake();
//! });
//! reactor.run(|| if done.get() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
//! # }
//! ```
//!
//! Unsafe code is in `uring/ring` and `uring/buffers` only, where memory is shared with the kernel.

mod buffer_pool;
mod chunk;
mod config;
mod epoll;
mod eventfd;
mod executor;
mod link;
mod listener;
mod reactor;
mod socket;
mod splice;
mod tcp;
mod timer;
mod tls;
mod uring;
mod within;

pub use chunk::Chunk;
pub use config::{IoMode, ReactorConfig};
pub use link::{Link, ParkedLink};
pub use listener::{
    AcceptedSocket, Acceptor, Listener, PeerAddress, UnixSocketOptions, canonical, is_abstract, kernel_path,
    unix_address,
};
pub use reactor::{Reactor, ReactorWaker};
pub use socket::Socket;
pub use splice::Splice;
pub use timer::{Deadline, Sleep};
pub use tls::{TlsInfo, TlsSide};
pub use within::{Within, within};
