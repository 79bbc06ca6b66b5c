//! The byte stream under an HTTP/2 connection, which its owner can cut.
//!
//! A failed write is reported by the reading side, after the last bytes of the server. A draining server announces in GOAWAY
//! which calls it still answers, and closes. A write after that fails with a broken pipe, an error without information about
//! calls, while the GOAWAY is still unread.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

/// Controls and observes a [`ControlledStream`].
#[derive(Debug, Default)]
pub(crate) struct StreamControl {
    cut: AtomicBool,
    reader: Mutex<Option<Waker>>,
    first_bytes: Notify,
    /// The server began a response.
    responded: AtomicBool,
}

impl StreamControl {
    /// Ends the stream, and with it the connection that uses it.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::SeqCst);
        let reader = self.reader().take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Waits for the first bytes of the server, which are its HTTP/2 settings. A connection that the operating system accepted
    /// for a stopped process gets none.
    pub(crate) async fn first_bytes(&self) {
        self.first_bytes.notified().await;
    }

    /// Returns whether the server has begun a response. Taken from the bytes and not from the calls: the task of a connection can
    /// see its end before the caller sees the response.
    pub(crate) fn has_responded(&self) -> bool {
        self.responded.load(Ordering::Relaxed)
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    fn reader(&self) -> MutexGuard<'_, Option<Waker>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, cx: &Context<'_>) {
        let mut reader = self.reader();
        if !reader.as_ref().is_some_and(|stored| stored.will_wake(cx.waker())) {
            *reader = Some(cx.waker().clone());
        }
    }
}

/// A stream whose reads fail once it is [cut](StreamControl::cut).
#[derive(Debug)]
pub(crate) struct ControlledStream<S> {
    stream: S,
    control: Arc<StreamControl>,
    has_read: bool,
    /// `None` after the first response.
    frames: Option<FrameScanner>,
    write_error: Option<WriteError>,
}

/// A write failed: the peer is gone.
#[derive(Debug)]
struct WriteError {
    error: io::Error,
    /// When reads end that a broken stream does not end itself.
    read_deadline: Pin<Box<Sleep>>,
}

/// How long the last bytes of the server are read after a failed write.
const LAST_READ_TIMEOUT: Duration = Duration::from_secs(1);

impl<S> ControlledStream<S> {
    pub(crate) fn new(stream: S, control: Arc<StreamControl>) -> Self {
        Self { stream, control, has_read: false, frames: Some(FrameScanner::default()), write_error: None }
    }

    /// Reports a write to a peer that is gone as written.
    fn on_write<R>(&mut self, cx: &Context<'_>, polled: Poll<io::Result<R>>, all: R) -> Poll<io::Result<R>> {
        match polled {
            Poll::Ready(Err(error)) if is_gone(&error) => {
                if self.write_error.is_none() {
                    self.write_error = Some(WriteError { error, read_deadline: Box::pin(sleep(LAST_READ_TIMEOUT)) });
                    // The reader must poll the deadline.
                    cx.waker().wake_by_ref();
                }
                Poll::Ready(Ok(all))
            }
            polled => polled,
        }
    }

    fn on_read(&mut self, bytes: &[u8]) {
        if !self.has_read && !bytes.is_empty() {
            self.has_read = true;
            self.control.first_bytes.notify_one();
        }
        if self.frames.as_mut().is_some_and(|frames| frames.finds_response(bytes)) {
            self.frames = None;
            self.control.responded.store(true, Ordering::Relaxed);
        }
    }

    /// Ready with the error of the failed write, at the deadline.
    fn poll_write_error(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(WriteError { error, read_deadline }) = &mut self.write_error else { return Poll::Pending };
        std::task::ready!(read_deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(error.kind(), error.to_string())))
    }
}

/// Header of an HTTP/2 frame: three bytes of length, the type, flags, and the stream (RFC 9113, section 4.1).
const FRAME_HEADER: usize = 9;
/// Type of the frames that begin a response.
const HEADERS: u8 = 1;

/// Finds the first HEADERS frame in the bytes that are read.
#[derive(Debug, Default)]
struct FrameScanner {
    header: [u8; FRAME_HEADER],
    /// Bytes of the header that have been read.
    header_len: usize,
    /// Bytes of the current frame that have not been read.
    payload_left: usize,
}

impl FrameScanner {
    /// Scans bytes. Returns whether they contain the type of a HEADERS frame.
    fn finds_response(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            let skipped = self.payload_left.min(bytes.len());
            self.payload_left -= skipped;
            bytes = &bytes[skipped..];
            let taken = (FRAME_HEADER - self.header_len).min(bytes.len());
            self.header[self.header_len..self.header_len + taken].copy_from_slice(&bytes[..taken]);
            self.header_len += taken;
            bytes = &bytes[taken..];
            if self.header_len < FRAME_HEADER {
                return false;
            }
            let [high, middle, low, frame_type, ..] = self.header;
            if frame_type == HEADERS {
                return true;
            }
            (self.header_len, self.payload_left) = (0, u32::from_be_bytes([0, high, middle, low]) as usize);
        }
    }
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the channel closed the connection")
}

fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl<S: AsyncRead + Unpin> AsyncRead for ControlledStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let mut polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if polled.is_pending() {
            polled = self.poll_write_error(cx);
        }
        if polled.is_pending() {
            self.control.register(cx);
        } else {
            self.on_read(&buf.filled()[before..]);
        }
        // Registered first and checked afterwards: a cut in between is seen.
        if self.control.is_cut() { Poll::Ready(Err(cut())) } else { polled }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ControlledStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.on_write(cx, polled, bytes.len())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.on_write(cx, polled, ())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A shutdown that waits for a peer that is gone would delay the end.
        if self.control.is_cut() || self.write_error.is_some() {
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
        self.on_write(cx, polled, bytes.iter().map(|bytes| bytes.len()).sum())
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A stream with failing writes and some last bytes to read.
    struct BrokenStream {
        last_bytes: &'static [u8],
        ends: bool,
    }

    impl AsyncRead for BrokenStream {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let bytes = std::mem::take(&mut self.last_bytes);
            buf.put_slice(bytes);
            if bytes.is_empty() && !self.ends { Poll::Pending } else { Poll::Ready(Ok(())) }
        }
    }

    impl AsyncWrite for BrokenStream {
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
    fn response_is_found_in_any_split_of_frames() {
        // SETTINGS with one entry, PING, and then HEADERS.
        let settings = [&[0, 0, 6, 4, 0, 0, 0, 0, 0][..], &[HEADERS; 6]].concat();
        let ping = [&[0, 0, 8, 6, 0, 0, 0, 0, 0][..], &[HEADERS; 8]].concat();
        let whole = [settings, ping, vec![0, 0, 1, HEADERS, 4, 0, 0, 0, 1]].concat();
        for size in 1..=whole.len() {
            let mut frames = FrameScanner::default();
            let mut parts = whole[..whole.len() - 1].chunks(size);
            assert!(parts.all(|part| !frames.finds_response(part)), "{size}");
            assert!(frames.finds_response(&whole[whole.len() - 1..]), "{size}");
        }
    }

    fn broken(ends: bool) -> ControlledStream<BrokenStream> {
        ControlledStream::new(BrokenStream { last_bytes: b"last bytes", ends }, Arc::default())
    }

    /// BA-46: the last bytes of the server are read after a failed write.
    #[tokio::test]
    async fn failed_write_keeps_the_last_bytes_readable() {
        let mut stream = broken(true);
        stream.write_all(b"hello").await.unwrap();
        stream.flush().await.unwrap();
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"last bytes");
        stream.shutdown().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn broken_stream_without_an_end_is_ended() {
        let mut stream = broken(false);
        stream.write_all(b"hello").await.unwrap();
        let mut read = Vec::new();
        let error = stream.read_to_end(&mut read).await.unwrap_err();
        assert_eq!((read.as_slice(), error.kind()), (&b"last bytes"[..], io::ErrorKind::BrokenPipe));
    }
}
