//! One socket, whichever way the thread talks to the kernel.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    task::{Context, Poll},
    time::Duration,
};

use rustix::net::Shutdown;
use socket2::TcpKeepalive;

use crate::{
    chunk::Chunk,
    epoll::PolledSocket,
    reactor::{Io, Reactor},
    uring::RingSocket,
};

/// A connected stream socket of one reactor.
pub struct Socket(Kind);

enum Kind {
    Ring(RingSocket),
    Polled(PolledSocket),
}

impl Socket {
    /// Takes a connected socket over.
    ///
    /// # Errors
    /// When it cannot be registered.
    pub fn new(reactor: &Reactor, fd: OwnedFd) -> io::Result<Self> {
        Ok(Self(match reactor.io() {
            Io::Uring(ring) => Kind::Ring(RingSocket::new(ring.clone(), fd)),
            Io::Epoll(poller) => Kind::Polled(PolledSocket::new(poller.clone(), fd)?),
        }))
    }

    /// Receives what has arrived; an empty chunk is the end of the stream.
    ///
    /// # Errors
    /// Those of `recv`.
    ///
    /// # Cancel safety
    /// Nothing is lost when the caller stops polling.
    #[inline]
    pub fn poll_recv(&mut self, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        match &mut self.0 {
            Kind::Ring(socket) => socket.poll_recv(cx),
            Kind::Polled(socket) => socket.poll_recv(cx),
        }
    }

    /// Ready when the peer has closed its side, be all that it sent read or not.
    pub(crate) fn poll_left(&mut self, cx: &Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Kind::Ring(socket) => socket.poll_left(cx),
            Kind::Polled(socket) => socket.poll_left(cx),
        }
    }

    /// The peer is in the middle of a great deal.
    pub(crate) fn expect_much(&self) {
        match &self.0 {
            Kind::Ring(socket) => socket.expect_much(),
            Kind::Polled(_) => {}
        }
    }

    /// Begins to send `chunk`, of which `poll_sent` tells the end; one at a time.
    pub(crate) fn start_send(&mut self, chunk: Chunk) -> io::Result<()> {
        match &mut self.0 {
            Kind::Ring(socket) => socket.start_send(chunk),
            Kind::Polled(socket) => {
                socket.start_send(chunk);
                Ok(())
            }
        }
    }

    /// Ready when nothing is being sent.
    #[inline]
    pub(crate) fn poll_sent(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Kind::Ring(socket) => socket.poll_sent(cx),
            Kind::Polled(socket) => socket.poll_sent(cx).map(Ok),
        }
    }

    pub(crate) fn poll_quiesce(&mut self, cx: &Context<'_>) -> Poll<()> {
        match &mut self.0 {
            Kind::Ring(socket) => socket.poll_quiesce(cx),
            Kind::Polled(_) => Poll::Ready(()),
        }
    }

    /// The bare socket with what was received from it, if nothing is under way on it and the stream has not ended.
    pub(crate) fn into_parts(self) -> Option<(OwnedFd, Chunk)> {
        match self.0 {
            Kind::Ring(socket) => socket.into_parts(),
            Kind::Polled(socket) => Some((socket.into_fd()?, Chunk::empty())),
        }
    }

    /// Tells the peer at once that no more comes, and ends receives under way.
    pub fn shutdown(&self) {
        // A peer that has gone already is no error here.
        let _ = rustix::net::shutdown(self.as_fd(), Shutdown::Both);
    }
}

/// Small messages leave at once, and a peer that is gone is noticed. Connections take this over from their listener.
/// `address` is that of the other end, or the one that is listened on.
pub(crate) fn tune(socket: &socket2::Socket, address: Option<SocketAddr>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if address.is_some_and(|address| address.ip().is_loopback()) {
        // Nothing is congested within a machine. Of all controls this one does the least, and every kernel has it; the
        // system's own may be BBR, which measures and paces what it sends.
        let _ = socket.set_tcp_congestion(b"reno");
    }
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));
    socket.set_tcp_keepalive(&keepalive)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Ring(socket) => socket.fd().as_fd(),
            Kind::Polled(socket) => socket.fd().as_fd(),
        }
    }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, SockRef, Type};

    use super::*;

    fn congestion(socket: &impl AsFd) -> Vec<u8> {
        let name = SockRef::from(socket).tcp_congestion().expect("it can be asked");
        name.into_iter().take_while(|byte| *byte != 0).collect()
    }

    #[test]
    fn within_a_machine_nothing_is_measured_or_paced() {
        let usual = congestion(&socket2::Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket"));
        for (address, wanted) in [("127.0.0.1:1", &b"reno"[..]), ("192.0.2.1:1", &usual)] {
            let socket = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            tune(&socket, Some(address.parse().expect("an address"))).expect("it can be set");
            assert_eq!(congestion(&socket), wanted, "{address}");
        }
    }

    #[test]
    fn those_who_connect_take_over_what_the_listener_has() {
        let listener = crate::Listener::tcp("127.0.0.1:0".parse().expect("an address"), 1).expect("it listens");
        let address = listener.local_addr().expect("an address");
        let client = std::net::TcpStream::connect(address).expect("it connects");
        let accepted = SockRef::from(&listener).accept().expect("it was accepted").0;
        assert_eq!(congestion(&accepted), b"reno");
        drop(client);
    }
}
