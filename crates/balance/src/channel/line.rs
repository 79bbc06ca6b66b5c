//! The stream under a connection, which its owner can cut: what hyper runs over it ends with it.
//!
//! Writes that come to nothing are told by the reading side, after what the server said last. A server that drains says which
//! calls it still answers, and closes; who then writes to it is told by the system that the connection is broken, which
//! says nothing of calls, while the words that do still wait to be read.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

/// Cuts a [`Line`].
#[derive(Debug, Default)]
pub(super) struct Stop {
    cut: AtomicBool,
    reader: Mutex<Option<Waker>>,
    /// The server said something.
    spoke: Notify,
    /// It answered a call.
    answered: AtomicBool,
}

impl Stop {
    pub(super) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        let reader = self.reader().take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Waits until the server has said something: its first words are its settings. A connection that the operating
    /// system accepted for a process that is stopped, or hangs, never gets there.
    pub(super) async fn spoke(&self) {
        self.spoke.notified().await;
    }

    /// Whether the server has begun to answer a call. It is known from what was read, and not from the call: whoever runs
    /// the connection may see its end before the caller sees the answer.
    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    fn reader(&self) -> std::sync::MutexGuard<'_, Option<Waker>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, cx: &Context<'_>) {
        let mut reader = self.reader();
        if !reader.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            *reader = Some(cx.waker().clone());
        }
    }
}

/// A stream that reads an error once it is cut.
#[derive(Debug)]
pub(super) struct Line<S> {
    stream: S,
    stop: Arc<Stop>,
    is_silent: bool,
    /// Until there was an answer.
    frames: Option<Frames>,
    unheard: Option<Unheard>,
}

/// What is written is lost, for this reason.
#[derive(Debug)]
struct Unheard {
    error: io::Error,
    /// A stream that is broken ends for its reader, too, and at once. If it does not, it is ended then.
    until: Pin<Box<Sleep>>,
}

const LAST_WORDS: Duration = Duration::from_secs(1);

impl<S> Line<S> {
    pub(super) fn new(stream: S, stop: Arc<Stop>) -> Self {
        Self { stream, stop, is_silent: true, frames: Some(Frames::default()), unheard: None }
    }

    /// Takes what was written as written, if the peer is gone.
    fn written<R>(&mut self, cx: &Context<'_>, polled: Poll<io::Result<R>>, all: R) -> Poll<io::Result<R>> {
        match polled {
            Poll::Ready(Err(error)) if is_gone(&error) => {
                if self.unheard.is_none() {
                    self.unheard = Some(Unheard { error, until: Box::pin(sleep(LAST_WORDS)) });
                    // Who reads has to wait for that moment as well.
                    cx.waker().wake_by_ref();
                }
                Poll::Ready(Ok(all))
            }
            polled => polled,
        }
    }

    fn heard(&mut self, bytes: &[u8]) {
        if self.is_silent && !bytes.is_empty() {
            self.is_silent = false;
            self.stop.spoke.notify_one();
        }
        if self.frames.as_mut().is_some_and(|frames| frames.have_answer(bytes)) {
            self.frames = None;
            self.stop.answered.store(true, Ordering::Relaxed);
        }
    }

    /// Ready when nothing more is to be heard.
    fn poll_unheard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(unheard) = &mut self.unheard else { return Poll::Pending };
        std::task::ready!(unheard.until.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(unheard.error.kind(), unheard.error.to_string())))
    }
}

/// The head of an HTTP/2 frame: three bytes of length, the kind, flags, and the stream (RFC 9113, section 4.1).
const FRAME_HEAD: usize = 9;
/// The kind of those that begin an answer.
const HEADERS: u8 = 1;

/// The place in the frames that are read.
#[derive(Debug, Default)]
struct Frames {
    head: [u8; FRAME_HEAD],
    /// So much of the head is there.
    begun: usize,
    /// So much of the frame before is still to come.
    rest: usize,
}

impl Frames {
    /// Takes what was read; true once there is a frame that begins an answer.
    fn have_answer(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            let passed = self.rest.min(bytes.len());
            self.rest -= passed;
            bytes = &bytes[passed..];
            let taken = (FRAME_HEAD - self.begun).min(bytes.len());
            self.head[self.begun..self.begun + taken].copy_from_slice(&bytes[..taken]);
            self.begun += taken;
            bytes = &bytes[taken..];
            if self.begun < FRAME_HEAD {
                return false;
            }
            let [high, middle, low, kind, ..] = self.head;
            if kind == HEADERS {
                return true;
            }
            (self.begun, self.rest) = (0, u32::from_be_bytes([0, high, middle, low]) as usize);
        }
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the channel closed the connection")
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl<S: AsyncRead + Unpin> AsyncRead for Line<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let mut polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_pending() {
            polled = self.poll_unheard(cx);
        }
        if polled.is_pending() {
            self.stop.register(cx);
        } else {
            self.heard(&buf.filled()[before..]);
        }
        // Registered first, looked at after: a cut in between is seen.
        if self.stop.is_cut() { Poll::Ready(Err(cut())) } else { polled }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Line<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.written(cx, polled, bytes.len())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.written(cx, polled, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A peer that is gone must not hold the end up.
        if self.stop.is_cut() || self.unheard.is_some() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.written(cx, polled, bytes.iter().map(|bytes| bytes.len()).sum())
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Nobody hears what is written, and these are the last words.
    struct Broken {
        words: &'static [u8],
        ends: bool,
    }

    impl AsyncRead for Broken {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let words = std::mem::take(&mut self.words);
            buf.put_slice(words);
            if words.is_empty() && !self.ends { Poll::Pending } else { Poll::Ready(Ok(())) }
        }
    }

    impl AsyncWrite for Broken {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
        }
    }

    #[test]
    fn an_answer_is_found_among_frames_however_they_arrive() {
        // SETTINGS of one entry, PING, and then HEADERS.
        let settings = [&[0, 0, 6, 4, 0, 0, 0, 0, 0][..], &[HEADERS; 6]].concat();
        let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &[HEADERS; 8]].concat();
        let whole = [settings, ping, vec![0, 0, 1, HEADERS, 4, 0, 0, 0, 1]].concat();
        for size in 1..=whole.len() {
            let mut frames = Frames::default();
            let mut parts = whole[..whole.len() - 1].chunks(size);
            assert!(parts.all(|part| !frames.have_answer(part)), "{size}");
            assert!(frames.have_answer(&whole[whole.len() - 1..]), "{size}");
        }
    }

    fn broken(ends: bool) -> Line<Broken> {
        Line::new(Broken { words: b"goodbye", ends }, Arc::default())
    }

    #[tokio::test]
    async fn t46_a_write_that_is_lost_does_not_lose_what_the_server_said_last() {
        let mut line = broken(true);
        line.write_all(b"hello").await.unwrap();
        line.flush().await.unwrap();
        let mut heard = Vec::new();
        line.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"goodbye");
        line.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_broken_and_does_not_end_is_ended() {
        let mut line = broken(false);
        line.write_all(b"hello").await.unwrap();
        let mut heard = Vec::new();
        let told = line.read_to_end(&mut heard).await.unwrap_err();
        assert_eq!((heard.as_slice(), told.kind()), (&b"goodbye"[..], io::ErrorKind::BrokenPipe));
    }
}
