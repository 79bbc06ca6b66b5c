//! Sockets on epoll, where io_uring is forbidden: edge-triggered, registered once for their lifetime.
//!
//! A socket counts as readable and writable until a call returns `EAGAIN`. A receive that did not fill its buffer has
//! emptied the socket, so a request and its reply cost two receives, two sends and no `epoll_ctl`.
//!
//! Sends wait until all tasks of the turn have run, and then leave one after the other. A peer that is woken earlier
//! can preempt the thread while other clients still wait, and its response would wake the thread for one message only.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::OwnedFd,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    net::{RecvFlags, SendFlags, recv, send},
};
use socket2::SockAddr;

use crate::{buffer_pool::BufferPool, chunk::Chunk, eventfd::EventFdWaker};

/// The epoll instance of one thread.
pub(crate) struct Poller {
    epoll: OwnedFd,
    buffer_pool: BufferPool,
    events: RefCell<Vec<epoll::Event>>,
    registrations: RefCell<Registrations>,
    /// Sockets with data to send before the next wait.
    outbox: RefCell<Vec<Rc<SocketState>>>,
    eventfd: Arc<EventFdWaker>,
    /// Number of waits so far.
    turns: Cell<u64>,
}

/// Readiness and waiting tasks of one registered socket.
#[derive(Default)]
struct Registrations {
    slots: Vec<Registration>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Registration {
    /// Distinguishes this use of the slot from earlier ones, whose events may still arrive.
    generation: u32,
    readable: bool,
    writable: bool,
    /// The peer has closed: no further edge will come, so readiness is never reset.
    hung_up: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The sends that continue when the socket is writable.
    blocked: Option<Rc<SocketState>>,
}

/// A descriptor, and the chunk to be sent on it.
struct SocketState {
    fd: OwnedFd,
    token: u64,
    chunk: Cell<Option<Chunk>>,
    sending: Cell<Sending>,
    /// Whether the outbox contains this socket.
    is_queued: Cell<bool>,
}

/// The state of a socket's chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sending {
    /// There is no chunk.
    #[default]
    Idle,
    /// The chunk is sent before the next wait, or when a task polls it.
    Queued,
    /// The socket buffer is full; the chunk waits for writability.
    Blocked,
}

impl SocketState {
    fn new(fd: OwnedFd, token: u64) -> Self {
        Self { fd, token, chunk: Cell::default(), sending: Cell::default(), is_queued: Cell::default() }
    }
}

/// The token of the eventfd; no registration has it.
const EVENTFD: u64 = u64::MAX;

impl Poller {
    pub(crate) fn new(buffer_pool: BufferPool) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let eventfd = EventFdWaker::new()?;
        epoll::add(
            &epoll,
            eventfd.fd(),
            epoll::EventData::new_u64(EVENTFD),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        let events = RefCell::new(Vec::with_capacity(256));
        let (registrations, outbox, turns) = (RefCell::default(), RefCell::default(), Cell::default());
        Ok(Self { epoll, buffer_pool, events, registrations, outbox, eventfd, turns })
    }

    pub(crate) fn eventfd(&self) -> &Arc<EventFdWaker> {
        &self.eventfd
    }

    /// Sends the queued chunks, and waits for events unless another thread has woken this one since the last turn.
    pub(crate) fn turn(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.send_queued();
        let timeout = if self.eventfd.begin_wait() { Some(Duration::ZERO) } else { timeout };
        let timeout = timeout.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        let mut events = self.events.borrow_mut();
        events.clear();
        let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        self.eventfd.end_wait();
        self.turns.set(self.turns.get() + 1);
        match waited {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in events.drain(..) {
            self.dispatch(event.data.u64(), event.flags);
        }
        Ok(())
    }

    fn dispatch(&self, token: u64, flags: epoll::EventFlags) {
        use epoll::EventFlags as F;
        if token == EVENTFD {
            self.eventfd.drain();
            return;
        }
        let (slot, generation) = split_token(token);
        let mut registrations = self.registrations.borrow_mut();
        let Some(registration) = registrations.slots.get_mut(slot as usize).filter(|w| w.generation == generation)
        else {
            return;
        };
        registration.hung_up |= flags.intersects(F::RDHUP | F::HUP | F::ERR);
        if flags.intersects(F::IN | F::RDHUP | F::HUP | F::ERR) {
            registration.readable = true;
            if let Some(waker) = registration.reader.take() {
                waker.wake();
            }
        }
        if flags.intersects(F::OUT | F::HUP | F::ERR) {
            registration.writable = true;
            match registration.blocked.take() {
                None => registration.writer.take().map_or((), Waker::wake),
                Some(state) => {
                    drop(registrations);
                    self.send(&state);
                }
            }
        }
    }

    /// Queues the chunk for the next wait.
    fn queue(&self, state: &Rc<SocketState>) {
        if !state.is_queued.replace(true) {
            self.outbox.borrow_mut().push(Rc::clone(state));
        }
    }

    fn send_queued(&self) {
        let mut outbox = self.outbox.take();
        for state in outbox.drain(..) {
            state.is_queued.set(false);
            if state.sending.get() == Sending::Queued {
                self.send(&state);
            }
        }
        // Keeps the allocation.
        self.outbox.replace(outbox);
    }

    /// Sends until the chunk is empty or the socket buffer is full. Returns whether the chunk is empty.
    fn send(&self, state: &Rc<SocketState>) -> bool {
        let Some(mut chunk) = state.chunk.take() else { return true };
        loop {
            match send(&state.fd, &chunk, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) if sent == chunk.len() => break,
                Ok(sent) => chunk.advance(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    state.chunk.set(Some(chunk));
                    state.sending.set(Sending::Blocked);
                    self.with_registration(state.token, |registration| registration.blocked = Some(Rc::clone(state)));
                    return false;
                }
                Err(_) => {
                    // The next receive reports the end of the connection.
                    let _ = rustix::net::shutdown(&state.fd, rustix::net::Shutdown::Both);
                    break;
                }
            }
        }
        // No task waits for a chunk that was sent without blocking.
        if state.sending.take() == Sending::Blocked
            && let Some(waker) = self.with_registration(state.token, |registration| registration.writer.take())
        {
            waker.wake();
        }
        true
    }

    fn register(&self, fd: &OwnedFd, flags: epoll::EventFlags) -> io::Result<u64> {
        let mut registrations = self.registrations.borrow_mut();
        let slot = match registrations.free.pop() {
            Some(slot) => slot,
            None => {
                registrations.slots.push(Registration::default());
                u32::try_from(registrations.slots.len() - 1).expect("fewer than 4 billion sockets")
            }
        };
        let registration = &mut registrations.slots[slot as usize];
        registration.generation = registration.generation.wrapping_add(1);
        (registration.readable, registration.writable, registration.hung_up) = (true, true, false);
        let token = u64::from(slot) | (u64::from(registration.generation) << 32);
        if let Err(error) = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags) {
            registrations.free.push(slot);
            return Err(error.into());
        }
        Ok(token)
    }

    fn deregister(&self, fd: &OwnedFd, token: u64) {
        let _ = epoll::delete(&self.epoll, fd);
        self.free_slot(token);
    }

    /// Frees the slot of a descriptor that is about to be closed. The kernel removes the registration with its last
    /// descriptor.
    fn free_slot(&self, token: u64) {
        let mut registrations = self.registrations.borrow_mut();
        let (slot, _) = split_token(token);
        let registration = &mut registrations.slots[slot as usize];
        *registration = Registration { generation: registration.generation.wrapping_add(1), ..Registration::default() };
        registrations.free.push(slot);
    }

    fn with_registration<R>(&self, token: u64, update: impl FnOnce(&mut Registration) -> R) -> R {
        update(&mut self.registrations.borrow_mut().slots[split_token(token).0 as usize])
    }
}

fn split_token(token: u64) -> (u32, u32) {
    ((token & u64::from(u32::MAX)) as u32, (token >> 32) as u32)
}

impl Registration {
    fn wait_readable(&mut self, cx: &Context<'_>) {
        self.readable = false;
        store_waker(&mut self.reader, cx);
    }

    fn wait_writable(&mut self, cx: &Context<'_>) {
        self.writable = false;
        store_waker(&mut self.writer, cx);
    }
}

fn store_waker(slot: &mut Option<Waker>, cx: &Context<'_>) {
    match slot {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *slot = Some(cx.waker().clone()),
    }
}

/// A socket on epoll.
pub(crate) struct PolledSocket {
    poller: Rc<Poller>,
    state: Rc<SocketState>,
    /// Number of consecutive receives that filled their buffers.
    full_receives: Cell<u8>,
}

/// After this many full buffers, the reader yields to other tasks: a peer may send as fast as the buffers are emptied.
const FULL_RECEIVES_MAX: u8 = 8;

impl PolledSocket {
    pub(crate) fn new(poller: Rc<Poller>, fd: OwnedFd) -> io::Result<Self> {
        use epoll::EventFlags as F;
        let token = poller.register(&fd, F::IN | F::OUT | F::RDHUP | F::ET)?;
        Ok(Self { poller, state: Rc::new(SocketState::new(fd, token)), full_receives: Cell::new(0) })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.state.fd
    }

    fn with_registration<R>(&self, update: impl FnOnce(&mut Registration) -> R) -> R {
        self.poller.with_registration(self.state.token, update)
    }

    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        let ready = self.with_registration(|registration| {
            if !registration.readable {
                registration.wait_readable(cx);
            }
            registration.readable
        });
        if !ready {
            return Poll::Pending;
        }
        if self.full_receives.get() >= FULL_RECEIVES_MAX {
            self.full_receives.set(0);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut buffer = self.poller.buffer_pool.take();
        loop {
            match recv(self.fd(), buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((received, _)) => {
                    let is_drained = received > 0 && received < buffer.as_mut_slice().len();
                    self.with_registration(|registration| registration.readable = !is_drained || registration.hung_up);
                    self.full_receives.set(if is_drained { 0 } else { self.full_receives.get() + 1 });
                    return Poll::Ready(Ok(Chunk::pooled(buffer, received)));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.full_receives.set(0);
                    self.with_registration(|registration| registration.wait_readable(cx));
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Ready when the peer has closed its side, whether or not its data have been read.
    pub(crate) fn poll_peer_closed(&self, cx: &Context<'_>) -> Poll<()> {
        self.with_registration(|registration| {
            if registration.hung_up {
                return Poll::Ready(());
            }
            store_waker(&mut registration.reader, cx);
            Poll::Pending
        })
    }

    /// Starts a send; the previous one must have ended.
    pub(crate) fn start_send(&self, chunk: Chunk) {
        debug_assert!(self.is_sent(), "one send at a time");
        self.state.chunk.set(Some(chunk));
        self.state.sending.set(Sending::Queued);
        self.poller.queue(&self.state);
    }

    /// Sends the queued chunk. A failed send shuts the socket down, so that the next receive returns the end.
    pub(crate) fn poll_sent(&self, cx: &Context<'_>) -> Poll<()> {
        match self.state.sending.get() {
            Sending::Idle => return Poll::Ready(()),
            Sending::Queued if self.poller.send(&self.state) => return Poll::Ready(()),
            Sending::Queued | Sending::Blocked => {}
        }
        self.with_registration(|registration| store_waker(&mut registration.writer, cx));
        Poll::Pending
    }

    /// Whether no send is in flight.
    fn is_sent(&self) -> bool {
        self.state.sending.get() == Sending::Idle
    }

    pub(crate) fn into_fd(self) -> Option<OwnedFd> {
        if !self.is_sent() {
            return None;
        }
        if self.state.is_queued.take() {
            self.poller.outbox.borrow_mut().retain(|state| !Rc::ptr_eq(state, &self.state));
        }
        let state = Rc::clone(&self.state);
        // The descriptor stays open.
        let _ = epoll::delete(&self.poller.epoll, &state.fd);
        drop(self);
        Some(Rc::try_unwrap(state).ok()?.fd)
    }

    async fn writable(&self) {
        std::future::poll_fn(|cx| {
            self.with_registration(|registration| {
                if registration.writable {
                    return Poll::Ready(());
                }
                registration.wait_writable(cx);
                Poll::Pending
            })
        })
        .await;
    }
}

impl Drop for PolledSocket {
    fn drop(&mut self) {
        // The descriptor closes before the next wait, so the chunk is sent now. Data beyond the socket buffer are lost.
        if self.state.sending.get() == Sending::Queued {
            self.poller.send(&self.state);
        }
        drop(self.state.chunk.take());
        self.poller.free_slot(self.state.token);
    }
}

/// A listener on epoll.
pub(crate) struct PolledListener {
    poller: Rc<Poller>,
    fd: Rc<OwnedFd>,
    token: u64,
    /// Whether the listener is removed from epoll until the next poll.
    is_paused: Cell<bool>,
}

impl PolledListener {
    pub(crate) fn new(poller: Rc<Poller>, fd: Rc<OwnedFd>) -> io::Result<Self> {
        let token = poller.register(&fd, Self::FLAGS)?;
        poller.with_registration(token, |registration| registration.readable = false);
        Ok(Self { poller, fd, token, is_paused: Cell::new(false) })
    }

    /// Level-triggered and exclusive: the kernel wakes one of the threads that share the listener per connection.
    const FLAGS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::EXCLUSIVE);

    /// Ready when a connection is waiting. To be polled again after each one.
    pub(crate) fn poll_readable(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.is_paused.get() {
            epoll::add(&self.poller.epoll, &*self.fd, epoll::EventData::new_u64(self.token), Self::FLAGS)?;
            self.is_paused.set(false);
        }
        self.poller.with_registration(self.token, |registration| {
            if std::mem::take(&mut registration.readable) {
                return Poll::Ready(Ok(()));
            }
            registration.wait_readable(cx);
            Poll::Pending
        })
    }

    /// Removes the listener from epoll; a waiting connection would otherwise end every wait of the thread immediately.
    pub(crate) fn pause(&self) {
        if !self.is_paused.replace(true) {
            let _ = epoll::delete(&self.poller.epoll, &*self.fd);
        }
    }

    pub(crate) fn turn(&self) -> u64 {
        self.poller.turns.get()
    }
}

impl Drop for PolledListener {
    fn drop(&mut self) {
        self.poller.deregister(&self.fd, self.token);
    }
}

/// Connects a new socket.
pub(crate) async fn connect(poller: Rc<Poller>, fd: OwnedFd, address: SockAddr) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    match socket2::SockRef::from(&fd).connect(&address) {
        Ok(()) => return Ok(fd),
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    let socket = PolledSocket::new(poller, fd)?;
    socket.with_registration(|registration| registration.writable = false);
    socket.writable().await;
    if let Some(error) = socket2::SockRef::from(socket.fd()).take_error()? {
        return Err(error);
    }
    socket.into_fd().ok_or_else(|| io::Error::other("a new socket has no send in flight"))
}
