//! Bodies of answers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;

/// A body of any kind.
pub(crate) type AnswerBody = UnsyncBoxBody<Bytes, Infallible>;

/// A reader that stalls has this much in flight; the rest is shared with other answers (SH-44).
const PIECE_LEN: usize = 64 << 10;

/// Parts that are sent one after the other.
pub(crate) struct Parts {
    parts: VecDeque<Bytes>,
    left: u64,
}

impl Parts {
    pub(crate) fn new(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let parts: VecDeque<Bytes> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let left = parts.iter().map(|part| part.len() as u64).sum();
        Self { parts, left }
    }

    pub(crate) fn boxed(self) -> AnswerBody {
        self.boxed_unsync()
    }
}

/// A body of one text.
pub(crate) fn text(text: impl Into<Bytes>) -> AnswerBody {
    Parts::new([text.into()]).boxed()
}

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(part) = self.parts.front_mut() else { return Poll::Ready(None) };
        let piece = part.split_to(part.len().min(PIECE_LEN));
        if part.is_empty() {
            self.parts.pop_front();
        }
        self.left -= piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
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
        let mut body = Parts::new([Bytes::from_static(b"["), Bytes::new(), long, Bytes::from_static(b"]")]);
        assert_eq!(body.size_hint().exact(), Some(PIECE_LEN as u64 * 2 + 7));
        let mut lens = Vec::new();
        while let Some(frame) = body.frame().await {
            lens.push(frame.unwrap().into_data().unwrap().len());
        }
        assert_eq!(lens, [1, PIECE_LEN, PIECE_LEN, 5, 1]);
        assert!(body.is_end_stream());
    }
}
