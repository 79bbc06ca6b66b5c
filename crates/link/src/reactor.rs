//! The event loop of one thread.

use std::{
    cell::Cell,
    future::Future,
    io,
    os::fd::OwnedFd,
    rc::Rc,
    sync::Arc,
    task::Wake as _,
    time::{Duration, Instant},
};

use socket2::SockAddr;

use crate::{
    buffer_pool::BufferPool,
    config::{IoMode, ReactorConfig},
    epoll::{self, Poller},
    eventfd::EventFdWaker,
    executor::Executor,
    tcp::set_tcp_options,
    timer::{Deadline, Sleep, Timers},
    uring::{self, Ring},
};

/// The event loop of one thread: tasks, sockets and timers that never leave it. Cheap to clone.
#[derive(Clone)]
pub struct Reactor(Rc<ReactorInner>);

struct ReactorInner {
    executor: Executor,
    io: ReactorBackend,
    io_uring_error: Option<io::Error>,
    timers: Rc<Timers>,
    buffer_pool: BufferPool,
    now: Cell<Instant>,
}

pub(crate) enum ReactorBackend {
    Uring(Rc<Ring>),
    Epoll(Rc<Poller>),
}

/// Wakes a reactor from another thread.
#[derive(Clone)]
pub struct ReactorWaker(Arc<EventFdWaker>);

impl ReactorWaker {
    /// Ends the wait of the reactor, so that it calls its `turn` function soon.
    pub fn wake(&self) {
        self.0.wake_by_ref();
    }
}

impl Reactor {
    /// Creates the event loop of the calling thread.
    ///
    /// # Errors
    /// io_uring is requested and the kernel forbids it, or no descriptor is left.
    pub fn new(config: &ReactorConfig) -> io::Result<Self> {
        let buffer_pool = BufferPool::new(config.buffer_len, usize::from(config.buffer_count.get()));
        let poller = || Poller::new(buffer_pool.clone()).map(|poller| ReactorBackend::Epoll(Rc::new(poller)));
        let (io, io_uring_error) = match config.mode {
            IoMode::IoUring => (ReactorBackend::Uring(Rc::new(Ring::new(config)?)), None),
            IoMode::Epoll => (poller()?, None),
            IoMode::Auto => match Ring::new(config) {
                Ok(ring) => (ReactorBackend::Uring(Rc::new(ring)), None),
                Err(error) => (poller()?, Some(error)),
            },
        };
        let executor = Executor::new(Arc::clone(io.eventfd()));
        let now = Cell::new(Instant::now());
        Ok(Self(Rc::new(ReactorInner { executor, io, io_uring_error, timers: Rc::default(), buffer_pool, now })))
    }

    /// Why [`IoMode::Auto`] did not choose io_uring; `None` if it did, or if the mode was requested.
    #[must_use]
    pub fn io_uring_error(&self) -> Option<&io::Error> {
        self.0.io_uring_error.as_ref()
    }

    /// The kernel interface in use; never [`IoMode::Auto`].
    #[must_use]
    pub fn mode(&self) -> IoMode {
        match self.0.io {
            ReactorBackend::Uring(_) => IoMode::IoUring,
            ReactorBackend::Epoll(_) => IoMode::Epoll,
        }
    }

    /// The time at the start of the turn.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Instant {
        self.0.now.get()
    }

    /// Spawns a task that lives until it returns or the reactor ends.
    pub fn spawn(&self, task: impl Future + 'static) {
        self.0.executor.spawn(task);
    }

    /// Creates a deadline for one task. It is not set.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        Deadline::new(self.0.timers.clone())
    }

    /// Completes after `wait`.
    pub fn sleep(&self, wait: Duration) -> Sleep {
        Sleep::new(self.0.timers.clone(), Instant::now() + wait)
    }

    /// Creates a handle that wakes this reactor from other threads.
    #[must_use]
    pub fn waker(&self) -> ReactorWaker {
        ReactorWaker(Arc::clone(self.0.io.eventfd()))
    }

    /// Runs tasks until `turn` returns `Break`, then drops all tasks. `turn` is called before each wait.
    ///
    /// # Errors
    /// Waiting for events fails for another reason than a signal.
    pub fn run(&self, mut turn: impl FnMut() -> std::ops::ControlFlow<()>) -> io::Result<()> {
        let ReactorInner { executor, io, timers, now, .. } = &*self.0;
        let _guard = executor.enter();
        while turn().is_continue() {
            // Tasks that were just woken or spawned run before the next system call.
            let more = (0..TICKS_PER_TURN).all(|_| executor.tick());
            let timeout = if more { Some(Duration::ZERO) } else { timers.wait_from(now.get()) };
            io.turn(timeout)?;
            now.set(Instant::now());
            timers.fire(now.get());
        }
        executor.clear();
        Ok(())
    }

    /// Connects a new socket. Over TCP it has `TCP_NODELAY` and keep-alive, like those of
    /// [`Listener::tcp`](crate::Listener::tcp).
    ///
    /// # Errors
    /// Errors of `socket` and `connect`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn connect(&self, address: SockAddr) -> io::Result<OwnedFd> {
        self.connect_with(address, |_| Ok(())).await
    }

    /// Like [`Reactor::connect`]; `prepare` sets options of the socket before it connects. Kernel buffers have to be set then,
    /// because the window scale is agreed on in the first segment (`tcp(7)`, `SO_RCVBUF`).
    ///
    /// # Errors
    /// Errors of `socket`, `prepare` and `connect`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn connect_with(
        &self,
        address: SockAddr,
        prepare: impl FnOnce(&socket2::Socket) -> io::Result<()>,
    ) -> io::Result<OwnedFd> {
        let socket = socket2::Socket::new(address.domain(), socket2::Type::STREAM, None)?;
        if address.is_ipv4() || address.is_ipv6() {
            set_tcp_options(&socket, address.as_socket())?;
        }
        prepare(&socket)?;
        match &self.0.io {
            ReactorBackend::Uring(ring) => uring::connect(ring.clone(), socket.into(), address).await,
            ReactorBackend::Epoll(poller) => epoll::connect(poller.clone(), socket.into(), address).await,
        }
    }

    pub(crate) fn io(&self) -> &ReactorBackend {
        &self.0.io
    }

    pub(crate) fn buffer_pool(&self) -> &BufferPool {
        &self.0.buffer_pool
    }
}

/// Limit of ticks between two waits.
const TICKS_PER_TURN: u32 = 4;

impl ReactorBackend {
    fn eventfd(&self) -> &Arc<EventFdWaker> {
        match self {
            Self::Uring(ring) => ring.eventfd(),
            Self::Epoll(poller) => poller.eventfd(),
        }
    }

    fn turn(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Uring(ring) => ring.turn(timeout),
            Self::Epoll(poller) => poller.turn(timeout),
        }
    }
}
