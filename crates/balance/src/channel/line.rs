//! The stream under a connection, which its owner can cut: what hyper runs over it ends with it.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// Cuts a [`Line`].
#[derive(Debug, Default)]
pub(super) struct Stop {
    cut: AtomicBool,
    reader: Mutex<Option<Waker>>,
    /// The server said something.
    spoke: Notify,
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
}

impl<S> Line<S> {
    pub(super) fn new(stream: S, stop: Arc<Stop>) -> Self {
        Self { stream, stop, is_silent: true }
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the channel closed the connection")
}

impl<S: AsyncRead + Unpin> AsyncRead for Line<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_pending() {
            self.stop.register(cx);
        } else if self.is_silent && buf.filled().len() > before {
            self.is_silent = false;
            self.stop.spoke.notify_one();
        }
        // Registered first, looked at after: a cut in between is seen.
        if self.stop.is_cut() { Poll::Ready(Err(cut())) } else { polled }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Line<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A peer that is gone must not hold the end up.
        if self.stop.is_cut() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
