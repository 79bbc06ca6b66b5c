//! Sockets on epoll, where io_uring is forbidden: edge-triggered, registered once for life.
//!
//! A socket is believed readable and writable until a call says otherwise, and a receive that did not fill its
//! buffer has emptied the socket, so a request and its reply cost two receives and two sends and no `epoll_ctl`.
//!
//! What is sent leaves when all tasks have had their turn, one send after the other: a peer that is woken earlier may take
//! the processor from those who still have to be served, and its answer would find the thread awake for it alone.

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

use crate::{
    alarm::Alarm,
    chunk::{Chunk, Shelf},
};

/// The epoll instance of one thread.
pub(crate) struct Poller {
    epoll: OwnedFd,
    shelf: Shelf,
    events: RefCell<Vec<epoll::Event>>,
    watches: RefCell<Watches>,
    /// Those with something to send before the next wait.
    outbox: RefCell<Vec<Rc<Port>>>,
    alarm: Arc<Alarm>,
    /// How often it has waited.
    turns: Cell<u64>,
}

/// Who waits for which socket.
#[derive(Default)]
struct Watches {
    slots: Vec<Watch>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Watch {
    /// Tells this life of the slot from earlier ones, whose events may still be under way.
    generation: u32,
    readable: bool,
    writable: bool,
    /// The peer has closed: no further edge will come, so readiness is never taken back.
    hung_up: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// It has more to send as soon as it is writable.
    stuck: Option<Rc<Port>>,
}

/// A descriptor, and what is to be sent on it.
struct Port {
    fd: OwnedFd,
    token: u64,
    chunk: Cell<Option<Chunk>>,
    sending: Cell<Sending>,
    /// It stands in the outbox.
    is_posted: Cell<bool>,
}

/// What becomes of the chunk of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sending {
    /// There is none.
    #[default]
    Nothing,
    /// It leaves before the next wait, or as soon as somebody asks.
    Posted,
    /// The socket has no room for it, and tells when it has.
    Stuck,
}

impl Port {
    fn new(fd: OwnedFd, token: u64) -> Self {
        Self { fd, token, chunk: Cell::default(), sending: Cell::default(), is_posted: Cell::default() }
    }
}

/// The token of the alarm; no watch has it.
const ALARM: u64 = u64::MAX;

impl Poller {
    pub(crate) fn new(shelf: Shelf) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let alarm = Alarm::new()?;
        epoll::add(
            &epoll,
            alarm.fd(),
            epoll::EventData::new_u64(ALARM),
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        )?;
        let events = RefCell::new(Vec::with_capacity(256));
        let (watches, outbox, turns) = (RefCell::default(), RefCell::default(), Cell::default());
        Ok(Self { epoll, shelf, events, watches, outbox, alarm, turns })
    }

    pub(crate) fn alarm(&self) -> &Arc<Alarm> {
        &self.alarm
    }

    /// Sends what is to be sent, and waits for events unless another thread has rung since the last turn.
    pub(crate) fn turn(&self, timeout: Option<Duration>) -> io::Result<()> {
        self.send_posted();
        let timeout = if self.alarm.is_rung() { Some(Duration::ZERO) } else { timeout };
        let timeout = timeout.map(|wait| Timespec {
            tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(wait.subsec_nanos()),
        });
        let mut events = self.events.borrow_mut();
        events.clear();
        let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        self.alarm.rise();
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
        if token == ALARM {
            self.alarm.hush();
            return;
        }
        let (slot, generation) = split_token(token);
        let mut watches = self.watches.borrow_mut();
        let Some(watch) = watches.slots.get_mut(slot as usize).filter(|w| w.generation == generation) else { return };
        watch.hung_up |= flags.intersects(F::RDHUP | F::HUP | F::ERR);
        if flags.intersects(F::IN | F::RDHUP | F::HUP | F::ERR) {
            watch.readable = true;
            if let Some(waker) = watch.reader.take() {
                waker.wake();
            }
        }
        if flags.intersects(F::OUT | F::HUP | F::ERR) {
            watch.writable = true;
            match watch.stuck.take() {
                None => watch.writer.take().map_or((), Waker::wake),
                Some(port) => {
                    drop(watches);
                    self.send(&port);
                }
            }
        }
    }

    /// Has it send before the next wait.
    fn post(&self, port: &Rc<Port>) {
        if !port.is_posted.replace(true) {
            self.outbox.borrow_mut().push(Rc::clone(port));
        }
    }

    fn send_posted(&self) {
        let mut outbox = self.outbox.take();
        for port in outbox.drain(..) {
            port.is_posted.set(false);
            if port.sending.get() == Sending::Posted {
                self.send(&port);
            }
        }
        // For its memory.
        self.outbox.replace(outbox);
    }

    /// Sends until all is gone, or until the socket has no more room. Whether all is gone.
    fn send(&self, port: &Rc<Port>) -> bool {
        let Some(mut chunk) = port.chunk.take() else { return true };
        loop {
            match send(&port.fd, &chunk, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) if sent == chunk.len() => break,
                Ok(sent) => chunk.advance(sent),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    port.chunk.set(Some(chunk));
                    port.sending.set(Sending::Stuck);
                    self.with_watch(port.token, |watch| watch.stuck = Some(Rc::clone(port)));
                    return false;
                }
                Err(_) => {
                    // Whoever reads from it learns that it has ended.
                    let _ = rustix::net::shutdown(&port.fd, rustix::net::Shutdown::Both);
                    break;
                }
            }
        }
        // Nobody waits for what leaves at once.
        if port.sending.take() == Sending::Stuck
            && let Some(waker) = self.with_watch(port.token, |watch| watch.writer.take())
        {
            waker.wake();
        }
        true
    }

    fn watch(&self, fd: &OwnedFd, flags: epoll::EventFlags) -> io::Result<u64> {
        let mut watches = self.watches.borrow_mut();
        let slot = match watches.free.pop() {
            Some(slot) => slot,
            None => {
                watches.slots.push(Watch::default());
                u32::try_from(watches.slots.len() - 1).expect("fewer than 4 billion sockets")
            }
        };
        let watch = &mut watches.slots[slot as usize];
        watch.generation = watch.generation.wrapping_add(1);
        (watch.readable, watch.writable, watch.hung_up) = (true, true, false);
        let token = u64::from(slot) | (u64::from(watch.generation) << 32);
        if let Err(error) = epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token), flags) {
            watches.free.push(slot);
            return Err(error.into());
        }
        Ok(token)
    }

    fn unwatch(&self, fd: &OwnedFd, token: u64) {
        let _ = epoll::delete(&self.epoll, fd);
        self.forget(token);
    }

    /// For what is about to be closed, of which there is no second descriptor: the kernel unwatches it.
    fn forget(&self, token: u64) {
        let mut watches = self.watches.borrow_mut();
        let (slot, _) = split_token(token);
        let watch = &mut watches.slots[slot as usize];
        *watch = Watch { generation: watch.generation.wrapping_add(1), ..Watch::default() };
        watches.free.push(slot);
    }

    fn with_watch<R>(&self, token: u64, look: impl FnOnce(&mut Watch) -> R) -> R {
        look(&mut self.watches.borrow_mut().slots[split_token(token).0 as usize])
    }
}

fn split_token(token: u64) -> (u32, u32) {
    ((token & u64::from(u32::MAX)) as u32, (token >> 32) as u32)
}

impl Watch {
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

/// One socket under epoll.
pub(crate) struct PolledSocket {
    poller: Rc<Poller>,
    port: Rc<Port>,
    /// So many receives in turn have filled their buffers.
    filled: Cell<u8>,
}

/// Whoever reads gives way to other tasks after so many full buffers: a peer may send as fast as they are emptied.
const FILLED_MAX: u8 = 8;

impl PolledSocket {
    pub(crate) fn new(poller: Rc<Poller>, fd: OwnedFd) -> io::Result<Self> {
        use epoll::EventFlags as F;
        let token = poller.watch(&fd, F::IN | F::OUT | F::RDHUP | F::ET)?;
        Ok(Self { poller, port: Rc::new(Port::new(fd, token)), filled: Cell::new(0) })
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.port.fd
    }

    fn with_watch<R>(&self, look: impl FnOnce(&mut Watch) -> R) -> R {
        self.poller.with_watch(self.port.token, look)
    }

    pub(crate) fn poll_recv(&self, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        let ready = self.with_watch(|watch| {
            if !watch.readable {
                watch.wait_readable(cx);
            }
            watch.readable
        });
        if !ready {
            return Poll::Pending;
        }
        if self.filled.get() >= FILLED_MAX {
            self.filled.set(0);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut buffer = self.poller.shelf.take();
        loop {
            match recv(self.fd(), buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((received, _)) => {
                    let drained = received > 0 && received < buffer.as_mut_slice().len();
                    self.with_watch(|watch| watch.readable = !drained || watch.hung_up);
                    self.filled.set(if drained { 0 } else { self.filled.get() + 1 });
                    return Poll::Ready(Ok(Chunk::lent(buffer, received)));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.filled.set(0);
                    self.with_watch(|watch| watch.wait_readable(cx));
                    return Poll::Pending;
                }
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }

    /// Ready when the peer has closed its side, be all that it sent read or not.
    pub(crate) fn poll_left(&self, cx: &Context<'_>) -> Poll<()> {
        self.with_watch(|watch| {
            if watch.hung_up {
                return Poll::Ready(());
            }
            store_waker(&mut watch.reader, cx);
            Poll::Pending
        })
    }

    /// Begins to send; the caller has seen the last send end.
    pub(crate) fn start_send(&self, chunk: Chunk) {
        debug_assert!(self.is_sent(), "one send at a time");
        self.port.chunk.set(Some(chunk));
        self.port.sending.set(Sending::Posted);
        self.poller.post(&self.port);
    }

    /// Sends now what is to be sent. A send that failed is known by the next receive, which finds the end.
    pub(crate) fn poll_sent(&self, cx: &Context<'_>) -> Poll<()> {
        match self.port.sending.get() {
            Sending::Nothing => return Poll::Ready(()),
            Sending::Posted if self.poller.send(&self.port) => return Poll::Ready(()),
            Sending::Posted | Sending::Stuck => {}
        }
        self.with_watch(|watch| store_waker(&mut watch.writer, cx));
        Poll::Pending
    }

    /// Whether nothing is being sent.
    fn is_sent(&self) -> bool {
        self.port.sending.get() == Sending::Nothing
    }

    pub(crate) fn into_fd(self) -> Option<OwnedFd> {
        if !self.is_sent() {
            return None;
        }
        if self.port.is_posted.take() {
            self.poller.outbox.borrow_mut().retain(|port| !Rc::ptr_eq(port, &self.port));
        }
        let port = Rc::clone(&self.port);
        // It is not closed.
        let _ = epoll::delete(&self.poller.epoll, &port.fd);
        drop(self);
        Some(Rc::try_unwrap(port).ok()?.fd)
    }

    async fn writable(&self) {
        std::future::poll_fn(|cx| {
            self.with_watch(|watch| {
                if watch.writable {
                    return Poll::Ready(());
                }
                watch.wait_writable(cx);
                Poll::Pending
            })
        })
        .await;
    }
}

impl Drop for PolledSocket {
    fn drop(&mut self) {
        // The descriptor is closed before the next wait. What the socket has no room for is given up.
        if self.port.sending.get() == Sending::Posted {
            self.poller.send(&self.port);
        }
        drop(self.port.chunk.take());
        self.poller.forget(self.port.token);
    }
}

/// A listener under epoll.
pub(crate) struct PolledListener {
    poller: Rc<Poller>,
    fd: Rc<OwnedFd>,
    token: u64,
    /// Nothing is heard until it is asked again.
    deaf: Cell<bool>,
}

impl PolledListener {
    pub(crate) fn new(poller: Rc<Poller>, fd: Rc<OwnedFd>) -> io::Result<Self> {
        let token = poller.watch(&fd, Self::FLAGS)?;
        poller.with_watch(token, |watch| watch.readable = false);
        Ok(Self { poller, fd, token, deaf: Cell::new(false) })
    }

    /// Level-triggered and exclusive: of the threads that share the listener, one is woken for a connection.
    const FLAGS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::EXCLUSIVE);

    /// Ready when somebody has come. It is asked again for each.
    pub(crate) fn poll_arrival(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.deaf.get() {
            epoll::add(&self.poller.epoll, &*self.fd, epoll::EventData::new_u64(self.token), Self::FLAGS)?;
            self.deaf.set(false);
        }
        self.poller.with_watch(self.token, |watch| {
            if std::mem::take(&mut watch.readable) {
                return Poll::Ready(Ok(()));
            }
            watch.wait_readable(cx);
            Poll::Pending
        })
    }

    /// From now on it hears of nobody, who would end every wait of the thread at once.
    pub(crate) fn deafen(&self) {
        if !self.deaf.replace(true) {
            let _ = epoll::delete(&self.poller.epoll, &*self.fd);
        }
    }

    pub(crate) fn turn(&self) -> u64 {
        self.poller.turns.get()
    }
}

impl Drop for PolledListener {
    fn drop(&mut self) {
        self.poller.unwatch(&self.fd, self.token);
    }
}

/// Connects a socket that was just made.
pub(crate) async fn connect(poller: Rc<Poller>, fd: OwnedFd, address: SockAddr) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    match socket2::SockRef::from(&fd).connect(&address) {
        Ok(()) => return Ok(fd),
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(error),
    }
    let socket = PolledSocket::new(poller, fd)?;
    socket.with_watch(|watch| watch.writable = false);
    socket.writable().await;
    if let Some(error) = socket2::SockRef::from(socket.fd()).take_error()? {
        return Err(error);
    }
    socket.into_fd().ok_or_else(|| io::Error::other("a fresh socket sends nothing"))
}
