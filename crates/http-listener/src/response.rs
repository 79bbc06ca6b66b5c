//! Writes a response as hyper would, for a request that left hyper to wait.

use std::{
    error::Error,
    future::poll_fn,
    io::{self, Write as _},
    pin::Pin,
    time::SystemTime,
};

use bytes::{Buf as _, Bytes};
use http::{
    Response, StatusCode,
    header::{CONNECTION, CONTENT_LENGTH, DATE, TRAILER, TRANSFER_ENCODING},
};
use http_body::Body;
use httpdate::HttpDate;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// Most heads are shorter.
const HEAD_LEN: usize = 1024;
/// Bytes that are copied to be written together: one buffer costs the kernel less than two.
const COPY_MAX: usize = 4 << 10;

/// The head of a response with status 200 and a body of known length; `None` leaves other responses, which are few, to hyper.
pub(crate) fn head<B: Body>(response: &Response<B>) -> Option<Vec<u8>> {
    let len = response.body().size_hint().exact().filter(|len| *len > 0)?;
    if response.status() != StatusCode::OK {
        return None;
    }
    let mut head = Vec::with_capacity(HEAD_LEN + usize::try_from(len).map_or(0, |len| len.min(COPY_MAX)));
    head.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
    for (name, value) in response.headers() {
        if matches!(*name, CONNECTION | CONTENT_LENGTH | DATE | TRAILER | TRANSFER_ENCODING) {
            return None;
        }
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    // Writing to memory cannot fail.
    let _ = write!(head, "content-length: {len}\r\ndate: {}\r\n\r\n", HttpDate::from(SystemTime::now()));
    Some(head)
}

/// Writes a response with the head of [`head`].
///
/// # Errors
/// If the client does not read, or the body ends early: the connection cannot be used any more.
pub(crate) async fn write<S, B>(stream: &mut S, head: Vec<u8>, mut body: B) -> io::Result<()>
where
    S: AsyncWrite + Unpin,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    let mut left = body.size_hint().exact().unwrap_or_default();
    let mut unwritten = head;
    while left > 0 {
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.ok_or(io::ErrorKind::UnexpectedEof)?;
        // Trailers need a body in chunks.
        let Ok(data) = frame.map_err(io::Error::other)?.into_data() else { continue };
        left = left.checked_sub(data.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
        if data.len() <= COPY_MAX && unwritten.len() <= HEAD_LEN {
            unwritten.extend_from_slice(&data);
        } else {
            stream.write_all_buf(&mut (&*unwritten).chain(data)).await?;
            unwritten.clear();
        }
    }
    stream.write_all(&unwritten).await?;
    stream.flush().await
}
