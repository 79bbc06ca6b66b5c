//! From a message of the client to a record of ours.

use super::batch::Message;
use crate::record::{Epoch, Lane, Position, Record};

/// Copies the message. One whose headers cannot be read is undecodable, and keeps its key and its payload.
pub(super) fn record(lane: Lane, epoch: Epoch, message: &Message<'_>) -> Record {
    let record = Record::new(lane, epoch, position(message), message.key(), message.payload())
        .with_timestamp_ms(message.timestamp_ms().unwrap_or(0));
    match message.headers() {
        Some(headers) if headers.is_empty() => record,
        Some(headers) => record.with_headers(headers),
        None => record.undecodable("the name of a header is not UTF-8"),
    }
}

/// A broker gives no offset below zero.
pub(super) fn position(message: &Message<'_>) -> Position {
    Position(message.offset().try_into().unwrap_or(0))
}
