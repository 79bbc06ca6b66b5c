//! From a message of the client to a record of ours.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers, Message};

use crate::record::{Epoch, Header, Lane, Position, Record};

/// Copies the message. One whose headers cannot be read is undecodable, and keeps its key and its payload.
pub(super) fn record(lane: Lane, epoch: Epoch, message: &BorrowedMessage<'_>) -> Record {
    let record = Record::new(lane, epoch, position(message), message.key(), message.payload())
        .with_timestamp_ms(message.timestamp().to_millis().unwrap_or(0));
    match message.headers().map(headers) {
        None => record,
        Some(Some(headers)) => record.with_headers(headers),
        Some(None) => record.undecodable("the name of a header is not UTF-8"),
    }
}

/// A broker gives no offset below zero.
pub(super) fn position(message: &BorrowedMessage<'_>) -> Position {
    Position(message.offset().try_into().unwrap_or(0))
}

/// The client library panics at a name that is not UTF-8, and a producer can send any bytes as one.
fn headers(headers: &BorrowedHeaders) -> Option<Vec<Header>> {
    let read = || headers.iter().map(|header| Header { name: header.key.into(), value: header.value.map(Into::into) });
    catch_unwind(AssertUnwindSafe(|| read().collect())).ok()
}
