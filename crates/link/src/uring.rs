//! Sockets on io_uring: an operation owns its buffer until the kernel completes it.
//!
//! Receives take buffers from a ring that is shared with the kernel, so an idle socket owns none. When the ring is
//! empty, or when a peer sends in bulk, a receive has a large buffer of its own.

use std::{
    cell::RefCell,
    io,
    os::fd::OwnedFd,
    rc::Rc,
    task::{Context, Poll},
};

use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};
use socket2::SockAddr;

use crate::chunk::Chunk;

#[allow(unsafe_code)]
mod buffers;
mod files;
mod one_shot;
mod reset_check;
#[allow(unsafe_code)]
mod ring;
mod socket_ops;

pub(crate) use buffers::ProvidedBuffer;
pub(crate) use ring::Ring;

use one_shot::{OneShot, OneShotKind, Pending};
use socket_ops::{RecvKind, RecvState, SocketOps};

/// A socket on the ring.
pub(crate) struct RingSocket {
    ring: Rc<Ring>,
    ops: Rc<SocketOps>,
    /// The last receive filled its buffer: the peer sends faster than a lent buffer can hold.
    is_bulk: bool,
    /// Whether a receive was started before.
    has_received: bool,
    /// Number of consecutive receives that did not fill a buffer.
    small_receives: u8,
    /// Whether the receive in flight is being cancelled.
    is_cancelling: bool,
    /// Waits for the peer to close, from the first poll on.
    peer_closed: Option<Box<Pending>>,
}

/// After this many small receives, the peer counts as a sender of small messages, and a multishot receive takes
/// all that it sends.
const SMALL_RECEIVES_MIN: u8 = 8;

impl RingSocket {
    pub(crate) fn new(ring: Rc<Ring>, fd: OwnedFd) -> Self {
        let ops = Rc::new(SocketOps::new(fd));
        ring.add(&ops);
        Self {
            ring,
            ops,
            is_bulk: false,
            has_received: false,
            small_receives: 0,
            is_cancelling: false,
            peer_closed: None,
        }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        self.ops.fd()
    }

    #[inline]
    pub(crate) fn poll_recv(&mut self, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        loop {
            match self.ops.take_received() {
                RecvState::InFlight => {
                    if self.small_receives == 0 && self.ops.receiving() == RecvKind::Multishot {
                        // A bulk receive replaces it.
                        self.cancel_receive();
                    }
                    self.ops.await_receive(cx);
                    return Poll::Pending;
                }
                RecvState::NotStarted => self.start_receive()?,
                RecvState::Done(Err(error)) if is_out_of_buffers(&error) || (would_block(&error) && self.is_bulk) => {
                    // The error may be old.
                    if let Some(received) = self.receive_now() {
                        return Poll::Ready(self.record(received));
                    }
                    self.is_bulk = false;
                }
                RecvState::Done(received) => return Poll::Ready(self.record(received)),
            }
        }
    }

    /// Ready when the peer has closed its side, whether or not its data have been read.
    pub(crate) fn poll_peer_closed(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.peer_closed.is_none() {
            // The next read reports the close.
            self.peer_closed =
                Pending::submit(&self.ring, OneShot::new(self.ops.clone(), OneShotKind::AwaitPeerClosed))
                    .ok()
                    .map(Box::new);
        }
        let Some(pending) = &mut self.peer_closed else { return Poll::Pending };
        let ended = std::task::ready!(pending.poll(cx));
        self.peer_closed = None;
        if ended.is_ok() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Hints that the peer is in the middle of a large transfer.
    pub(crate) fn hint_bulk_receive(&self) {
        self.ring.hint_bulk_receive(&self.ops);
    }

    /// Records whether the peer fills the buffers.
    #[inline]
    fn record(&mut self, received: io::Result<Chunk>) -> io::Result<Chunk> {
        if let Ok(chunk) = &received {
            self.is_bulk = chunk.len() >= self.ring.buffer_len();
            self.small_receives = if self.is_bulk { 0 } else { self.small_receives.saturating_add(1) };
        }
        received
    }

    fn start_receive(&mut self) -> io::Result<()> {
        self.is_cancelling = false;
        if self.is_bulk {
            return self.start_bulk_receive();
        }
        if self.small_receives >= SMALL_RECEIVES_MIN {
            self.ring.register_fd(&self.ops);
            return self.ring.receive_multishot(&self.ops);
        }
        // A new connection often has data waiting. Later, the socket is empty by the time of the next receive.
        let is_first = !std::mem::replace(&mut self.has_received, true);
        self.ring.receive(&self.ops, is_first)
    }

    /// Cancels the receive in flight.
    fn cancel_receive(&mut self) {
        if !std::mem::replace(&mut self.is_cancelling, true) {
            self.ring.cancel_receive(&self.ops);
        }
    }

    /// Receives waiting bytes into a large buffer, without blocking: otherwise an idle link would own the buffer.
    fn start_bulk_receive(&mut self) -> io::Result<()> {
        self.is_bulk = true;
        self.ring.receive_bulk(&self.ops)
    }

    /// Receives without the ring, after a receive that ended without bytes. A caller that checks whether an idle peer
    /// has closed polls once. Returns `None` if the socket is empty.
    fn receive_now(&self) -> Option<io::Result<Chunk>> {
        let mut bulk_buffer = self.ring.bulk_buffer();
        loop {
            match recv(self.fd(), bulk_buffer.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((len, _)) => return Some(Ok(Chunk::bulk(bulk_buffer, len))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Err(error) => return Some(Err(error.into())),
            }
        }
    }

    /// Starts a send; the previous one must have completed.
    pub(crate) fn start_send(&mut self, chunk: Chunk) -> io::Result<()> {
        debug_assert!(!self.ops.is_sending(), "one send at a time");
        self.ring.send(&self.ops, chunk)
    }

    /// Ready when no send is in flight. After a failed send, the next receive returns an error or the end.
    pub(crate) fn poll_sent(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.is_sent() {
            return Poll::Ready(Ok(()));
        }
        self.ops.await_send(cx);
        Poll::Pending
    }

    /// Whether no send is in flight; registers no waker.
    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        !self.ops.is_sending()
    }

    /// Cancels the receive in flight; the next `poll_recv` returns the bytes that it has taken.
    pub(crate) fn poll_quiesce(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.ops.receiving() == RecvKind::None {
            self.is_cancelling = false;
            return Poll::Ready(());
        }
        self.cancel_receive();
        self.ops.await_receive(cx);
        Poll::Pending
    }

    /// Appends received bytes. The end of the stream and errors are dropped: the next receive reports them.
    pub(crate) fn take_received(&mut self, bytes: &mut Vec<u8>) {
        debug_assert!(self.ops.receiving() == RecvKind::None, "the receive has been cancelled");
        while let RecvState::Done(received) = self.ops.take_received() {
            bytes.extend_from_slice(&received.unwrap_or(Chunk::empty()));
        }
    }

    /// Returns the descriptor and the unread bytes, if no operation is in flight and the stream has not ended.
    pub(crate) fn into_parts(self) -> Option<(OwnedFd, Chunk)> {
        if !self.ops.is_idle() {
            return None;
        }
        let mut bytes = Vec::new();
        while let RecvState::Done(received) = self.ops.take_received() {
            match received {
                Ok(chunk) if chunk.is_empty() => return None,
                Ok(chunk) => bytes.extend_from_slice(&chunk),
                Err(error) if is_out_of_buffers(&error) || would_block(&error) => {}
                Err(_) => return None,
            }
        }
        let ops = Rc::clone(&self.ops);
        // Releases the slot, with its reference to the operations.
        drop(self);
        Some((Rc::try_unwrap(ops).ok()?.into_fd(), bytes.into()))
    }
}

impl Drop for RingSocket {
    fn drop(&mut self) {
        self.ops.detach();
        if self.ops.is_idle() {
            self.ring.release(self.ops.slot());
            return;
        }
        if self.ops.receiving() != RecvKind::None {
            self.ring.cancel_receive(&self.ops);
        }
        if self.ops.is_sending() {
            // No task waits for a peer that does not read.
            let _ = rustix::net::shutdown(self.ops.fd(), rustix::net::Shutdown::Both);
        }
    }
}

/// The buffer ring is empty.
fn is_out_of_buffers(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error())
}

/// A nonblocking receive found no bytes.
fn would_block(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// The operation was cancelled.
fn is_cancelled(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::CANCELED.raw_os_error())
}

/// A listener on the ring.
pub(crate) struct RingListener {
    ring: Rc<Ring>,
    fd: Rc<OwnedFd>,
    /// The poll for a waiting connection.
    readable: RefCell<Option<Pending>>,
}

impl RingListener {
    pub(crate) fn new(ring: Rc<Ring>, fd: Rc<OwnedFd>) -> Self {
        Self { ring, fd, readable: RefCell::default() }
    }

    /// Ready when a connection is waiting. To be polled again after each one.
    pub(crate) fn poll_readable(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut readable = self.readable.borrow_mut();
        let pending = match &mut *readable {
            Some(pending) => pending,
            none => {
                none.insert(Pending::submit(&self.ring, OneShot::new(self.fd.clone(), OneShotKind::AwaitConnection))?)
            }
        };
        let outcome = std::task::ready!(pending.poll(cx));
        *readable = None;
        Poll::Ready(outcome)
    }

    /// Ready when no poll is in flight.
    pub(crate) fn poll_paused(&self, cx: &Context<'_>) -> Poll<()> {
        let mut readable = self.readable.borrow_mut();
        let Some(pending) = &mut *readable else { return Poll::Ready(()) };
        pending.cancel();
        let _ = std::task::ready!(pending.poll(cx));
        *readable = None;
        Poll::Ready(())
    }

    pub(crate) fn turn(&self) -> u64 {
        self.ring.turns()
    }
}

/// Connects a new socket.
pub(crate) async fn connect(ring: Rc<Ring>, fd: OwnedFd, address: SockAddr) -> io::Result<OwnedFd> {
    let fd = Rc::new(fd);
    let mut pending = Pending::submit(&ring, OneShot::new(fd.clone(), OneShotKind::Connect(address)))?;
    std::future::poll_fn(|cx| pending.poll(cx)).await?;
    drop(pending);
    Rc::try_unwrap(fd).map_err(|_| io::Error::other("the connect operation still holds its socket"))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
        task::Waker,
    };

    use super::*;
    use crate::config::ReactorConfig;

    /// Receives `expected` bytes.
    fn drain(socket: &mut RingSocket, mut expected: usize) {
        let cx = Context::from_waker(Waker::noop());
        loop {
            match socket.poll_recv(&cx) {
                Poll::Ready(received) => expected -= received.expect("bytes").len(),
                Poll::Pending if expected == 0 && socket.ops.receiving() != RecvKind::Bulk => return,
                Poll::Pending => socket.ring.turn(None).expect("an event"),
            }
        }
    }

    #[test]
    fn idle_link_after_a_burst_owns_no_buffer() {
        // Needs io_uring.
        let Ok(ring) = Ring::new(&ReactorConfig::default()) else { return };
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(Rc::new(ring), near.into());
        for len in [1, 16 * 1024, 100_000, 1] {
            let writer = std::thread::spawn(move || {
                far.write_all(&vec![7; len]).expect("an open link");
                far
            });
            drain(&mut socket, len);
            far = writer.join().expect("the writer");
        }
    }

    fn receive(ring: &Rc<Ring>, socket: &mut RingSocket) -> io::Result<Chunk> {
        let cx = Context::from_waker(Waker::noop());
        loop {
            match socket.poll_recv(&cx) {
                Poll::Ready(received) => return received,
                Poll::Pending => ring.turn(None).expect("an event"),
            }
        }
    }

    #[test]
    fn registered_file_is_freed_with_its_socket() {
        let Ok(ring) = Ring::new(&ReactorConfig::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let mut numbers = Vec::new();
        for _ in 0..2 {
            let (near, mut far) = UnixStream::pair().expect("a pair");
            let mut socket = RingSocket::new(ring.clone(), near.into());
            for _ in 0..SMALL_RECEIVES_MIN {
                assert_eq!(socket.ops.fixed_file(), None);
                far.write_all(b"x").expect("an open link");
                receive(&ring, &mut socket).expect("a byte");
            }
            assert!(socket.poll_recv(&cx).is_pending());
            numbers.push(socket.ops.fixed_file());
            socket.start_send(b"yz".to_vec().into()).expect("a send");
            while !socket.is_sent() {
                ring.turn(None).expect("the end of the send");
            }
            drop(socket);
            while !ring.is_empty() {
                ring.turn(None).expect("the end of the receive");
            }
            let mut sent = Vec::new();
            far.read_to_end(&mut sent).expect("the descriptor is closed");
            assert_eq!(sent, b"yz");
        }
        assert!(numbers[0].is_none() || numbers[0] == numbers[1], "the index is reused: {numbers:?}");
    }

    #[test]
    fn drop_during_a_receive_frees_its_slot() {
        let Ok(ring) = Ring::new(&ReactorConfig::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        for is_bulk in [false, true] {
            let (near, mut far) = UnixStream::pair().expect("a pair");
            let mut socket = RingSocket::new(ring.clone(), near.into());
            socket.is_bulk = is_bulk;
            assert!(socket.poll_recv(&cx).is_pending());
            drop(socket);
            while !ring.is_empty() {
                ring.turn(None).expect("the end of the receive");
            }
            assert!(far.write_all(b"x").is_err(), "the descriptor is closed with the last operation");
        }
    }

    #[test]
    fn peer_close_is_detected_with_unread_bytes() {
        let Ok(ring) = Ring::new(&ReactorConfig::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        for leaves in [true, false] {
            let (near, mut far) = UnixStream::pair().expect("a pair");
            let mut socket = RingSocket::new(ring.clone(), near.into());
            far.write_all(b"last words").expect("space in the socket");
            assert!(socket.poll_peer_closed(&cx).is_pending());
            turn_at_once(&ring);
            assert!(socket.poll_peer_closed(&cx).is_pending());
            if leaves {
                drop(far);
                while socket.poll_peer_closed(&cx).is_pending() {
                    ring.turn(None).expect("an event");
                }
                assert_eq!(&*receive(&ring, &mut socket).expect("bytes"), b"last words");
            }
            drop(socket);
            while !ring.is_empty() {
                ring.turn(None).expect("the end of the watch");
            }
        }
    }

    #[test]
    fn drop_during_a_send_frees_its_slot() {
        let Ok(ring) = Ring::new(&ReactorConfig::default()) else { return };
        let ring = Rc::new(ring);
        let (near, _far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        // More than the buffers of the socket can hold.
        socket.start_send(vec![7; 16 << 20].into()).expect("space in the ring");
        turn_at_once(&ring);
        assert!(!socket.is_sent());
        drop(socket);
        while !ring.is_empty() {
            ring.turn(None).expect("the end of the send");
        }
    }

    #[test]
    fn dropped_ring_waits_for_operations_in_flight() {
        let Ok(ring) = Ring::new(&ReactorConfig::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        assert!(socket.poll_recv(&cx).is_pending());
        turn_at_once(&ring);
        drop((socket, ring));
        assert!(far.write_all(b"x").is_err(), "the descriptor is closed");
    }

    /// As the pool checks a server before its next client.
    #[test]
    fn first_poll_finds_bytes_without_a_free_buffer() {
        let few =
            ReactorConfig { buffer_count: std::num::NonZeroU16::new(2).expect("two"), ..ReactorConfig::default() };
        let Ok(ring) = Ring::new(&few) else { return };
        let ring = Rc::new(ring);
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        let held = [b"a", b"b"].map(|bytes| {
            far.write_all(bytes).expect("an open link");
            receive(&ring, &mut socket).expect("a byte")
        });
        let (near, mut idle_far) = UnixStream::pair().expect("a pair");
        let mut idle = RingSocket::new(ring.clone(), near.into());
        let cx = Context::from_waker(Waker::noop());
        assert!(idle.poll_recv(&cx).is_pending());
        turn_at_once(&ring);
        for words in [&b"final"[..], b""] {
            match words {
                b"" => drop(idle_far.shutdown(std::net::Shutdown::Both)),
                words => idle_far.write_all(words).expect("space in the socket"),
            }
            turn_at_once(&ring);
            let Poll::Ready(received) = idle.poll_recv(&cx) else { panic!("{words:?} was not seen") };
            assert_eq!(&*received.expect("bytes"), words);
            let _ = idle.poll_recv(&cx).is_pending();
        }
        assert_eq!(held.map(|chunk| chunk[0]), *b"ab");
    }

    #[test]
    fn bytes_behind_a_burst_are_found_by_the_first_poll() {
        let Ok(ring) = Ring::new(&ReactorConfig::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        far.write_all(&vec![7; 40_000]).expect("space in the socket");
        let mut received = 0;
        while received < 40_000 {
            received += receive(&ring, &mut socket).expect("bytes").len();
        }
        assert!(socket.poll_recv(&cx).is_pending());
        turn_at_once(&ring);
        far.write_all(b"final").expect("space in the socket");
        turn_at_once(&ring);
        let Poll::Ready(received) = socket.poll_recv(&cx) else { panic!("it was not seen") };
        assert_eq!(&*received.expect("bytes"), b"final");
    }

    #[test]
    fn lent_buffers_are_reused_and_keep_their_bytes() {
        let few =
            ReactorConfig { buffer_count: std::num::NonZeroU16::new(2).expect("two"), ..ReactorConfig::default() };
        let Ok(ring) = Ring::new(&few) else { return };
        let ring = Rc::new(ring);
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        let mut held = std::collections::VecDeque::new();
        for round in 0..9u8 {
            far.write_all(&[round; 3]).expect("an open peer");
            held.push_back((round, receive(&ring, &mut socket).expect("bytes")));
            if held.len() > 1 {
                let (round, chunk) = held.pop_front().expect("two are held");
                assert_eq!(&*chunk, [round; 3]);
            }
        }
    }

    #[test]
    fn cancellation_may_follow_a_completed_one() {
        let Ok(ring) = Ring::new(&ReactorConfig::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        assert!(socket.poll_recv(&cx).is_pending());
        turn_at_once(&ring);
        // The bytes arrive before the cancellation.
        far.write_all(b"x").expect("an open peer");
        assert!(socket.poll_quiesce(&cx).is_pending());
        assert_eq!(&*receive(&ring, &mut socket).expect("bytes"), b"x");
        assert!(socket.poll_recv(&cx).is_pending());
        while socket.poll_quiesce(&cx).is_pending() {
            ring.turn(None).expect("the end of the receive");
        }
        assert!(socket.into_parts().is_some());
    }

    /// Sends small pieces until a multishot receive is in flight.
    fn make_calm(ring: &Rc<Ring>, socket: &mut RingSocket, far: &mut impl Write) {
        for _ in 0..SMALL_RECEIVES_MIN {
            far.write_all(b"x").expect("an open peer");
            assert_eq!(&*receive(ring, socket).expect("bytes"), b"x");
        }
        assert!(socket.poll_recv(&Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(socket.ops.receiving(), RecvKind::Multishot);
    }

    fn turn_at_once(ring: &Ring) {
        ring.turn(Some(std::time::Duration::ZERO)).expect("a turn");
    }

    #[test]
    fn unread_chunks_hold_no_buffer_and_stop_receiving() {
        let few =
            ReactorConfig { buffer_count: std::num::NonZeroU16::new(2).expect("two"), ..ReactorConfig::default() };
        let Ok(ring) = Ring::new(&few) else { return };
        let ring = Rc::new(ring);
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut silent = RingSocket::new(ring.clone(), near.into());
        make_calm(&ring, &mut silent, &mut far);
        let (near, mut other_far) = UnixStream::pair().expect("a pair");
        let mut other = RingSocket::new(ring.clone(), near.into());
        let cx = Context::from_waker(Waker::noop());
        for round in 0..100u8 {
            far.write_all(&[round]).expect("space in the socket");
            turn_at_once(&ring);
            assert!(other.poll_recv(&cx).is_pending());
            other_far.write_all(b"y").expect("an open peer");
            turn_at_once(&ring);
            assert!(other.poll_recv(&cx).is_ready(), "there was a buffer for it");
        }
        assert_eq!(silent.ops.receiving(), RecvKind::None, "unread bytes stay in the kernel");
        let mut received = Vec::new();
        while received.len() < 100 {
            received.extend_from_slice(&receive(&ring, &mut silent).expect("bytes"));
        }
        assert_eq!(received, (0..100).collect::<Vec<u8>>());
    }

    #[test]
    fn burst_switches_to_bulk_and_back_to_multishot() {
        let Ok(ring) = Ring::new(&ReactorConfig::default()) else { return };
        let ring = Rc::new(ring);
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        for _ in 0..2 {
            make_calm(&ring, &mut socket, &mut far);
            let writer = std::thread::spawn(move || {
                far.write_all(&vec![7; 1 << 20]).expect("an open link");
                far
            });
            let (mut rest, mut largest) = (1 << 20, 0);
            while rest > 0 {
                let chunk = receive(&ring, &mut socket).expect("bytes");
                rest -= chunk.len();
                largest = largest.max(chunk.len());
            }
            assert!(largest > ring.buffer_len());
            far = writer.join().expect("the writer");
        }
    }

    /// Linux 6.18 takes the bytes before a reset for the end of the event, and waits for more.
    #[test]
    fn reset_right_behind_the_last_bytes_is_detected() {
        let Ok(ring) = Ring::new(&ReactorConfig::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a ops");
        let mut far = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        let mut socket = RingSocket::new(ring.clone(), listener.accept().expect("a connection").0.into());
        make_calm(&ring, &mut socket, &mut far);
        far.write_all(b"last words").expect("an open peer");
        socket2::SockRef::from(&far).set_linger(Some(std::time::Duration::ZERO)).expect("a socket");
        drop(far);
        assert_eq!(&*receive(&ring, &mut socket).expect("bytes"), b"last words");
        for _ in 0..1_000 {
            match socket.poll_recv(&cx) {
                Poll::Ready(end) => return assert!(end.map_or(true, |chunk| chunk.is_empty())),
                Poll::Pending => ring.turn(Some(std::time::Duration::from_millis(10))).expect("a turn"),
            }
        }
        panic!("the peer close was not detected");
    }

    #[test]
    fn cancelled_multishot_receive_loses_no_bytes() {
        let Ok(ring) = Ring::new(&ReactorConfig::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        make_calm(&ring, &mut socket, &mut far);
        for piece in [b"a", b"b"] {
            far.write_all(piece).expect("an open peer");
            turn_at_once(&ring);
        }
        while socket.poll_quiesce(&cx).is_pending() {
            ring.turn(None).expect("the end of the stream");
        }
        let mut unread = Vec::new();
        socket.take_received(&mut unread);
        assert_eq!(unread, b"ab");
        // The socket can be used again.
        far.write_all(b"c").expect("an open peer");
        assert_eq!(&*receive(&ring, &mut socket).expect("bytes"), b"c");
        while socket.poll_quiesce(&cx).is_pending() {
            ring.turn(None).expect("the end of the stream");
        }
        assert!(socket.into_parts().is_some_and(|(_, unread)| unread.is_empty()));
    }

    #[test]
    fn more_operations_than_ring_entries() {
        let Ok(ring) = Ring::with_entries(&ReactorConfig::default(), 4) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let mut pairs: Vec<(RingSocket, UnixStream)> = (0..100)
            .map(|_| UnixStream::pair().expect("a pair"))
            .map(|(near, far)| (RingSocket::new(ring.clone(), near.into()), far))
            .collect();
        for (socket, far) in &mut pairs {
            assert!(socket.poll_recv(&cx).is_pending());
            far.write_all(b"x").expect("an open peer");
        }
        for (socket, _) in &mut pairs {
            assert_eq!(&*receive(&ring, socket).expect("bytes"), b"x");
            assert!(socket.poll_recv(&cx).is_pending());
        }
        // Each cancellation has two completions.
        pairs.clear();
        while !ring.is_empty() {
            ring.turn(None).expect("the end of the receives");
        }
    }
}
