//! A stream with bytes that are read again: the first ones, and those that arrived while a request waited.

use std::{
    io,
    mem::MaybeUninit,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The first bytes of a connection of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes that are read at a time while hyper does not read: most heads are shorter.
const EARLY_LEN: usize = 4 << 10;
/// Limit of the bytes that are read while a request waits: as many as hyper would have room for.
const EARLY_MAX: usize = 8 << 10;

/// A stream, and bytes that are read before those of the stream.
#[derive(Debug)]
pub(crate) struct Rewound<S> {
    stream: S,
    unread: Bytes,
    /// The last write waits for the client.
    is_blocked: Arc<AtomicBool>,
}

impl<S> Rewound<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, unread: Bytes::new(), is_blocked: Arc::default() }
    }

    /// Whether the last write waits for the client: its bytes are still those of the writer.
    pub(crate) fn blocked_writes(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_blocked)
    }

    fn written<T>(&self, polled: Poll<T>) -> Poll<T> {
        self.is_blocked.store(polled.is_pending(), Ordering::Relaxed);
        polled
    }

    /// Puts bytes in front of all that are unread. Copies them: they may be a part of a large buffer.
    pub(crate) fn unread(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.unread = [bytes, &self.unread].concat().into();
        }
    }
}

impl<S: AsyncRead + Unpin> Rewound<S> {
    /// Whether the client begins with the preface of HTTP/2. The bytes that were read for this are unread afterwards.
    ///
    /// # Errors
    /// If the stream cannot be read.
    ///
    /// # Cancel safety
    /// Bytes are lost if the future is dropped.
    pub(crate) async fn begins_http2(&mut self) -> io::Result<bool> {
        let (mut first, mut filled) = ([0; PREFACE.len()], 0);
        loop {
            let received = self.stream.read(&mut first[filled..]).await?;
            filled += received;
            let may_be_http2 = received > 0 && PREFACE.starts_with(&first[..filled]);
            if !may_be_http2 || filled == PREFACE.len() {
                self.unread(&first[..filled]);
                return Ok(may_be_http2);
            }
        }
    }

    /// Ready when the client has sent bytes, which are unread afterwards, or has closed its side: then the value is false. No
    /// buffer is kept meanwhile, and nothing more is read while there are unread bytes.
    pub(crate) fn poll_unread(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.unread.is_empty() { self.poll_early(cx) } else { Poll::Ready(true) }
    }

    /// Ready when the client has closed its side. Bytes that it sends meanwhile are unread afterwards. Those of a client that
    /// sends very many stay in the kernel, and so does its end.
    pub(crate) fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.unread.len() < EARLY_MAX {
            if !ready!(self.poll_early(cx)) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Reads behind the unread bytes; false at the end of the stream.
    fn poll_early(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut space = [MaybeUninit::uninit(); EARLY_LEN];
        let mut early = ReadBuf::uninit(&mut space);
        let is_read = ready!(Pin::new(&mut self.stream).poll_read(cx, &mut early)).is_ok();
        let early = early.filled();
        self.unread = match self.unread.is_empty() {
            true => Bytes::copy_from_slice(early),
            false => [&*self.unread, early].concat().into(),
        };
        Poll::Ready(is_read && !early.is_empty())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewound<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let len = self.unread.len().min(buf.remaining());
        buf.put_slice(&self.unread.split_to(len));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewound<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(polled)
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

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Detects the version, and returns the unread bytes.
    async fn detected(pieces: &[&[u8]]) -> (bool, Vec<u8>) {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = Rewound::new(server);
        let send = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(client);
        };
        let (is_http2, ()) = tokio::join!(server.begins_http2(), send);
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        (is_http2.unwrap(), all)
    }

    #[tokio::test]
    async fn version_is_detected_by_first_bytes() {
        assert_eq!(detected(&[PREFACE, b"\0\0"]).await, (true, [&PREFACE[..], b"\0\0"].concat()));
        assert_eq!(detected(&[&PREFACE[..3], &PREFACE[3..]]).await, (true, PREFACE.to_vec()));
        let others: [&[&[u8]]; 4] = [&[b"GET / HTTP/1.1\r\n\r\n"], &[b"P", b"OST / HTTP/1.1"], &[b"PRI"], &[]];
        for pieces in others {
            assert_eq!(detected(pieces).await, (false, pieces.concat()), "{pieces:?}");
        }
    }

    #[tokio::test]
    async fn early_bytes_are_read_after_those_in_front() {
        let (mut client, server) = tokio::io::duplex(EARLY_LEN * 2);
        let mut server = Rewound::new(server);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(server.poll_unread(&mut cx).is_pending());
        let early = [b'x'; EARLY_LEN + 5];
        client.write_all(&early).await.unwrap();
        drop(client);
        for _ in 0..2 {
            assert_eq!(server.poll_unread(&mut cx), Poll::Ready(true), "the bytes are answered first");
        }
        server.unread(b"in front");
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, [b"in front", &early[..]].concat());
        assert_eq!(server.poll_unread(&mut cx), Poll::Ready(false));
    }

    #[tokio::test]
    async fn end_is_seen_behind_few_bytes_only() {
        for (sent, is_seen) in [(0, true), (1, true), (EARLY_MAX - 1, true), (EARLY_MAX, false), (EARLY_MAX * 2, false)]
        {
            let (mut client, server) = tokio::io::duplex(EARLY_MAX * 4);
            let mut server = Rewound::new(server);
            let mut cx = Context::from_waker(Waker::noop());
            let sent = vec![b'x'; sent];
            client.write_all(&sent).await.unwrap();
            assert!(server.poll_closed(&mut cx).is_pending());
            drop(client);
            assert_eq!(server.poll_closed(&mut cx).is_ready(), is_seen, "{} bytes", sent.len());
            assert!(server.unread.len() < EARLY_MAX + EARLY_LEN);
            let mut all = Vec::new();
            server.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, sent, "nothing is lost");
        }
    }
}
