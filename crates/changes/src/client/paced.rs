//! A TCP socket that is read at a bounded rate while the server sends many small segments.
//!
//! A walsender writes each message by a system call of its own (`WalSndWriteData` in `src/backend/replication/walsender.c`).
//! A reader that waits for each of them is woken, and reads, once per message: most of its CPU time, and a part of the
//! walsender's. While messages come faster than that is worth, the socket is taken out of the event loop and read by a
//! timer, so that one read returns many messages, at the price of at most [`PAUSE`] of latency.
//!
//! Unix sockets are not paced: their buffers count whole pages for small messages, and would fill within a pause.

use std::{
    io::{self, Read as _, Write as _},
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, Sleep},
};

/// The time between two reads of a busy socket. The timer of tokio adds up to a millisecond.
const PAUSE: Duration = Duration::from_millis(1);
/// Reads that come within [`BUSY_WITHIN`] make a socket busy: more than 8,000 a second.
const BUSY_READS: u32 = 16;
const BUSY_WITHIN: Duration = Duration::from_millis(2);
/// A read after a pause that returns less than this ends the pace.
const QUIET_BYTES: usize = 4 * 1024;

/// Decides whether reads are frequent and small.
#[derive(Debug)]
struct ReadRate {
    since: Instant,
    reads: u32,
}

impl ReadRate {
    fn new(now: Instant) -> Self {
        Self { since: now, reads: 0 }
    }

    /// Counts a read. Returns whether the socket is busy.
    fn on_read(&mut self, now: Instant) -> bool {
        self.reads += 1;
        if self.reads < BUSY_READS {
            return false;
        }
        let is_busy = now.saturating_duration_since(self.since) < BUSY_WITHIN;
        *self = Self::new(now);
        is_busy
    }
}

#[derive(Debug)]
enum ReadMode {
    /// Reads wait for the event loop.
    Ready(TcpStream),
    /// Reads wait for the timer.
    Paced(std::net::TcpStream),
    /// Between the two, and after a failure to change.
    Closed,
}

/// A TCP socket whose reads are paced while it is busy. Writes wait for the event loop.
#[derive(Debug)]
pub(super) struct PacedSocket {
    mode: ReadMode,
    rate: ReadRate,
    timer: Pin<Box<Sleep>>,
}

impl PacedSocket {
    pub(super) fn new(socket: TcpStream) -> Self {
        let now = Instant::now();
        Self { mode: ReadMode::Ready(socket), rate: ReadRate::new(now), timer: Box::pin(tokio::time::sleep_until(now)) }
    }

    /// Takes the socket out of the event loop.
    fn pace(&mut self) -> io::Result<()> {
        let mode = mem::replace(&mut self.mode, ReadMode::Closed);
        self.mode = match mode {
            ReadMode::Ready(socket) => ReadMode::Paced(socket.into_std()?),
            other => other,
        };
        self.timer.as_mut().reset(Instant::now() + PAUSE);
        Ok(())
    }

    /// Returns the socket in the event loop.
    fn ready(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        if matches!(self.mode, ReadMode::Paced(_))
            && let ReadMode::Paced(socket) = mem::replace(&mut self.mode, ReadMode::Closed)
        {
            self.mode = ReadMode::Ready(TcpStream::from_std(socket)?);
            self.rate = ReadRate::new(Instant::now());
        }
        match &mut self.mode {
            ReadMode::Ready(socket) => Ok(Pin::new(socket)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    fn poll_ready_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(self.ready()?.poll_read(cx, buffer))?;
        let is_end = buffer.filled().len() == before;
        if !is_end && self.rate.on_read(Instant::now()) {
            self.pace()?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for PacedSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let ReadMode::Paced(socket) = &mut this.mode else { return this.poll_ready_read(cx, buffer) };
        ready!(this.timer.as_mut().poll(cx));
        let room = buffer.remaining();
        match socket.read(buffer.initialize_unfilled()) {
            Ok(count) => {
                buffer.advance(count);
                if count < QUIET_BYTES.min(room) {
                    this.ready()?;
                } else if count < room {
                    this.timer.as_mut().reset(Instant::now() + PAUSE);
                }
                Poll::Ready(Ok(()))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                this.ready()?;
                this.poll_ready_read(cx, buffer)
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for PacedSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let ReadMode::Paced(socket) = &mut self.mode {
            match socket.write(bytes) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                written => return Poll::Ready(written),
            }
        }
        self.ready()?.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A TCP socket has no buffer of its own.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ready()?.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn many_reads_within_a_short_time_are_busy() {
        let start = Instant::now();
        let busy = |gap: Duration| {
            let mut rate = ReadRate::new(start);
            (1..=BUSY_READS * 2).filter(|read| rate.on_read(start + gap * *read)).count()
        };
        assert_eq!(busy(Duration::from_micros(10)), 2);
        assert_eq!(busy(Duration::from_millis(1)), 0);
    }

    /// The mode changes in both directions, and no byte is lost or reordered.
    #[tokio::test]
    async fn bytes_arrive_in_order_in_every_mode() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (opened, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let mut socket = PacedSocket::new(opened.unwrap());
        let (mut reader, mut writer) = accepted.unwrap().0.into_split();
        let sent: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        let expected = sent.clone();
        let writing = tokio::spawn(async move {
            for part in sent.chunks(300) {
                writer.write_all(part).await.unwrap();
            }
            let mut echo = [0; 4];
            reader.read_exact(&mut echo).await.unwrap();
            (writer, echo)
        });
        let mut found = Vec::new();
        while found.len() < expected.len() {
            let mut part = [0; 8 * 1024];
            let count = socket.read(&mut part).await.unwrap();
            found.extend_from_slice(&part[..count]);
            match found.len() % 5 {
                0 => socket.pace().unwrap(),
                1 => drop(socket.ready().unwrap()),
                _ => {}
            }
        }
        assert!(found == expected, "the bytes differ");
        socket.pace().unwrap();
        socket.write_all(b"done").await.unwrap();
        let (writer, echo) = writing.await.unwrap();
        assert_eq!(&echo, b"done");
        drop(writer);
        assert_eq!(socket.read(&mut [0; 8]).await.unwrap(), 0);
        socket.shutdown().await.unwrap();
    }
}
