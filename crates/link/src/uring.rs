//! Sockets on io_uring: an operation is handed to the kernel together with its buffer, and comes back with it.
//!
//! Receives take their buffer from a ring of buffers shared with the kernel, so a waiting socket owns none. When the
//! ring runs dry, or when a peer sends in bulk, a receive takes a large buffer of its own instead.

use std::{
    cell::{Cell, RefCell},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use compio_buf::BufResult;
use compio_driver::{
    BufferPool, BufferRef, Key, PollFirst, Proactor, ProactorBuilder, PushEntry,
    op::{self, ResultTakeBuffer},
};
use rustix::net::{RecvFlags, SendFlags};
use socket2::SockAddr;

use crate::{chunk::Chunk, listener::Accepted, reactor::Settings};

/// The io_uring of one thread, with its ring of buffers.
pub(crate) struct Ring {
    proactor: RefCell<Proactor>,
    waker: Waker,
    buffers: BufferPool,
    buffer_len: usize,
    bulk_len: usize,
}

impl Ring {
    /// # Errors
    /// When the kernel forbids io_uring or lacks an operation.
    pub(crate) fn new(settings: &Settings) -> io::Result<Self> {
        let mut builder = ProactorBuilder::new();
        builder
            .capacity(1024)
            .cqsize(4096)
            .single_issuer(true)
            .coop_taskrun(true)
            .defer_taskrun(true)
            .taskrun_flag(true)
            .buffer_pool_size(settings.buffers)
            .buffer_pool_buffer_len(settings.buffer_len);
        let mut proactor = builder.build()?;
        let buffers = proactor.buffer_pool()?;
        // The first turn reports what `build` does not: a ring that may be made but not entered.
        ignore_idle(proactor.poll(Some(Duration::ZERO)))?;
        Ok(Self {
            waker: proactor.waker(),
            proactor: RefCell::new(proactor),
            buffers,
            buffer_len: settings.buffer_len,
            bulk_len: settings.bulk_len,
        })
    }

    pub(crate) fn waker(&self) -> std::task::Waker {
        self.waker.clone()
    }

    pub(crate) fn turn(&self, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) {
            // A wait of no length is a wait for the driver, and sets a timer that costs as much as 20 µs. One who has
            // been woken does not wait. The thread is awake, so that this is a store and no system call.
            self.waker.wake_by_ref();
        }
        ignore_idle(self.proactor.borrow_mut().poll(timeout))
    }

    fn push<T: compio_driver::OpCode + 'static>(&self, op: T) -> PushEntry<Key<T>, BufResult<usize, T>> {
        self.proactor.borrow_mut().push(op)
    }

    /// Takes the result of an operation, or leaves the task's waker with it.
    fn pop<T: compio_driver::OpCode>(&self, key: Key<T>, cx: &Context<'_>) -> PushEntry<Key<T>, BufResult<usize, T>> {
        let mut proactor = self.proactor.borrow_mut();
        let popped = proactor.pop(key);
        if let PushEntry::Pending(key) = &popped {
            proactor.update_waker(key, cx.waker());
        }
        popped
    }

    fn cancel<T: compio_driver::OpCode>(&self, key: Key<T>) {
        self.proactor.borrow_mut().cancel(key);
    }

    fn ask_to_stop<T: compio_driver::OpCode>(&self, key: &Key<T>) {
        let mut proactor = self.proactor.borrow_mut();
        let token = proactor.register_cancel(key);
        proactor.cancel_token(token);
    }
}

fn ignore_idle(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::Interrupted) => Ok(()),
        other => other,
    }
}

type Fd = Rc<Port>;

/// What becomes of the bytes that arrive next.
enum Receive {
    Idle,
    /// Into a buffer of the ring.
    Lent(Key<op::RecvManaged<Fd>>),
    /// Into a large buffer of its own.
    Bulk(Key<op::Recv<Vec<u8>, Fd>>),
    /// Arrived while the socket was being quiesced.
    Done(Box<io::Result<Chunk>>),
}

/// A socket's descriptor, and whether a send is under way: shared with the operations under way.
struct Port {
    fd: OwnedFd,
    sends: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

impl Port {
    fn new(fd: OwnedFd) -> Rc<Self> {
        Rc::new(Self { fd, sends: Cell::new(false), waker: Cell::new(None) })
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Bytes being sent. The kernel gives them back by dropping them.
struct Cargo {
    chunk: Chunk,
    port: Rc<Port>,
}

impl compio_buf::IoBuf for Cargo {
    fn as_init(&self) -> &[u8] {
        &self.chunk
    }
}

impl Drop for Cargo {
    fn drop(&mut self) {
        self.port.sends.set(false);
        if let Some(waker) = self.port.waker.take() {
            waker.wake();
        }
    }
}

/// One socket on the ring.
pub(crate) struct RingSocket {
    ring: Rc<Ring>,
    port: Rc<Port>,
    receive: Receive,
    /// The last receive filled its buffer: the peer sends faster than a lent buffer holds.
    bulk: bool,
    /// A receive was put under way before.
    acquainted: bool,
}

impl RingSocket {
    pub(crate) fn new(ring: Rc<Ring>, fd: OwnedFd) -> Self {
        Self { ring, port: Port::new(fd), receive: Receive::Idle, bulk: false, acquainted: false }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.port.fd
    }

    pub(crate) fn poll_recv(&mut self, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        loop {
            match std::mem::replace(&mut self.receive, Receive::Idle) {
                Receive::Idle => self.arm()?,
                Receive::Done(received) => return Poll::Ready(*received),
                under_way => match std::task::ready!(self.poll_under_way(under_way, cx)) {
                    Err(error) if ran_dry(&error) => self.arm_bulk()?,
                    Err(error) if found_nothing(&error) && self.bulk => self.bulk = false,
                    received => return Poll::Ready(self.note(received)),
                },
            }
        }
    }

    /// Takes the result of a receive, which leaves the socket idle.
    fn poll_under_way(&mut self, receive: Receive, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        match receive {
            Receive::Lent(key) => match self.ring.pop(key, cx) {
                PushEntry::Pending(key) => self.receive = Receive::Lent(key),
                PushEntry::Ready(result) => return Poll::Ready(lent_chunk(result)),
            },
            Receive::Bulk(key) => match self.ring.pop(key, cx) {
                PushEntry::Pending(key) => self.receive = Receive::Bulk(key),
                PushEntry::Ready(result) => return Poll::Ready(bulk_chunk(result)),
            },
            at_rest => self.receive = at_rest,
        }
        Poll::Pending
    }

    /// Notes whether the peer fills the buffers it is given.
    fn note(&mut self, received: io::Result<Chunk>) -> io::Result<Chunk> {
        if let Ok(chunk) = &received {
            self.bulk = chunk.len() >= self.ring.buffer_len;
        }
        received
    }

    fn arm(&mut self) -> io::Result<()> {
        if self.bulk {
            return self.arm_bulk();
        }
        let mut receive =
            op::RecvManaged::new(self.port.clone(), &self.ring.buffers, self.ring.buffer_len, RecvFlags::empty())?;
        // A peer that was just connected has often spoken already; later, nothing has come by the time we listen.
        if std::mem::replace(&mut self.acquainted, true) {
            receive.poll_first();
        }
        self.receive = match self.ring.push(receive) {
            PushEntry::Pending(key) => Receive::Lent(key),
            PushEntry::Ready(result) => Receive::Done(Box::new(lent_chunk(result))),
        };
        Ok(())
    }

    /// Receives what is there into a large buffer. It does not wait with it: a peer that has paused would make an idle
    /// link own it.
    fn arm_bulk(&mut self) -> io::Result<()> {
        self.bulk = true;
        let receive = op::Recv::new(self.port.clone(), vec![0; self.ring.bulk_len], RecvFlags::DONTWAIT);
        self.receive = match self.ring.push(receive) {
            PushEntry::Pending(key) => Receive::Bulk(key),
            PushEntry::Ready(result) => Receive::Done(Box::new(bulk_chunk(result))),
        };
        Ok(())
    }

    /// Begins to send; the caller has seen the last send complete.
    pub(crate) fn start_send(&mut self, chunk: Chunk) -> io::Result<()> {
        debug_assert!(!self.port.sends.get(), "one send at a time");
        self.port.sends.set(true);
        let cargo = Cargo { chunk, port: self.port.clone() };
        match self.ring.push(op::Send::new(self.port.clone(), cargo, send_flags())) {
            // The operation is let go: its buffer goes home when the kernel is done, whether or not anybody looks.
            PushEntry::Pending(key) => drop(key),
            PushEntry::Ready(BufResult(result, _)) => {
                result?;
            }
        }
        Ok(())
    }

    /// Ready when nothing is being sent. A send that failed is known by the next receive, which fails too.
    pub(crate) fn poll_sent(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if !self.port.sends.get() {
            return Poll::Ready(Ok(()));
        }
        self.port.waker.set(Some(cx.waker().clone()));
        Poll::Pending
    }

    /// Whether nothing is being sent, without asking to be woken.
    pub(crate) fn is_sent(&self) -> bool {
        !self.port.sends.get()
    }

    /// Ends the receive under way; bytes it had already taken come with the next `poll_recv`.
    pub(crate) fn poll_quiesce(&mut self, cx: &Context<'_>) -> Poll<()> {
        match &self.receive {
            Receive::Idle | Receive::Done(_) => return Poll::Ready(()),
            Receive::Lent(key) => self.ring.ask_to_stop(key),
            Receive::Bulk(key) => self.ring.ask_to_stop(key),
        }
        let under_way = std::mem::replace(&mut self.receive, Receive::Idle);
        match std::task::ready!(self.poll_under_way(under_way, cx)) {
            Err(error) if was_stopped(&error) || ran_dry(&error) || found_nothing(&error) => {}
            received => self.receive = Receive::Done(Box::new(self.note(received))),
        }
        Poll::Ready(())
    }

    /// The bare socket with what was received from it, if nothing is under way on it and the stream has not ended.
    pub(crate) fn into_parts(mut self) -> Option<(OwnedFd, Chunk)> {
        let received = match std::mem::replace(&mut self.receive, Receive::Idle) {
            Receive::Idle => Chunk::empty(),
            Receive::Done(received) => received.ok().filter(|chunk| !chunk.is_empty())?,
            under_way => {
                self.receive = under_way;
                return None;
            }
        };
        if self.port.sends.get() {
            return None;
        }
        let spare = Port::new(rustix::event::eventfd(0, CLOEXEC).ok()?);
        let port = std::mem::replace(&mut self.port, spare);
        Some((Rc::try_unwrap(port).ok()?.fd, received))
    }
}

const CLOEXEC: rustix::event::EventfdFlags = rustix::event::EventfdFlags::CLOEXEC;

impl Drop for RingSocket {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.receive, Receive::Idle) {
            Receive::Lent(key) => self.ring.cancel(key),
            Receive::Bulk(key) => self.ring.cancel(key),
            Receive::Idle | Receive::Done(_) => {}
        }
        if self.port.sends.get() {
            // Nobody is left to wait for a peer that does not read.
            let _ = rustix::net::shutdown(&self.port.fd, rustix::net::Shutdown::Both);
        }
    }
}

/// The ring of buffers has none left; the driver words `ENOBUFS` so.
fn ran_dry(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ResourceBusy
}

/// A receive that does not wait has found no bytes.
fn found_nothing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// The operation ended because it was asked to.
fn was_stopped(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::CANCELED.raw_os_error())
}

fn send_flags() -> SendFlags {
    /// `MSG_WAITALL`, which io_uring honours for sends: a short send is continued by the kernel.
    const WAIT_ALL: u32 = 0x100;
    SendFlags::NOSIGNAL | SendFlags::from_bits_retain(WAIT_ALL)
}

#[allow(unsafe_code)]
fn lent_chunk(result: BufResult<usize, op::RecvManaged<Fd>>) -> io::Result<Chunk> {
    // SAFETY: the length is the one that the kernel reported for the receive into this very buffer, so that many
    // bytes of it are written.
    let buffer: Option<BufferRef> = unsafe { result.take_buffer() }?;
    Ok(buffer.map_or(Chunk::empty(), Chunk::ring))
}

fn bulk_chunk(BufResult(result, op): BufResult<usize, op::Recv<Vec<u8>, Fd>>) -> io::Result<Chunk> {
    let received = result?;
    let mut chunk = Chunk::from(compio_buf::IntoInner::into_inner(op));
    chunk.truncate(received);
    Ok(chunk)
}

/// Accepts connections on the ring.
pub(crate) struct RingListener {
    ring: Rc<Ring>,
    fd: Rc<OwnedFd>,
    arrival: Cell<Arrival>,
}

/// What is under way on a listener.
#[derive(Default)]
enum Arrival {
    #[default]
    Idle,
    Accept(Key<op::Accept<Rc<OwnedFd>>>),
    /// The socket is one that does not wait, as another process that shares it wants it.
    Readable(Key<op::PollOnce<Rc<OwnedFd>>>),
}

impl RingListener {
    pub(crate) fn new(ring: Rc<Ring>, fd: Rc<OwnedFd>) -> Self {
        Self { ring, fd, arrival: Cell::default() }
    }

    pub(crate) fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<Accepted>> {
        loop {
            let result = match self.arrival.take() {
                Arrival::Idle => match self.ring.push(op::Accept::new(self.fd.clone())) {
                    PushEntry::Pending(key) => {
                        self.arrival.set(Arrival::Accept(key));
                        continue;
                    }
                    PushEntry::Ready(result) => accepted(result),
                },
                Arrival::Accept(key) => match self.ring.pop(key, cx) {
                    PushEntry::Pending(key) => {
                        self.arrival.set(Arrival::Accept(key));
                        return Poll::Pending;
                    }
                    PushEntry::Ready(result) => accepted(result),
                },
                Arrival::Readable(key) => match self.ring.pop(key, cx) {
                    PushEntry::Pending(key) => {
                        self.arrival.set(Arrival::Readable(key));
                        return Poll::Pending;
                    }
                    PushEntry::Ready(BufResult(Ok(_), _)) => continue,
                    PushEntry::Ready(BufResult(Err(error), _)) => Err(error),
                },
            };
            match result {
                Err(error) if found_nothing(&error) => self.await_readable()?,
                result => return Poll::Ready(result),
            }
        }
    }

    fn await_readable(&self) -> io::Result<()> {
        match self.ring.push(op::PollOnce::new(self.fd.clone(), op::Interest::Readable)) {
            PushEntry::Pending(key) => self.arrival.set(Arrival::Readable(key)),
            PushEntry::Ready(BufResult(result, _)) => {
                result?;
            }
        }
        Ok(())
    }

    /// Ends what is under way. An accept that cannot be taken back any more has brought a connection.
    pub(crate) fn poll_close(&self, cx: &Context<'_>) -> Poll<Option<Accepted>> {
        match self.arrival.take() {
            Arrival::Idle => Poll::Ready(None),
            Arrival::Readable(key) => {
                self.ring.cancel(key);
                Poll::Ready(None)
            }
            Arrival::Accept(key) => {
                self.ring.ask_to_stop(&key);
                match self.ring.pop(key, cx) {
                    PushEntry::Pending(key) => {
                        self.arrival.set(Arrival::Accept(key));
                        Poll::Pending
                    }
                    PushEntry::Ready(result) => Poll::Ready(accepted(result).ok()),
                }
            }
        }
    }
}

impl Drop for RingListener {
    fn drop(&mut self) {
        match self.arrival.take() {
            Arrival::Idle => {}
            Arrival::Accept(key) => self.ring.cancel(key),
            Arrival::Readable(key) => self.ring.cancel(key),
        }
    }
}

fn accepted(BufResult(result, op): BufResult<usize, op::Accept<Rc<OwnedFd>>>) -> io::Result<Accepted> {
    result?;
    let (socket, address) = compio_buf::IntoInner::into_inner(op);
    Ok(Accepted::new(OwnedFd::from(socket), &address))
}

/// Connects a socket that was just made.
pub(crate) async fn connect(ring: Rc<Ring>, fd: OwnedFd, address: SockAddr) -> io::Result<OwnedFd> {
    let shared = Rc::new(fd);
    let mut guard = ConnectGuard { key: None, ring };
    match guard.ring.push(op::Connect::new(shared.clone(), address)) {
        PushEntry::Pending(key) => guard.key = Some(key),
        PushEntry::Ready(BufResult(result, _)) => {
            result?;
        }
    }
    std::future::poll_fn(|cx| guard.poll(cx)).await?;
    Rc::try_unwrap(shared).map_err(|_| io::Error::other("the connect operation still holds its socket"))
}

/// Cancels the connect when its caller gives up.
struct ConnectGuard {
    key: Option<Key<op::Connect<Rc<OwnedFd>>>>,
    ring: Rc<Ring>,
}

impl ConnectGuard {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let Some(key) = self.key.take() else { return Poll::Ready(Ok(())) };
        match self.ring.pop(key, cx) {
            PushEntry::Pending(key) => {
                self.key = Some(key);
                Poll::Pending
            }
            PushEntry::Ready(BufResult(result, _op)) => Poll::Ready(result.map(drop)),
        }
    }
}

impl Drop for ConnectGuard {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.ring.cancel(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::net::UnixStream};

    use super::*;

    /// Receives until nothing is left to be had.
    fn drain(socket: &mut RingSocket, mut expected: usize) {
        let cx = Context::from_waker(Waker::noop());
        loop {
            match socket.poll_recv(&cx) {
                Poll::Ready(received) => expected -= received.expect("bytes").len(),
                Poll::Pending if expected == 0 && matches!(socket.receive, Receive::Lent(_)) => return,
                Poll::Pending => socket.ring.turn(None).expect("an event"),
            }
        }
    }

    #[test]
    fn a_link_that_waits_after_a_burst_owns_no_buffer() {
        // Where io_uring is forbidden there is nothing to see.
        let Ok(ring) = Ring::new(&Settings::default()) else { return };
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(Rc::new(ring), near.into());
        for len in [1, 16 * 1024, 100_000, 1] {
            let writer = std::thread::spawn(move || {
                far.write_all(&vec![7; len]).expect("a link that reads");
                far
            });
            drain(&mut socket, len);
            far = writer.join().expect("the writer");
        }
    }
}
