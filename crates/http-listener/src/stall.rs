//! Detects clients that do not read.
//!
//! A client of HTTP/1 that stalls fills the kernel's buffer, which [`StallGuard`] observes. A client of HTTP/2 may withhold the
//! window of one stream while it answers pings: [`TransferWatch`] observes when the body of a response was asked for data last.

use std::{
    collections::BTreeMap,
    future::Future as _,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep},
};

use crate::connections::ConnectionSlot;

/// A socket that fails when its client accepts no bytes for a time.
#[derive(Debug)]
pub(crate) struct StallGuard<S> {
    stream: S,
    limit: Duration,
    /// Runs while a write waits for the client.
    timer: Option<Pin<Box<Sleep>>>,
    has_stalled: bool,
}

impl<S> StallGuard<S> {
    pub(crate) const fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, timer: None, has_stalled: false }
    }

    /// Bounds the wait of a write.
    fn guard<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        // The end of the connection, such as the alert of TLS, gets no time of its own.
        if !self.has_stalled {
            if polled.is_ready() {
                self.timer = None;
                return polled;
            }
            let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.limit)));
            ready!(timer.as_mut().poll(cx));
            (self.timer, self.has_stalled) = (None, true);
        }
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.guard(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.guard(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The unfinished responses of an HTTP/2 connection.
#[derive(Debug, Default)]
pub(crate) struct TransferWatch(Mutex<TransferTable>);

#[derive(Debug, Default)]
struct TransferTable {
    /// Since when the client has not asked for more of a response.
    unread_since: BTreeMap<u64, Instant>,
    next: u64,
}

impl TransferWatch {
    fn lock(&self) -> MutexGuard<'_, TransferTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Completes when a response was not read for a time.
    ///
    /// # Cancel safety
    /// Safe: nothing is consumed.
    pub(crate) async fn stalled(&self, limit: Duration) {
        loop {
            let oldest = self.lock().unread_since.values().min().copied();
            match oldest.map(|since| since + limit) {
                Some(until) if until <= Instant::now() => return,
                Some(until) => tokio::time::sleep_until(until).await,
                None => tokio::time::sleep(limit).await,
            }
        }
    }
}

/// A response that a [`TransferWatch`] observes.
#[derive(Debug)]
struct Transfer {
    watch: Arc<TransferWatch>,
    id: u64,
}

impl Transfer {
    fn begin(watch: Arc<TransferWatch>) -> Self {
        let mut table = watch.lock();
        let id = table.next;
        table.next += 1;
        table.unread_since.insert(id, Instant::now());
        drop(table);
        Self { watch, id }
    }

    /// The client has to read before it asks for more.
    fn wait_for_client(&self) {
        self.watch.lock().unread_since.insert(self.id, Instant::now());
    }

    /// The client waits for data.
    fn wait_for_data(&self) {
        self.watch.lock().unread_since.remove(&self.id);
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.wait_for_data();
    }
}

/// Ends the work on a request of HTTP/1 when its response was sent.
#[derive(Debug)]
struct Sending(Arc<ConnectionSlot>);

impl Drop for Sending {
    fn drop(&mut self) {
        self.0.await_head();
    }
}

#[derive(Debug)]
enum BodyWatch {
    /// The connection writes one response at a time, which [`StallGuard`] observes.
    Http1 {
        _sending: Sending,
    },
    Http2(Transfer),
}

/// A body whose reader is observed.
#[derive(Debug)]
pub(crate) struct WatchedBody<B> {
    body: B,
    watch: BodyWatch,
}

impl<B> WatchedBody<B> {
    pub(crate) const fn http1(body: B, slot: Arc<ConnectionSlot>) -> Self {
        Self { body, watch: BodyWatch::Http1 { _sending: Sending(slot) } }
    }

    pub(crate) fn http2(body: B, watch: Arc<TransferWatch>) -> Self {
        Self { body, watch: BodyWatch::Http2(Transfer::begin(watch)) }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for WatchedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let BodyWatch::Http2(transfer) = &self.watch {
            match &polled {
                Poll::Ready(Some(Ok(_))) => transfer.wait_for_client(),
                Poll::Ready(_) | Poll::Pending => transfer.wait_for_data(),
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use futures_util::stream;
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn write_to_a_client_that_does_not_read_fails() {
        let (_client, server) = tokio::io::duplex(64);
        let mut server = StallGuard::new(server, LIMIT);
        let error = server.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let failed_at = Instant::now();
        assert!(server.write_all(&[0]).await.is_err());
        assert_eq!(failed_at, Instant::now(), "no time for another write");
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = StallGuard::new(server, LIMIT);
        let reads = async {
            // Slower than the limit as a whole, but with progress.
            for _ in 0..7 {
                tokio::time::sleep(LIMIT / 2).await;
                client.read_exact(&mut [0; 40]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(server.write_all(&[0; 300]), reads);
        written.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_is_not_read_is_detected() {
        let watch = Arc::new(TransferWatch::default());
        let is_stalled = || async { tokio::time::timeout(LIMIT * 3, watch.stalled(LIMIT)).await.is_ok() };
        assert!(!is_stalled().await, "no response");
        let unread = WatchedBody::http2(Full::<Bytes>::from("x"), Arc::clone(&watch));
        assert!(is_stalled().await);
        drop(unread);
        assert!(!is_stalled().await);
        let mut read = WatchedBody::http2(Full::<Bytes>::from("x"), Arc::clone(&watch));
        assert!(read.frame().await.is_some());
        assert!(is_stalled().await, "the client did not ask for the rest");
        assert!(read.frame().await.is_none());
        assert!(!is_stalled().await);
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_waits_for_data_is_no_stall() {
        let watch = Arc::new(TransferWatch::default());
        let mut body =
            WatchedBody::http2(StreamBody::new(stream::pending::<io::Result<Frame<Bytes>>>()), Arc::clone(&watch));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut body).poll_frame(&mut cx).is_pending());
        assert!(tokio::time::timeout(LIMIT * 3, watch.stalled(LIMIT)).await.is_err());
    }
}
