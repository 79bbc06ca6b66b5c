//! Parses events that librdkafka reports only in its log.
//!
//! librdkafka has no callback for an offset that is no longer in the log, nor for a topic that is deleted and recreated
//! (see its `rd_kafka_offset_reset` and `rd_kafka_topic_propagate_notexists`). The log texts are those of the bundled
//! version.

/// An event of a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ClientLogEvent {
    pub(super) topic: String,
    pub(super) number: i32,
    pub(super) what: ClientLogEventKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ClientLogEventKind {
    /// The next offset is no longer in the log; the client continues at another one.
    OffsetReset(u64),
    /// The topic does not exist.
    TopicMissing,
}

const RESET: &str = "]: offset reset (at offset ";
const MISSING: &str = "]: topic does not exist";

impl ClientLogEvent {
    /// Parses `orders [3]: ...`, which follows the names of a thread and of the client.
    pub(super) fn of(message: &str) -> Option<Self> {
        let (place, what) = match message.split_once(RESET) {
            Some((place, rest)) => (place, ClientLogEventKind::OffsetReset(rest.split(' ').next()?.parse().ok()?)),
            None => (message.split_once(MISSING)?.0, ClientLogEventKind::TopicMissing),
        };
        let (names, number) = place.rsplit_once(" [")?;
        let topic = names.rsplit(' ').next()?.to_owned();
        Some(Self { topic, number: number.parse().ok()?, what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn librdkafka_log_texts_are_parsed() {
        let of = |message| ClientLogEvent::of(message).map(|remark| (remark.topic, remark.number, remark.what));
        let reset = "[thrd:main]: cut [0]: offset reset (at offset 5 (leader epoch -1), broker 1) to offset BEGINNING \
                     (leader epoch -1): fetch failed due to requested offset not available on the broker: Broker: Offset \
                     out of range";
        assert_eq!(of(reset), Some(("cut".to_owned(), 0, ClientLogEventKind::OffsetReset(5))));
        let missing =
            "[thrd:app]: rdkafka#consumer-3: rx-b [12]: topic does not exist (Broker: Unknown topic or partition)";
        assert_eq!(of(missing), Some(("rx-b".to_owned(), 12, ClientLogEventKind::TopicMissing)));
        let without_position = "[thrd:main]: t [0]: offset reset (at offset INVALID (leader epoch -1), broker 1) to";
        assert_eq!((of(without_position), of("t [x]: topic does not exist"), of("")), (None, None, None));
    }
}
