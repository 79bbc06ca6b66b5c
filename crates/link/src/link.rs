//! A connection: its unread bytes, its send queue, and its TLS state.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    task::{Context, Poll},
};

use rustix::{
    io::Errno,
    net::{RecvFlags, recv},
};

use crate::{
    chunk::Chunk,
    reactor::Reactor,
    socket::Socket,
    tls::{ParkedTls, Tls, TlsInfo, TlsSide},
};

/// A connection with its send queue.
pub struct Link {
    socket: Socket,
    tls: Option<Box<Tls>>,
    queue: VecDeque<Chunk>,
    queued_bytes: usize,
    /// Bytes that the next read returns first.
    unread: Option<Box<Chunk>>,
}

/// Chunks up to this size are appended to the chunk before them, to be sent with one system call.
const COALESCE_BYTES_MAX: usize = 8 * 1024;

impl Link {
    /// Creates a link in plain text from a connected socket.
    ///
    /// # Errors
    /// The socket cannot be registered with the reactor.
    pub fn new(reactor: &Reactor, fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: Socket::new(reactor, fd)?, tls: None, queue: VecDeque::new(), queued_bytes: 0, unread: None })
    }

    /// Reads received bytes; an empty chunk is the end of the stream.
    ///
    /// # Errors
    /// Errors of `recv` and of TLS. A peer that closes without close_notify has ended the stream, without an error.
    ///
    /// # Cancel safety
    /// No bytes are lost when the caller stops polling.
    #[inline]
    pub fn poll_read(&mut self, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        if let Some(chunk) = self.unread.take() {
            return Poll::Ready(Ok(*chunk));
        }
        match &mut self.tls {
            None => self.socket.poll_recv(cx),
            Some(_) => self.poll_read_tls(cx),
        }
    }

    /// Ready when the peer has closed its side, whether or not its data have been read; for callers that do not read
    /// now. While the receive buffer is full, the peer's close waits behind the data that it has yet to send.
    ///
    /// # Cancel safety
    /// No bytes are lost when the caller stops polling.
    pub fn poll_peer_closed(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.socket.poll_peer_closed(cx)
    }

    /// Hints that the peer is in the middle of a large transfer. If several peers are, the next wait of the thread
    /// lasts at least 0.1 ms, so that larger pieces arrive. Has an effect on io_uring of Linux 6.12 and later only.
    pub fn hint_bulk_receive(&self) {
        self.socket.hint_bulk_receive();
    }

    /// Puts a chunk back, to be read first.
    pub fn unread(&mut self, chunk: Chunk) {
        if !chunk.is_empty() {
            debug_assert!(self.unread.is_none(), "at most one chunk is put back");
            self.unread = Some(Box::new(chunk.park()));
        }
    }

    /// Puts a chunk back in front of the chunk that was put back before.
    pub fn unread_before(&mut self, chunk: Chunk) {
        match self.unread.take() {
            Some(later) if !chunk.is_empty() => {
                let mut both = chunk.to_vec();
                both.extend_from_slice(&later);
                self.unread = Some(Box::new(both.into()));
            }
            later => {
                self.unread = later;
                self.unread(chunk);
            }
        }
    }

    fn poll_read_tls(&mut self, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        loop {
            let tls = self.tls.as_mut().expect("the caller has checked for TLS");
            if let Some(plain) = tls.take_plaintext()? {
                return Poll::Ready(Ok(plain));
            }
            if !tls.has_ciphertext() {
                let received = std::task::ready!(self.socket.poll_recv(cx))?;
                if received.is_empty() {
                    return Poll::Ready(Ok(received));
                }
                tls.receive(received);
            }
            let fed = tls.feed();
            self.queue_ciphertext();
            fed?;
            // An alert or a key update must be sent now; a full socket does not stop reading.
            let _ = self.poll_flush(cx)?;
        }
    }

    /// Queues bytes for `poll_flush`.
    pub fn write(&mut self, chunk: impl Into<Chunk>) {
        let chunk = chunk.into();
        match &mut self.tls {
            None => self.enqueue(chunk),
            Some(tls) => {
                tls.encrypt(&chunk);
                drop(chunk);
                self.queue_ciphertext();
            }
        }
    }

    fn queue_ciphertext(&mut self) {
        if let Some(bytes) = self.tls.as_mut().and_then(|tls| tls.take_ciphertext()) {
            self.enqueue(bytes.into());
        }
    }

    fn enqueue(&mut self, chunk: Chunk) {
        if chunk.is_empty() {
            return;
        }
        self.queued_bytes += chunk.len();
        if chunk.len() <= COALESCE_BYTES_MAX
            && let Some(last) = self.queue.back_mut()
            && let Some(bytes) = last.as_growing_vec(chunk.len())
        {
            bytes.extend_from_slice(&chunk);
            last.refresh_end();
            return;
        }
        self.queue.push_back(chunk);
    }

    /// Queued bytes that have not been passed to the kernel.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Sends the queue. Ready once the last chunk has been passed to the kernel, which needs no further poll. Dropping
    /// the link discards a chunk that is still in flight: [`Link::flush`] waits for it.
    ///
    /// # Errors
    /// Errors of `send`; the queue is then lost, and the link is closed. An error of the last chunk may be reported by
    /// the next read.
    ///
    /// # Cancel safety
    /// The chunk in flight continues when the caller stops polling.
    #[inline]
    pub fn poll_flush(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if self.queue.is_empty() {
                return Poll::Ready(Ok(()));
            }
            std::task::ready!(self.socket.poll_sent(cx))?;
            let Some(chunk) = self.queue.pop_front() else { return Poll::Ready(Ok(())) };
            self.queued_bytes -= chunk.len();
            self.socket.start_send(chunk)?;
        }
    }

    /// Sends the queue and waits until the kernel has taken all of it.
    ///
    /// # Errors
    /// As [`Link::poll_flush`].
    pub async fn flush(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_sent(cx)).await
    }

    /// Like [`Link::poll_flush`], and ready when the kernel has taken the whole queue.
    ///
    /// # Errors
    /// As [`Link::poll_flush`].
    ///
    /// # Cancel safety
    /// As [`Link::poll_flush`].
    pub fn poll_sent(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_flush(cx))?;
        self.socket.poll_sent(cx)
    }

    /// Reads received bytes; an empty chunk is the end of the stream.
    ///
    /// # Errors
    /// As [`Link::poll_read`].
    pub async fn read(&mut self) -> io::Result<Chunk> {
        std::future::poll_fn(|cx| self.poll_read(cx)).await
    }

    /// Starts TLS. `early` holds bytes that were read and not used: the first ciphertext.
    ///
    /// # Errors
    /// rustls refuses the configuration.
    pub fn start_tls(&mut self, reactor: &Reactor, side: TlsSide, early: Chunk) -> io::Result<()> {
        let mut tls = Tls::new(reactor.buffer_pool().clone(), side)?;
        if !early.is_empty() {
            tls.receive(early.park());
        }
        self.tls = Some(Box::new(tls));
        self.queue_ciphertext();
        Ok(())
    }

    /// Completes the TLS handshake.
    ///
    /// # Errors
    /// Errors of the socket and of TLS, and the end of the stream during the handshake. An alert has been sent to the
    /// peer.
    pub async fn handshake(&mut self) -> io::Result<TlsInfo> {
        let outcome = std::future::poll_fn(|cx| self.poll_handshake(cx)).await;
        if outcome.is_err() {
            // The alert must be sent before the caller drops the link. The first error has more information than one of
            // this flush.
            let _ = self.flush().await;
        }
        outcome
    }

    fn poll_handshake(&mut self, cx: &Context<'_>) -> Poll<io::Result<TlsInfo>> {
        loop {
            self.queue_ciphertext();
            let flushed = self.poll_flush(cx)?;
            let Some(tls) = self.tls.as_mut() else { return Poll::Ready(Err(io::Error::other("TLS was not started"))) };
            if !tls.is_handshaking() {
                return flushed.map(|()| Ok(tls.info()));
            }
            if !tls.has_ciphertext() {
                let received = std::task::ready!(self.socket.poll_recv(cx))?;
                if received.is_empty() {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                tls.receive(received);
            }
            if let Err(error) = tls.feed() {
                self.queue_ciphertext();
                return Poll::Ready(Err(error));
            }
        }
    }

    /// The negotiated parameters of TLS, if the link is under TLS.
    #[must_use]
    pub fn tls_info(&self) -> Option<TlsInfo> {
        self.tls.as_ref().map(|tls| tls.info())
    }

    /// Whether the link is under TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Cancels the receive in flight and keeps the bytes that it has taken, so that the link can move to another
    /// thread.
    pub fn poll_quiesce(&mut self, cx: &Context<'_>) -> Poll<()> {
        let received = self.socket.poll_quiesce(cx);
        // A failed send has ended too.
        let sent = self.socket.poll_sent(cx).map(drop);
        std::task::ready!(received);
        sent
    }

    /// Takes all bytes that were received and not read, after [`Link::poll_quiesce`] and in plain text: for a process that takes
    /// the connection over. [`Link::unread`] puts them back. If the stream has ended, the next read returns the end.
    pub fn take_unread(&mut self) -> Vec<u8> {
        let mut unread = self.unread.take().map(|chunk| chunk.to_vec()).unwrap_or_default();
        self.socket.take_received(&mut unread);
        unread
    }

    /// Detaches the link from its thread, with all unread bytes. Returns `None`, and closes the link, if an operation
    /// is in flight, if the send queue is not empty, or if the stream has ended.
    #[must_use]
    pub fn park(self) -> Option<ParkedLink> {
        if !self.queue.is_empty() {
            return None;
        }
        let (fd, received) = self.socket.into_parts()?;
        let mut unread = self.unread.map(|chunk| chunk.to_vec()).unwrap_or_default();
        let tls = match self.tls {
            Some(tls) => Some(Box::new(tls.into_parked(&received))),
            None => {
                unread.extend_from_slice(&received);
                None
            }
        };
        Some(ParkedLink { fd, tls, unread })
    }

    /// Shuts the connection down in both directions.
    pub fn shutdown(&mut self) {
        self.socket.shutdown();
    }

    /// Queues close_notify of TLS; plain text has no equivalent.
    pub fn write_close_notify(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close();
        }
        self.queue_ciphertext();
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A link between two threads.
pub struct ParkedLink {
    fd: OwnedFd,
    tls: Option<Box<ParkedTls>>,
    unread: Vec<u8>,
}

impl ParkedLink {
    /// Whether there are unread bytes, or the peer has closed. One system call: the kernel may hold bytes that the
    /// previous thread did not receive.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        let has_unread = !self.unread.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.has_ciphertext());
        let peeked = recv(&self.fd, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        has_unread || !matches!(peeked, Err(Errno::AGAIN))
    }

    /// Attaches the link to the thread of `reactor`.
    ///
    /// # Errors
    /// The socket cannot be registered.
    pub fn unpark(self, reactor: &Reactor) -> io::Result<Link> {
        let mut link = Link::new(reactor, self.fd)?;
        link.tls = self.tls.map(|tls| Box::new(tls.unpark(reactor.buffer_pool().clone())));
        link.unread(self.unread.into());
        Ok(link)
    }
}
