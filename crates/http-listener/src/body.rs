//! Bodies of requests, with limits.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;

/// A body that was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    /// More bytes than the limit.
    #[error("the request body is too large")]
    TooLarge,
    /// The client broke off, or needed too long.
    #[error("the request body is incomplete")]
    Incomplete,
}

/// Reads a body of at most `bytes_max` bytes within a time.
///
/// # Errors
/// If the body is larger, or does not arrive.
///
/// # Cancel safety
/// The body is lost if the future is dropped.
pub async fn read_body(body: Incoming, bytes_max: usize, limit: Duration) -> Result<Bytes, BodyError> {
    let collected = tokio::time::timeout(limit, Limited::new(body, bytes_max).collect()).await;
    match collected.map_err(|_| BodyError::Incomplete)? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge),
        Err(_) => Err(BodyError::Incomplete),
    }
}
