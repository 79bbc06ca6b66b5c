//! The event loop of one thread.

use std::{
    cell::Cell,
    future::Future,
    io,
    num::NonZeroU16,
    os::fd::OwnedFd,
    rc::Rc,
    sync::Arc,
    task::Wake as _,
    time::{Duration, Instant},
};

use socket2::SockAddr;

use crate::{
    alarm::Alarm,
    chunk::Shelf,
    epoll::{self, Poller},
    executor::Executor,
    socket::tune,
    timer::{Deadline, Sleep, Timers},
    uring::{self, Ring},
};

/// How the thread talks to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// io_uring if the kernel allows it, else epoll.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// epoll.
    Epoll,
}

/// What a reactor is made with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How the thread talks to the kernel.
    pub mode: Mode,
    /// Receive buffers lent to links; a power of two.
    pub buffers: NonZeroU16,
    /// Bytes of each.
    pub buffer_len: usize,
    /// Bytes of the buffer for a peer that fills the lent ones.
    pub bulk_len: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            mode: Mode::Auto,
            buffers: NonZeroU16::new(128).expect("128 is not zero"),
            buffer_len: 16 * 1024,
            bulk_len: 256 * 1024,
        }
    }
}

/// The event loop of one thread: tasks, sockets and timers that never leave it. Cheap to clone.
#[derive(Clone)]
pub struct Reactor(Rc<Inner>);

struct Inner {
    executor: Executor,
    io: Io,
    timers: Rc<Timers>,
    shelf: Shelf,
    now: Cell<Instant>,
}

pub(crate) enum Io {
    Uring(Rc<Ring>),
    Epoll(Rc<Poller>),
}

/// Wakes a reactor from another thread.
#[derive(Clone)]
pub struct Remote(Arc<Alarm>);

impl Remote {
    /// Ends the wait of the reactor, so that it calls its `turn` function soon.
    pub fn wake(&self) {
        self.0.wake_by_ref();
    }
}

impl Reactor {
    /// Makes the event loop of the calling thread.
    ///
    /// # Errors
    /// When io_uring is asked for and the kernel forbids it, or when no descriptor is left.
    pub fn new(settings: &Settings) -> io::Result<Self> {
        let shelf = Shelf::new(settings.buffer_len, usize::from(settings.buffers.get()));
        let io = match settings.mode {
            Mode::IoUring => Io::Uring(Rc::new(Ring::new(settings)?)),
            Mode::Epoll => Io::Epoll(Rc::new(Poller::new(shelf.clone())?)),
            Mode::Auto => match Ring::new(settings) {
                Ok(ring) => Io::Uring(Rc::new(ring)),
                Err(_) => Io::Epoll(Rc::new(Poller::new(shelf.clone())?)),
            },
        };
        let executor = Executor::new(Arc::clone(io.alarm()));
        Ok(Self(Rc::new(Inner { executor, io, timers: Rc::default(), shelf, now: Cell::new(Instant::now()) })))
    }

    /// How this reactor talks to the kernel; never [`Mode::Auto`].
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.0.io {
            Io::Uring(_) => Mode::IoUring,
            Io::Epoll(_) => Mode::Epoll,
        }
    }

    /// The clock, read once per turn.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Instant {
        self.0.now.get()
    }

    /// Starts a task that lives until it returns or the reactor ends.
    pub fn spawn(&self, task: impl Future + 'static) {
        self.0.executor.spawn(task);
    }

    /// A deadline for one task, not set.
    #[must_use]
    pub fn deadline(&self) -> Deadline {
        Deadline::new(self.0.timers.clone())
    }

    /// Completes after `wait`.
    pub fn sleep(&self, wait: Duration) -> Sleep {
        Sleep::new(self.0.timers.clone(), Instant::now() + wait)
    }

    /// Wakes this reactor from other threads.
    #[must_use]
    pub fn remote(&self) -> Remote {
        Remote(Arc::clone(self.0.io.alarm()))
    }

    /// Runs tasks until `turn`, called once per round, says to stop; then drops all tasks.
    ///
    /// # Errors
    /// When waiting for events fails for another reason than a signal.
    pub fn run(&self, mut turn: impl FnMut() -> std::ops::ControlFlow<()>) -> io::Result<()> {
        let Inner { executor, io, timers, now, .. } = &*self.0;
        let _running = executor.run_here();
        while turn().is_continue() {
            // Tasks that tasks have just woken or begun run before the kernel is asked.
            let more = (0..TICKS_PER_TURN).all(|_| executor.tick());
            let timeout = if more { Some(Duration::ZERO) } else { timers.wait_from(now.get()) };
            io.turn(timeout)?;
            now.set(Instant::now());
            timers.fire(now.get());
        }
        executor.clear();
        Ok(())
    }

    /// Connects a new socket. Over TCP it sends small messages at once and notices a peer that is gone, as those of
    /// [`Listener::tcp`](crate::Listener::tcp) do.
    ///
    /// # Errors
    /// Those of `socket` and `connect`.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn connect(&self, address: SockAddr) -> io::Result<OwnedFd> {
        let socket = socket2::Socket::new(address.domain(), socket2::Type::STREAM, None)?;
        if address.is_ipv4() || address.is_ipv6() {
            tune(&socket, address.as_socket())?;
        }
        match &self.0.io {
            Io::Uring(ring) => uring::connect(ring.clone(), socket.into(), address).await,
            Io::Epoll(poller) => epoll::connect(poller.clone(), socket.into(), address).await,
        }
    }

    pub(crate) fn io(&self) -> &Io {
        &self.0.io
    }

    pub(crate) fn shelf(&self) -> &Shelf {
        &self.0.shelf
    }
}

/// So many times at most all tasks that can go on do so before the kernel is asked again.
const TICKS_PER_TURN: u32 = 4;

impl Io {
    fn alarm(&self) -> &Arc<Alarm> {
        match self {
            Self::Uring(ring) => ring.alarm(),
            Self::Epoll(poller) => poller.alarm(),
        }
    }

    fn turn(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Uring(ring) => ring.turn(timeout),
            Self::Epoll(poller) => poller.turn(timeout),
        }
    }
}
