//! Converts a Kafka message into a record.

use super::batch::KafkaMessage;
use crate::record::{Epoch, Lane, Position, Record};

/// Copies the message. A message with unreadable headers is undecodable and keeps its key and payload.
pub(super) fn record(lane: Lane, epoch: Epoch, message: &KafkaMessage<'_>) -> Record {
    let record = Record::new(lane, epoch, position(message), message.key(), message.payload())
        .with_timestamp_ms(message.timestamp_ms().unwrap_or(0));
    match message.headers() {
        Some(headers) if headers.is_empty() => record,
        Some(headers) => record.with_headers(headers),
        None => record.undecodable("header name is not UTF-8"),
    }
}

/// Brokers assign no negative offsets.
pub(super) fn position(message: &KafkaMessage<'_>) -> Position {
    Position(message.offset().try_into().unwrap_or(0))
}
