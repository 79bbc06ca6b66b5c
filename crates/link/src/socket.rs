//! A socket on io_uring or epoll.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    task::{Context, Poll},
};

use rustix::net::Shutdown;

use crate::{
    chunk::Chunk,
    epoll::PolledSocket,
    reactor::{Reactor, ReactorBackend},
    uring::RingSocket,
};

/// A connected stream socket of one reactor.
pub struct Socket(SocketBackend);

enum SocketBackend {
    Ring(RingSocket),
    Polled(PolledSocket),
}

impl Socket {
    /// Registers a connected socket.
    ///
    /// # Errors
    /// The socket cannot be registered.
    pub fn new(reactor: &Reactor, fd: OwnedFd) -> io::Result<Self> {
        Ok(Self(match reactor.io() {
            ReactorBackend::Uring(ring) => SocketBackend::Ring(RingSocket::new(ring.clone(), fd)),
            ReactorBackend::Epoll(poller) => SocketBackend::Polled(PolledSocket::new(poller.clone(), fd)?),
        }))
    }

    /// Receives bytes; an empty chunk is the end of the stream.
    ///
    /// # Errors
    /// Errors of `recv`.
    ///
    /// # Cancel safety
    /// No bytes are lost when the caller stops polling.
    #[inline]
    pub fn poll_recv(&mut self, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        match &mut self.0 {
            SocketBackend::Ring(socket) => socket.poll_recv(cx),
            SocketBackend::Polled(socket) => socket.poll_recv(cx),
        }
    }

    /// Ready when the peer has closed its side, whether or not its data have been read.
    pub(crate) fn poll_peer_closed(&mut self, cx: &Context<'_>) -> Poll<()> {
        match &mut self.0 {
            SocketBackend::Ring(socket) => socket.poll_peer_closed(cx),
            SocketBackend::Polled(socket) => socket.poll_peer_closed(cx),
        }
    }

    /// Hints that the peer is in the middle of a large transfer.
    pub(crate) fn hint_bulk_receive(&self) {
        match &self.0 {
            SocketBackend::Ring(socket) => socket.hint_bulk_receive(),
            SocketBackend::Polled(_) => {}
        }
    }

    /// Starts to send `chunk`; `poll_sent` reports the end. One send at a time.
    pub(crate) fn start_send(&mut self, chunk: Chunk) -> io::Result<()> {
        match &mut self.0 {
            SocketBackend::Ring(socket) => socket.start_send(chunk),
            SocketBackend::Polled(socket) => {
                socket.start_send(chunk);
                Ok(())
            }
        }
    }

    /// Ready when no send is in flight.
    #[inline]
    pub(crate) fn poll_sent(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            SocketBackend::Ring(socket) => socket.poll_sent(cx),
            SocketBackend::Polled(socket) => socket.poll_sent(cx).map(Ok),
        }
    }

    pub(crate) fn poll_quiesce(&mut self, cx: &Context<'_>) -> Poll<()> {
        match &mut self.0 {
            SocketBackend::Ring(socket) => socket.poll_quiesce(cx),
            SocketBackend::Polled(_) => Poll::Ready(()),
        }
    }

    /// Appends received bytes, if no receive is in flight.
    pub(crate) fn take_received(&mut self, bytes: &mut Vec<u8>) {
        if let SocketBackend::Ring(socket) = &mut self.0 {
            socket.take_received(bytes);
        }
    }

    /// Returns the descriptor and the unread bytes, if no operation is in flight and the stream has not ended.
    pub(crate) fn into_parts(self) -> Option<(OwnedFd, Chunk)> {
        match self.0 {
            SocketBackend::Ring(socket) => socket.into_parts(),
            SocketBackend::Polled(socket) => Some((socket.into_fd()?, Chunk::empty())),
        }
    }

    /// Shuts the connection down in both directions, which ends a receive in flight.
    pub fn shutdown(&self) {
        // The peer may have closed already.
        let _ = rustix::net::shutdown(self.as_fd(), Shutdown::Both);
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            SocketBackend::Ring(socket) => socket.fd().as_fd(),
            SocketBackend::Polled(socket) => socket.fd().as_fd(),
        }
    }
}
