//! One connection: what it reads, what it has yet to send, and whether TLS lies between.

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

/// A connection with its queue of bytes to send.
pub struct Link {
    socket: Socket,
    tls: Option<Box<Tls>>,
    queue: VecDeque<Chunk>,
    queued_bytes: usize,
    /// Received before the link became what it is now: read first.
    early: Option<Box<Chunk>>,
}

/// Pieces up to this size are appended to the piece before them, so that they leave in one send.
const COALESCE_BYTES_MAX: usize = 8 * 1024;

impl Link {
    /// Takes a connected socket over, in plain text.
    ///
    /// # Errors
    /// When the socket cannot be registered with the reactor.
    pub fn new(reactor: &Reactor, fd: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: Socket::new(reactor, fd)?, tls: None, queue: VecDeque::new(), queued_bytes: 0, early: None })
    }

    /// Reads what has arrived; an empty chunk is the end of the stream.
    ///
    /// # Errors
    /// Those of `recv`, and of TLS. A peer that leaves TLS without a farewell has simply ended the stream.
    ///
    /// # Cancel safety
    /// Nothing is lost when the caller stops polling.
    #[inline]
    pub fn poll_read(&mut self, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        if let Some(chunk) = self.early.take() {
            return Poll::Ready(Ok(*chunk));
        }
        match &mut self.tls {
            None => self.socket.poll_recv(cx),
            Some(_) => self.poll_read_tls(cx),
        }
    }

    /// Ready when the peer has closed its side, be all that it sent read or not: for whoever does not read now. What the peer's
    /// machine has yet to send, for want of room here, goes before that.
    ///
    /// # Cancel safety
    /// Nothing is lost when the caller stops polling.
    pub fn poll_left(&mut self, cx: &Context<'_>) -> Poll<()> {
        self.socket.poll_left(cx)
    }

    /// The peer is in the middle of a great deal. Where several are, the next wait of the thread lasts a tenth of a millisecond
    /// at least, so that it comes in larger pieces. Over io_uring of Linux 6.12 and later; else nothing happens.
    pub fn expect_much(&self) {
        self.socket.expect_much();
    }

    /// Puts bytes that were read back, to be read again first.
    pub fn unread(&mut self, chunk: Chunk) {
        if !chunk.is_empty() {
            debug_assert!(self.early.is_none(), "one chunk at most is put back");
            self.early = Some(Box::new(chunk.park()));
        }
    }

    /// Puts bytes back in front of those that were put back before.
    pub fn unread_before(&mut self, chunk: Chunk) {
        match self.early.take() {
            Some(later) if !chunk.is_empty() => {
                let mut both = chunk.to_vec();
                both.extend_from_slice(&later);
                self.early = Some(Box::new(both.into()));
            }
            later => {
                self.early = later;
                self.unread(chunk);
            }
        }
    }

    fn poll_read_tls(&mut self, cx: &Context<'_>) -> Poll<io::Result<Chunk>> {
        loop {
            let tls = self.tls.as_mut().expect("called for a link under TLS");
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
            // An alert or a key update may have to leave now; a full socket does not stop reading.
            let _ = self.poll_flush(cx)?;
        }
    }

    /// Puts bytes into the queue to be sent by `poll_flush`.
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

    /// Bytes written that have not been handed to the kernel.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Sends what is queued; ready once the last piece is on its way, which then needs no further poll. A link that is
    /// dropped gives that piece up: [`Link::flush`] waits for it.
    ///
    /// # Errors
    /// Those of `send`; what was queued is then lost, and so is the link. An error of the last piece may be known only
    /// to the next read.
    ///
    /// # Cancel safety
    /// Sending goes on when the caller stops polling, up to the piece under way.
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

    /// Sends what is queued and waits until the kernel has it all.
    ///
    /// # Errors
    /// As `poll_flush`.
    pub async fn flush(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_sent(cx)).await
    }

    /// As `poll_flush`, and ready when the kernel has all of it.
    ///
    /// # Errors
    /// As `poll_flush`.
    ///
    /// # Cancel safety
    /// As `poll_flush`.
    pub fn poll_sent(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.poll_flush(cx))?;
        self.socket.poll_sent(cx)
    }

    /// Reads what has arrived; an empty chunk is the end of the stream.
    ///
    /// # Errors
    /// As `poll_read`.
    pub async fn read(&mut self) -> io::Result<Chunk> {
        std::future::poll_fn(|cx| self.poll_read(cx)).await
    }

    /// Begins TLS: bytes already read but not used, `early`, are its first ciphertext.
    ///
    /// # Errors
    /// When rustls refuses the configuration.
    pub fn start_tls(&mut self, reactor: &Reactor, side: TlsSide, early: Chunk) -> io::Result<()> {
        let mut tls = Tls::new(reactor.shelf().clone(), side)?;
        if !early.is_empty() {
            tls.receive(early.park());
        }
        self.tls = Some(Box::new(tls));
        self.queue_ciphertext();
        Ok(())
    }

    /// Completes the handshake of TLS.
    ///
    /// # Errors
    /// Those of the socket, of TLS, and the end of the stream in between. The peer has been told why.
    pub async fn handshake(&mut self) -> io::Result<TlsInfo> {
        let outcome = std::future::poll_fn(|cx| self.poll_handshake(cx)).await;
        if outcome.is_err() {
            // The alert must have left before the caller drops the link. If it cannot leave, the first error says more.
            let _ = self.flush().await;
        }
        outcome
    }

    fn poll_handshake(&mut self, cx: &Context<'_>) -> Poll<io::Result<TlsInfo>> {
        loop {
            self.queue_ciphertext();
            let flushed = self.poll_flush(cx)?;
            let Some(tls) = self.tls.as_mut() else { return Poll::Ready(Err(io::Error::other("TLS was not begun"))) };
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

    /// What TLS agreed on, if the link is under TLS.
    #[must_use]
    pub fn tls_info(&self) -> Option<TlsInfo> {
        self.tls.as_ref().map(|tls| tls.info())
    }

    /// Whether the link is under TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Ends the receive under way without losing what it took, so that the link may leave its thread.
    pub fn poll_quiesce(&mut self, cx: &Context<'_>) -> Poll<()> {
        let received = self.socket.poll_quiesce(cx);
        // A send that fails has ended as well.
        let sent = self.socket.poll_sent(cx).map(drop);
        std::task::ready!(received);
        sent
    }

    /// Takes the link apart for the journey to another thread, with all that was received and not read. `None`, and the
    /// link is closed, if something is under way on it, if bytes wait to be sent, or if the stream has ended.
    #[must_use]
    pub fn park(self) -> Option<ParkedLink> {
        if !self.queue.is_empty() {
            return None;
        }
        let (fd, received) = self.socket.into_parts()?;
        let mut early = self.early.map(|chunk| chunk.to_vec()).unwrap_or_default();
        let tls = match self.tls {
            Some(tls) => Some(Box::new(tls.into_parked(&received))),
            None => {
                early.extend_from_slice(&received);
                None
            }
        };
        Some(ParkedLink { fd, tls, early })
    }

    /// Tells the peer at once that no more comes.
    pub fn shutdown(&mut self) {
        self.socket.shutdown();
    }

    /// Queues the farewell of TLS; plain text has none.
    pub fn write_farewell(&mut self) {
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
    early: Vec<u8>,
}

impl ParkedLink {
    /// Whether the peer has said anything that nobody has read, or has left: of a thread that was late, the kernel may have it
    /// still. One system call.
    #[must_use]
    pub fn has_news(&self) -> bool {
        let travels_along = !self.early.is_empty() || self.tls.as_ref().is_some_and(|tls| tls.has_ciphertext());
        let peeked = recv(&self.fd, &mut [0_u8; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        travels_along || !matches!(peeked, Err(Errno::AGAIN))
    }

    /// Puts the link together again on the thread of `reactor`.
    ///
    /// # Errors
    /// When the socket cannot be registered.
    pub fn unpark(self, reactor: &Reactor) -> io::Result<Link> {
        let mut link = Link::new(reactor, self.fd)?;
        link.tls = self.tls.map(|tls| Box::new(tls.unpark(reactor.shelf().clone())));
        link.unread(self.early.into());
        Ok(link)
    }
}
