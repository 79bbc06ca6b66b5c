//! One core's sockets: a thread that owns its connections, their buffers and its deadlines.
//!
//! A proxy spends its time in the kernel, so what counts is how few system calls a message costs, and that no
//! message crosses threads. A [`Reactor`] is the event loop of one thread: an executor for tasks that never leave the
//! thread, completion-based I/O (io_uring) or readiness-based I/O (epoll, where io_uring is
//! forbidden), and timers. A [`Link`] is one connection on it, in plain text or under TLS.
//!
//! The contract:
//!
//! - A link has at most one receive under way and at most one unread [`Chunk`]; the peer is held back by TCP.
//! - A link that waits owns no buffer: the bytes arrive in a buffer lent by the thread, and what is kept for longer is
//!   copied into an allocation of its own size.
//! - A receive is never lost: nothing is dropped when a caller stops polling, so every `poll_*` function is cancel
//!   safe, and [`Link::poll_quiesce`] ends a receive without losing what it had already taken.
//!
//! # Example
//!
//! ```
//! use std::{cell::Cell, ops::ControlFlow, os::unix::net::UnixStream, rc::Rc};
//! use tidegate_link::{Link, Reactor, Settings};
//!
//! # fn main() -> std::io::Result<()> {
//! let reactor = Reactor::new(&Settings::default())?;
//! let (near, far) = UnixStream::pair()?;
//! let (mut asks, mut answers) = (Link::new(&reactor, near.into())?, Link::new(&reactor, far.into())?);
//! reactor.spawn(async move {
//!     let request = answers.read().await.expect("a request");
//!     answers.write(request);
//!     let _ = answers.flush().await;
//! });
//! let (done, remote) = (Rc::new(Cell::new(false)), reactor.remote());
//! let over = done.clone();
//! reactor.spawn(async move {
//!     asks.write(&b"hello"[..]);
//!     asks.flush().await.expect("a peer that reads");
//!     assert_eq!(&*asks.read().await.expect("an echo"), b"hello");
//!     over.set(true);
//!     // The loop asks whether to stop before it waits, so it is told that there is something to ask.
//!     remote.wake();
//! });
//! reactor.run(|| if done.get() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
//! # }
//! ```
//!
//! Unsafe code is in two rooms alone, `uring/ring` and `uring/buffers`, where memory is shared with the kernel.

mod alarm;
mod chunk;
mod epoll;
mod executor;
mod link;
mod listener;
mod reactor;
mod socket;
mod timer;
mod tls;
mod uring;

pub use chunk::Chunk;
pub use link::{Link, ParkedLink};
pub use listener::{Accepted, Acceptor, Address, FileAccess, Listener, is_abstract, kernel_path, unix_address};
pub use reactor::{Mode, Reactor, Remote, Settings};
pub use socket::Socket;
pub use timer::{Deadline, Sleep};
pub use tls::{TlsInfo, TlsSide};
