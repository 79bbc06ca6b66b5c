//! Sockets on io_uring: an operation is handed to the kernel together with its buffer, and comes back with it.
//!
//! Receives take their buffer from a ring of buffers shared with the kernel, so a waiting socket owns none. When the
//! ring runs dry, or when a peer sends in bulk, a receive takes a large buffer of its own instead.

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
mod once;
mod port;
#[allow(unsafe_code)]
mod ring;
mod spoken;

pub(crate) use buffers::Loan;
pub(crate) use ring::Ring;

use once::{Deed, Once, Pending};
use port::{Look, Port, Receiving};

/// One socket on the ring.
pub(crate) struct RingSocket {
    ring: Rc<Ring>,
    port: Rc<Port>,
    /// The last receive filled its buffer: the peer sends faster than a lent buffer holds.
    bulk: bool,
    /// A receive was put under way before.
    acquainted: bool,
    /// So many receives in turn have not filled a buffer.
    calm: u8,
    /// The receive under way was asked to end.
    stopping: bool,
    /// Tells when the peer has left; from the first time on that somebody wanted to know.
    leaving: Option<Box<Pending>>,
}

/// After so many small receives the peer is taken for one that sends little at a time, and one receive is left under way
/// for all that it sends.
const CALM_MIN: u8 = 8;

impl RingSocket {
    pub(crate) fn new(ring: Rc<Ring>, fd: OwnedFd) -> Self {
        let port = Rc::new(Port::new(fd));
        ring.adopt(&port);
        Self { ring, port, bulk: false, acquainted: false, calm: 0, stopping: false, leaving: None }
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        self.port.fd()
    }

    #[inline]
    pub(crate) fn poll_recv(&mut self, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        loop {
            match self.port.look() {
                Look::UnderWay => {
                    if self.calm == 0 && self.port.receiving() == Receiving::Stream {
                        // Larger buffers are to take its place.
                        self.stop();
                    }
                    self.port.await_bytes(cx);
                    return Poll::Pending;
                }
                Look::Idle => self.arm()?,
                Look::Done(Err(error)) if ran_dry(&error) || (found_nothing(&error) && self.bulk) => {
                    // That may be long ago.
                    if let Some(received) = self.receive_now() {
                        return Poll::Ready(self.note(received));
                    }
                    self.bulk = false;
                }
                Look::Done(received) => return Poll::Ready(self.note(received)),
            }
        }
    }

    /// Ready when the peer has closed its side, be all that it sent read or not.
    pub(crate) fn poll_left(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.leaving.is_none() {
            // Who cannot be watched is seen to have left when it is read.
            self.leaving =
                Pending::begin(&self.ring, Once::new(self.port.clone(), Deed::AwaitLeaving)).ok().map(Box::new);
        }
        let Some(pending) = &mut self.leaving else { return Poll::Pending };
        let ended = std::task::ready!(pending.poll(cx));
        self.leaving = None;
        if ended.is_ok() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The peer is in the middle of a great deal.
    pub(crate) fn expect_much(&self) {
        self.ring.gather(&self.port);
    }

    /// Notes whether the peer fills the buffers it is given.
    #[inline]
    fn note(&mut self, received: io::Result<Chunk>) -> io::Result<Chunk> {
        if let Ok(chunk) = &received {
            self.bulk = chunk.len() >= self.ring.buffer_len();
            self.calm = if self.bulk { 0 } else { self.calm.saturating_add(1) };
        }
        received
    }

    fn arm(&mut self) -> io::Result<()> {
        self.stopping = false;
        if self.bulk {
            return self.arm_bulk();
        }
        if self.calm >= CALM_MIN {
            self.ring.acquaint(&self.port);
            return self.ring.stream(&self.port);
        }
        // A peer that was just connected has often spoken already; later, nothing has come by the time we listen.
        let is_first = !std::mem::replace(&mut self.acquainted, true);
        self.ring.receive(&self.port, is_first)
    }

    /// Asks for the end of the receive under way.
    fn stop(&mut self) {
        if !std::mem::replace(&mut self.stopping, true) {
            self.ring.cancel_receive(&self.port);
        }
    }

    /// Receives what is there into a large buffer. It does not wait with it: a peer that has paused would make an idle
    /// link own it.
    fn arm_bulk(&mut self) -> io::Result<()> {
        self.bulk = true;
        self.ring.receive_bulk(&self.port)
    }

    /// Receives without the ring, where a receive has ended without bytes and nobody has looked since: who wants to know
    /// whether an idle peer has left looks once. Nothing if there is nothing.
    fn receive_now(&self) -> Option<io::Result<Chunk>> {
        let mut room = self.ring.room();
        loop {
            match recv(self.fd(), room.as_mut_slice(), RecvFlags::DONTWAIT) {
                Ok((len, _)) => return Some(Ok(Chunk::bulk(room, len))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                Err(error) => return Some(Err(error.into())),
            }
        }
    }

    /// Begins to send; the caller has seen the last send complete.
    pub(crate) fn start_send(&mut self, chunk: Chunk) -> io::Result<()> {
        debug_assert!(!self.port.is_sending(), "one send at a time");
        self.ring.send(&self.port, chunk)
    }

    /// Ready when nothing is being sent. A send that failed is known by the next receive, which fails or finds the end.
    pub(crate) fn poll_sent(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        if self.is_sent() {
            return Poll::Ready(Ok(()));
        }
        self.port.await_sent(cx);
        Poll::Pending
    }

    /// Whether nothing is being sent, without asking to be woken.
    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        !self.port.is_sending()
    }

    /// Ends the receive under way; bytes it had already taken come with the next `poll_recv`.
    pub(crate) fn poll_quiesce(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.port.receiving() == Receiving::Nothing {
            self.stopping = false;
            return Poll::Ready(());
        }
        self.stop();
        self.port.await_bytes(cx);
        Poll::Pending
    }

    /// The bare socket with what was received from it, if nothing is under way on it and the stream has not ended.
    pub(crate) fn into_parts(self) -> Option<(OwnedFd, Chunk)> {
        if !self.port.is_at_rest() {
            return None;
        }
        let mut bytes = Vec::new();
        while let Look::Done(received) = self.port.look() {
            match received {
                Ok(chunk) if chunk.is_empty() => return None,
                Ok(chunk) => bytes.extend_from_slice(&chunk),
                Err(error) if ran_dry(&error) || found_nothing(&error) => {}
                Err(_) => return None,
            }
        }
        let port = Rc::clone(&self.port);
        // Which gives the slot up, with its share of the port.
        drop(self);
        Some((Rc::try_unwrap(port).ok()?.into_fd(), bytes.into()))
    }
}

impl Drop for RingSocket {
    fn drop(&mut self) {
        self.port.abandon();
        if self.port.is_at_rest() {
            self.ring.vacate(self.port.slot());
            return;
        }
        if self.port.receiving() != Receiving::Nothing {
            self.ring.cancel_receive(&self.port);
        }
        if self.port.is_sending() {
            // Nobody is left to wait for a peer that does not read.
            let _ = rustix::net::shutdown(self.port.fd(), rustix::net::Shutdown::Both);
        }
    }
}

/// The ring of buffers has none left.
fn ran_dry(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error())
}

/// A receive that does not wait has found no bytes.
fn found_nothing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// The operation ended because it was asked to.
fn was_stopped(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::CANCELED.raw_os_error())
}

/// A listener on the ring.
pub(crate) struct RingListener {
    ring: Rc<Ring>,
    fd: Rc<OwnedFd>,
    /// Tells when somebody has come.
    arrival: RefCell<Option<Pending>>,
}

impl RingListener {
    pub(crate) fn new(ring: Rc<Ring>, fd: Rc<OwnedFd>) -> Self {
        Self { ring, fd, arrival: RefCell::default() }
    }

    /// Ready when somebody has come. It is asked again for each.
    pub(crate) fn poll_arrival(&self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let mut arrival = self.arrival.borrow_mut();
        let pending = match &mut *arrival {
            Some(pending) => pending,
            none => none.insert(Pending::begin(&self.ring, Once::new(self.fd.clone(), Deed::AwaitArrival))?),
        };
        let outcome = std::task::ready!(pending.poll(cx));
        *arrival = None;
        Poll::Ready(outcome)
    }

    /// Ready when it will hear of nobody more.
    pub(crate) fn poll_deaf(&self, cx: &Context<'_>) -> Poll<()> {
        let mut arrival = self.arrival.borrow_mut();
        let Some(pending) = &mut *arrival else { return Poll::Ready(()) };
        pending.ask_to_stop();
        let _ = std::task::ready!(pending.poll(cx));
        *arrival = None;
        Poll::Ready(())
    }

    pub(crate) fn turn(&self) -> u64 {
        self.ring.turns()
    }
}

/// Connects a socket that was just made.
pub(crate) async fn connect(ring: Rc<Ring>, fd: OwnedFd, address: SockAddr) -> io::Result<OwnedFd> {
    let fd = Rc::new(fd);
    let mut pending = Pending::begin(&ring, Once::new(fd.clone(), Deed::Connect(address)))?;
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
    use crate::reactor::Settings;

    /// Receives until nothing is left to be had.
    fn drain(socket: &mut RingSocket, mut expected: usize) {
        let cx = Context::from_waker(Waker::noop());
        loop {
            match socket.poll_recv(&cx) {
                Poll::Ready(received) => expected -= received.expect("bytes").len(),
                Poll::Pending if expected == 0 && socket.port.receiving() != Receiving::Bulk => return,
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
    fn a_connection_that_stays_is_known_by_a_number_and_ends_with_its_socket() {
        let Ok(ring) = Ring::new(&Settings::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let mut numbers = Vec::new();
        for _ in 0..2 {
            let (near, mut far) = UnixStream::pair().expect("a pair");
            let mut socket = RingSocket::new(ring.clone(), near.into());
            for _ in 0..CALM_MIN {
                assert_eq!(socket.port.number(), None);
                far.write_all(b"x").expect("a link that reads");
                receive(&ring, &mut socket).expect("a byte");
            }
            assert!(socket.poll_recv(&cx).is_pending());
            numbers.push(socket.port.number());
            socket.start_send(b"yz".to_vec().into()).expect("it begins");
            while !socket.is_sent() {
                ring.turn(None).expect("the end of the send");
            }
            drop(socket);
            while !ring.is_vacant() {
                ring.turn(None).expect("the end of the receive");
            }
            let mut sent = Vec::new();
            far.read_to_end(&mut sent).expect("the descriptor is closed");
            assert_eq!(sent, b"yz");
        }
        assert!(numbers[0].is_none() || numbers[0] == numbers[1], "it goes to the next one: {numbers:?}");
    }

    #[test]
    fn a_socket_that_is_dropped_with_a_receive_under_way_leaves_nothing_behind() {
        let Ok(ring) = Ring::new(&Settings::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        for bulk in [false, true] {
            let (near, mut far) = UnixStream::pair().expect("a pair");
            let mut socket = RingSocket::new(ring.clone(), near.into());
            socket.bulk = bulk;
            assert!(socket.poll_recv(&cx).is_pending());
            drop(socket);
            while !ring.is_vacant() {
                ring.turn(None).expect("the end of the receive");
            }
            assert!(far.write_all(b"x").is_err(), "the descriptor is closed with the last operation");
        }
    }

    #[test]
    fn a_peer_that_leaves_is_seen_though_nobody_reads_what_it_has_said() {
        let Ok(ring) = Ring::new(&Settings::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        for leaves in [true, false] {
            let (near, mut far) = UnixStream::pair().expect("a pair");
            let mut socket = RingSocket::new(ring.clone(), near.into());
            far.write_all(b"last words").expect("room in the socket");
            assert!(socket.poll_left(&cx).is_pending());
            turn_at_once(&ring);
            assert!(socket.poll_left(&cx).is_pending());
            if leaves {
                drop(far);
                while socket.poll_left(&cx).is_pending() {
                    ring.turn(None).expect("an event");
                }
                assert_eq!(&*receive(&ring, &mut socket).expect("bytes"), b"last words");
            }
            drop(socket);
            while !ring.is_vacant() {
                ring.turn(None).expect("the end of the watch");
            }
        }
    }

    #[test]
    fn a_socket_that_is_dropped_with_a_send_under_way_leaves_nothing_behind() {
        let Ok(ring) = Ring::new(&Settings::default()) else { return };
        let ring = Rc::new(ring);
        let (near, _far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        // More than the peer, who does not read, has room for.
        socket.start_send(vec![7; 16 << 20].into()).expect("room in the ring");
        turn_at_once(&ring);
        assert!(!socket.is_sent());
        drop(socket);
        while !ring.is_vacant() {
            ring.turn(None).expect("the end of the send");
        }
    }

    #[test]
    fn a_ring_that_ends_waits_for_what_is_under_way() {
        let Ok(ring) = Ring::new(&Settings::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        assert!(socket.poll_recv(&cx).is_pending());
        turn_at_once(&ring);
        drop((socket, ring));
        assert!(far.write_all(b"x").is_err(), "the descriptor is closed");
    }

    /// As a server of a pool is looked at before its next client gets it.
    #[test]
    fn what_came_while_all_buffers_were_lent_is_seen_at_the_first_look() {
        let few = Settings { buffers: std::num::NonZeroU16::new(2).expect("two"), ..Settings::default() };
        let Ok(ring) = Ring::new(&few) else { return };
        let ring = Rc::new(ring);
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        let held = [b"a", b"b"].map(|bytes| {
            far.write_all(bytes).expect("a link that reads");
            receive(&ring, &mut socket).expect("a byte")
        });
        let (near, mut idle_far) = UnixStream::pair().expect("a pair");
        let mut idle = RingSocket::new(ring.clone(), near.into());
        let cx = Context::from_waker(Waker::noop());
        assert!(idle.poll_recv(&cx).is_pending());
        turn_at_once(&ring);
        for words in [&b"farewell"[..], b""] {
            match words {
                b"" => drop(idle_far.shutdown(std::net::Shutdown::Both)),
                words => idle_far.write_all(words).expect("room in the socket"),
            }
            turn_at_once(&ring);
            let Poll::Ready(heard) = idle.poll_recv(&cx) else { panic!("{words:?} was not seen") };
            assert_eq!(&*heard.expect("bytes"), words);
            let _ = idle.poll_recv(&cx).is_pending();
        }
        assert_eq!(held.map(|chunk| chunk[0]), *b"ab");
    }

    #[test]
    fn what_came_behind_a_burst_is_seen_at_the_first_look() {
        let Ok(ring) = Ring::new(&Settings::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        far.write_all(&vec![7; 40_000]).expect("room in the socket");
        let mut heard = 0;
        while heard < 40_000 {
            heard += receive(&ring, &mut socket).expect("bytes").len();
        }
        assert!(socket.poll_recv(&cx).is_pending());
        turn_at_once(&ring);
        far.write_all(b"farewell").expect("room in the socket");
        turn_at_once(&ring);
        let Poll::Ready(heard) = socket.poll_recv(&cx) else { panic!("it was not seen") };
        assert_eq!(&*heard.expect("bytes"), b"farewell");
    }

    #[test]
    fn lent_buffers_go_round_and_keep_their_bytes_apart() {
        let few = Settings { buffers: std::num::NonZeroU16::new(2).expect("two"), ..Settings::default() };
        let Ok(ring) = Ring::new(&few) else { return };
        let ring = Rc::new(ring);
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        let mut held = std::collections::VecDeque::new();
        for round in 0..9u8 {
            far.write_all(&[round; 3]).expect("a peer that reads");
            held.push_back((round, receive(&ring, &mut socket).expect("bytes")));
            if held.len() > 1 {
                let (round, chunk) = held.pop_front().expect("two are held");
                assert_eq!(&*chunk, [round; 3]);
            }
        }
    }

    #[test]
    fn a_receive_that_nobody_ends_any_more_can_be_ended_later() {
        let Ok(ring) = Ring::new(&Settings::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        assert!(socket.poll_recv(&cx).is_pending());
        turn_at_once(&ring);
        // It has come before it is asked to end.
        far.write_all(b"x").expect("a peer that reads");
        assert!(socket.poll_quiesce(&cx).is_pending());
        assert_eq!(&*receive(&ring, &mut socket).expect("bytes"), b"x");
        assert!(socket.poll_recv(&cx).is_pending());
        while socket.poll_quiesce(&cx).is_pending() {
            ring.turn(None).expect("the end of the receive");
        }
        assert!(socket.into_parts().is_some());
    }

    /// Lets the peer say little so often that one receive is left under way for all that follows.
    fn make_calm(ring: &Rc<Ring>, socket: &mut RingSocket, far: &mut impl Write) {
        for _ in 0..CALM_MIN {
            far.write_all(b"x").expect("a peer that reads");
            assert_eq!(&*receive(ring, socket).expect("bytes"), b"x");
        }
        assert!(socket.poll_recv(&Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(socket.port.receiving(), Receiving::Stream);
    }

    fn turn_at_once(ring: &Ring) {
        ring.turn(Some(std::time::Duration::ZERO)).expect("a turn");
    }

    #[test]
    fn what_nobody_reads_keeps_no_buffer_from_others_and_stops_the_stream() {
        let few = Settings { buffers: std::num::NonZeroU16::new(2).expect("two"), ..Settings::default() };
        let Ok(ring) = Ring::new(&few) else { return };
        let ring = Rc::new(ring);
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut silent = RingSocket::new(ring.clone(), near.into());
        make_calm(&ring, &mut silent, &mut far);
        let (near, mut other_far) = UnixStream::pair().expect("a pair");
        let mut other = RingSocket::new(ring.clone(), near.into());
        let cx = Context::from_waker(Waker::noop());
        for round in 0..100u8 {
            far.write_all(&[round]).expect("room in the socket");
            turn_at_once(&ring);
            assert!(other.poll_recv(&cx).is_pending());
            other_far.write_all(b"y").expect("a peer that reads");
            turn_at_once(&ring);
            assert!(other.poll_recv(&cx).is_ready(), "there was a buffer for it");
        }
        assert_eq!(silent.port.receiving(), Receiving::Nothing, "what is not read stays in the kernel");
        let mut heard = Vec::new();
        while heard.len() < 100 {
            heard.extend_from_slice(&receive(&ring, &mut silent).expect("bytes"));
        }
        assert_eq!(heard, (0..100).collect::<Vec<u8>>());
    }

    #[test]
    fn a_calm_peer_that_bursts_is_given_large_buffers_and_a_stream_again_later() {
        let Ok(ring) = Ring::new(&Settings::default()) else { return };
        let ring = Rc::new(ring);
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        for _ in 0..2 {
            make_calm(&ring, &mut socket, &mut far);
            let writer = std::thread::spawn(move || {
                far.write_all(&vec![7; 1 << 20]).expect("a link that reads");
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

    /// The kernel (6.18) takes what came before a reset for all that there is, and waits for more that cannot come.
    #[test]
    fn a_peer_that_speaks_and_resets_is_seen_to_have_left() {
        let Ok(ring) = Ring::new(&Settings::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut far = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        let mut socket = RingSocket::new(ring.clone(), listener.accept().expect("it has connected").0.into());
        make_calm(&ring, &mut socket, &mut far);
        far.write_all(b"last words").expect("a peer that reads");
        socket2::SockRef::from(&far).set_linger(Some(std::time::Duration::ZERO)).expect("a socket");
        drop(far);
        assert_eq!(&*receive(&ring, &mut socket).expect("bytes"), b"last words");
        for _ in 0..1_000 {
            match socket.poll_recv(&cx) {
                Poll::Ready(end) => return assert!(end.map_or(true, |chunk| chunk.is_empty())),
                Poll::Pending => ring.turn(Some(std::time::Duration::from_millis(10))).expect("a turn"),
            }
        }
        panic!("nobody noticed");
    }

    #[test]
    fn a_stream_that_ends_for_a_journey_loses_nothing() {
        let Ok(ring) = Ring::new(&Settings::default()) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut socket = RingSocket::new(ring.clone(), near.into());
        make_calm(&ring, &mut socket, &mut far);
        for piece in [b"a", b"b"] {
            far.write_all(piece).expect("a peer that reads");
            turn_at_once(&ring);
        }
        while socket.poll_quiesce(&cx).is_pending() {
            ring.turn(None).expect("the end of the stream");
        }
        let (_, unread) = socket.into_parts().expect("a socket at rest");
        assert_eq!(&*unread, b"ab");
    }

    #[test]
    fn more_at_once_than_a_ring_holds_is_taken_in_portions() {
        let Ok(ring) = Ring::with_entries(&Settings::default(), 4) else { return };
        let ring = Rc::new(ring);
        let cx = Context::from_waker(Waker::noop());
        let mut pairs: Vec<(RingSocket, UnixStream)> = (0..100)
            .map(|_| UnixStream::pair().expect("a pair"))
            .map(|(near, far)| (RingSocket::new(ring.clone(), near.into()), far))
            .collect();
        for (socket, far) in &mut pairs {
            assert!(socket.poll_recv(&cx).is_pending());
            far.write_all(b"x").expect("a peer that reads");
        }
        for (socket, _) in &mut pairs {
            assert_eq!(&*receive(&ring, socket).expect("bytes"), b"x");
            assert!(socket.poll_recv(&cx).is_pending());
        }
        // Each is asked to end, and each answers twice.
        pairs.clear();
        while !ring.is_vacant() {
            ring.turn(None).expect("the end of the receives");
        }
    }
}
