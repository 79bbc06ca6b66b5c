//! Bodies of answers.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;

use crate::answers::{ChunkReader, LogPart};

/// A body of any kind.
pub(crate) enum AnswerBody {
    /// A text, as most answers are.
    Text(Bytes),
    /// Parts, or a stream.
    Other(UnsyncBoxBody<Bytes, io::Error>),
}

/// A reader that stalls has this much in flight; the rest is shared with other answers (SH-44).
const PIECE_LEN: usize = 64 << 10;

/// A part of a body.
enum Part {
    Text(Bytes),
    /// A stream that is read while it is sent, with the number of its bytes.
    Stream(BoxStream<'static, io::Result<Bytes>>, u64),
}

/// Parts that are sent one after the other.
pub(crate) struct Parts {
    parts: VecDeque<Part>,
    left: u64,
}

impl Parts {
    pub(crate) fn new() -> Self {
        Self { parts: VecDeque::with_capacity(4), left: 0 }
    }

    pub(crate) fn push(&mut self, text: impl Into<Bytes>) {
        let text = text.into();
        if !text.is_empty() {
            self.left += text.len() as u64;
            self.parts.push_back(Part::Text(text));
        }
    }

    /// Adds a part of a log. `on_read` is called whenever some of it was read.
    pub(crate) fn push_log(&mut self, part: LogPart, on_read: impl Fn(&ChunkReader) + Send + 'static) {
        let (reader, len) = match part {
            LogPart::Text(text) => return self.push(text),
            LogPart::Chunk(reader, len) => (reader, len),
        };
        let pieces = stream::unfold((reader, on_read), |(mut reader, on_read)| async move {
            let piece = reader.next().await?;
            on_read(&reader);
            Some((piece, (reader, on_read)))
        });
        self.left += len;
        self.parts.push_back(Part::Stream(pieces.boxed(), len));
    }

    pub(crate) fn boxed(self) -> AnswerBody {
        AnswerBody::Other(self.boxed_unsync())
    }
}

/// A body of one text.
pub(crate) fn text(text: impl Into<Bytes>) -> AnswerBody {
    AnswerBody::Text(text.into())
}

/// The next piece of a text that is not empty.
fn next_piece(text: &mut Bytes) -> Bytes {
    text.split_to(text.len().min(PIECE_LEN))
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match &mut *self {
            Self::Text(text) => Poll::Ready((!text.is_empty()).then(|| Ok(Frame::data(next_piece(text))))),
            Self::Other(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Other(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => SizeHint::with_exact(text.len() as u64),
            Self::Other(body) => body.size_hint(),
        }
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        loop {
            let Some(part) = self.parts.front_mut() else { return Poll::Ready(None) };
            match part {
                Part::Text(text) => {
                    let piece = next_piece(text);
                    if text.is_empty() {
                        self.parts.pop_front();
                    }
                    self.left -= piece.len() as u64;
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                Part::Stream(pieces, left) => match pieces.as_mut().poll_next(context) {
                    Poll::Pending => return Poll::Pending,
                    // The length of the body was announced.
                    Poll::Ready(None) if *left > 0 => {
                        return Poll::Ready(Some(Err(io::ErrorKind::UnexpectedEof.into())));
                    }
                    Poll::Ready(None) => drop(self.parts.pop_front()),
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                    Poll::Ready(Some(Ok(piece))) => {
                        *left = left.saturating_sub(piece.len() as u64);
                        self.parts.push_front(Part::Text(piece));
                    }
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn long_parts_are_sent_in_pieces() {
        let long = Bytes::from(vec![b'x'; PIECE_LEN * 2 + 5]);
        let mut body = Parts::new();
        [Bytes::from_static(b"["), Bytes::new(), long, Bytes::from_static(b"]")]
            .into_iter()
            .for_each(|part| body.push(part));
        assert_eq!(body.size_hint().exact(), Some(PIECE_LEN as u64 * 2 + 7));
        assert_eq!(lens(&mut body).await, [1, PIECE_LEN, PIECE_LEN, 5, 1]);
        let mut body = text(vec![b'x'; PIECE_LEN + 5]);
        assert_eq!(body.size_hint().exact(), Some(PIECE_LEN as u64 + 5));
        assert_eq!(lens(&mut body).await, [PIECE_LEN, 5]);
    }

    async fn lens(body: &mut (impl Body<Data = Bytes, Error = io::Error> + Unpin)) -> Vec<usize> {
        let mut lens = Vec::new();
        while let Some(frame) = body.frame().await {
            lens.push(frame.unwrap().into_data().unwrap().len());
        }
        assert!(body.is_end_stream());
        lens
    }
}
