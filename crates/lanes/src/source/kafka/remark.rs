//! What the client says in its log and nowhere else.
//!
//! It goes on by itself where a log does not hold the next record any more, and where a topic is deleted and made again, and
//! has no event for either (librdkafka's `rd_kafka_offset_reset` and `rd_kafka_topic_propagate_notexists`). So its words
//! count, which are those of the version that is built in.

/// Of a partition that is being read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Remark {
    pub(super) topic: String,
    pub(super) number: i32,
    pub(super) what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// The log does not hold this position, which was to be read next. It goes on elsewhere.
    Reset(u64),
    /// The topic does not exist.
    Missing,
}

const RESET: &str = "]: offset reset (at offset ";
const MISSING: &str = "]: topic does not exist";

impl Remark {
    /// `orders [3]: ...`, behind the names of a thread and of the client.
    pub(super) fn of(message: &str) -> Option<Self> {
        let (place, what) = match message.split_once(RESET) {
            Some((place, rest)) => (place, What::Reset(rest.split(' ').next()?.parse().ok()?)),
            None => (message.split_once(MISSING)?.0, What::Missing),
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
    fn the_client_is_understood() {
        let of = |message| Remark::of(message).map(|remark| (remark.topic, remark.number, remark.what));
        let reset = "[thrd:main]: cut [0]: offset reset (at offset 5 (leader epoch -1), broker 1) to offset BEGINNING \
                     (leader epoch -1): fetch failed due to requested offset not available on the broker: Broker: Offset \
                     out of range";
        assert_eq!(of(reset), Some(("cut".to_owned(), 0, What::Reset(5))));
        let missing =
            "[thrd:app]: rdkafka#consumer-3: rx-b [12]: topic does not exist (Broker: Unknown topic or partition)";
        assert_eq!(of(missing), Some(("rx-b".to_owned(), 12, What::Missing)));
        let without_position = "[thrd:main]: t [0]: offset reset (at offset INVALID (leader epoch -1), broker 1) to";
        assert_eq!((of(without_position), of("t [x]: topic does not exist"), of("")), (None, None, None));
    }
}
