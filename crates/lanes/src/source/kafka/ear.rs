//! What the client calls back with, kept for the thread that polls it.
//!
//! The client does not ask for an answer to a rebalance within the callback: it waits until somebody assigns or unassigns.
//! So the callback only takes a note, the thread goes on polling while lanes come to rest, and answers when they have.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Statistics, TopicPartitionList};

use super::Error;
use super::handover::Handover;
use super::remark::{Remark, What};
use super::settings::RECORD_BYTES;
use crate::sync::{Mutex, lock};

/// A member that leaves is quiet when it has wanted nothing for so long...
const SETTLING_TURN: Duration = Duration::from_millis(20);
/// ... or when it was answered so often.
const SETTLING_TURNS: u32 = 50;

/// What was heard.
#[derive(Debug)]
pub(super) enum Heard {
    Assigned(TopicPartitionList),
    Revoked(TopicPartitionList),
}

/// The client's callbacks.
pub(super) struct Ear {
    handover: Arc<Handover>,
    notes: Mutex<Vec<Heard>>,
    remarks: Mutex<Vec<Remark>>,
    /// Nobody reads the notes any more.
    is_deaf: AtomicBool,
    /// What was answered since then.
    answers: AtomicU32,
    complaints: log::Complaints,
}

impl Ear {
    pub(super) fn new(handover: Arc<Handover>) -> Self {
        Self {
            handover,
            notes: Mutex::default(),
            remarks: Mutex::default(),
            is_deaf: AtomicBool::new(false),
            answers: AtomicU32::new(0),
            complaints: log::Complaints::default(),
        }
    }

    pub(super) fn notes(&self) -> Vec<Heard> {
        std::mem::take(&mut *lock(&self.notes))
    }

    /// What the client has said of partitions that are read.
    pub(super) fn remarks(&self) -> Vec<Remark> {
        std::mem::take(&mut *lock(&self.remarks))
    }

    /// From now on partitions are given up as soon as the group wants them, as the end of a client needs it.
    pub(super) fn become_deaf(&self) {
        self.is_deaf.store(true, Ordering::Relaxed);
    }

    fn note(&self, heard: Heard) {
        lock(&self.notes).push(heard);
    }
}

/// Answers a grant. The partitions are left to the [`Reader`](super::reader::Reader): a member with nothing to read is as
/// good a member.
pub(super) fn take_over(member: &BaseConsumer<Ear>) -> KafkaResult<()> {
    match member.rebalance_protocol() {
        RebalanceProtocol::Cooperative => member.incremental_assign(&TopicPartitionList::new()),
        _ => member.assign(&TopicPartitionList::new()),
    }
}

/// Lets the group have what it wants back.
pub(super) fn give_up(member: &BaseConsumer<Ear>) -> KafkaResult<()> {
    match member.rebalance_protocol() {
        RebalanceProtocol::Cooperative => member.incremental_unassign(&TopicPartitionList::new()),
        _ => member.unassign(),
    }
}

/// Gives up all that the member has and may be about to get, before the client is closed. Closing it would do so as well, but
/// in one that has just closed, an answer to what it had asked for waits for ever (librdkafka drops the request unanswered).
pub(super) fn unsubscribe(member: &BaseConsumer<Ear>) {
    member.unsubscribe();
    for _ in 0..SETTLING_TURNS {
        let before = member.context().answers.load(Ordering::Relaxed);
        let _ = member.poll(SETTLING_TURN);
        if member.context().answers.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

impl ConsumerContext for Ear {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, what: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        let is_grant = what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.is_deaf.load(Ordering::Relaxed) {
            // Whatever fails now, the client ends anyway.
            let _ = if is_grant { take_over(consumer) } else { give_up(consumer) };
            self.answers.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let partitions = partitions.clone();
        self.note(if is_grant { Heard::Assigned(partitions) } else { Heard::Revoked(partitions) });
    }
}

impl ClientContext for Ear {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let remark = Remark::of(message);
        // Repeated each second for each partition, and said once in other words.
        let is_known = remark.as_ref().is_some_and(|remark| remark.what == What::Missing);
        log::client(if is_known { RDKafkaLogLevel::Debug } else { level }, facility, message);
        if let Some(remark) = remark {
            lock(&self.remarks).push(remark);
            self.handover.wake_thread();
        }
    }

    fn stats(&self, statistics: Statistics) {
        let partitions = statistics.topics.values().flat_map(|topic| topic.partitions.values());
        let bytes = partitions.map(|partition| {
            let records = usize::try_from(partition.fetchq_cnt).unwrap_or(0);
            usize::try_from(partition.fetchq_size).unwrap_or(0) + records * RECORD_BYTES
        });
        self.handover.set_client_bytes(bytes.sum());
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(failure) = Error::of_certificate(&error, reason) {
            self.handover.fail(failure);
        }
        self.complaints.error(&error, reason);
    }
}

#[cfg(feature = "tracing")]
pub(super) mod log {
    use std::time::{Duration, Instant};

    use rdkafka::config::RDKafkaLogLevel as Level;
    use rdkafka::error::{KafkaError, RDKafkaErrorCode};

    use crate::source::kafka::reset::Onward;
    use crate::sync::{Mutex, lock};

    /// A client whose brokers are away says so twenty times a second.
    const QUIET: Duration = Duration::from_secs(30);

    /// What the client has told last, and when: each kind is logged once in a while.
    #[derive(Default)]
    pub(in crate::source::kafka) struct Complaints(Mutex<Vec<(RDKafkaErrorCode, Instant)>>);

    impl Complaints {
        pub(in crate::source::kafka) fn error(&self, error: &KafkaError, reason: &str) {
            let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
            // The end of a partition is no error.
            if code != RDKafkaErrorCode::PartitionEOF && self.is_news(code, Instant::now()) {
                tracing::warn!(%error, "{reason}");
            }
        }

        fn is_news(&self, code: RDKafkaErrorCode, now: Instant) -> bool {
            let mut told = lock(&self.0);
            told.retain(|(_, at)| now.saturating_duration_since(*at) < QUIET);
            let is_news = told.iter().all(|(other, _)| *other != code);
            if is_news {
                told.push((code, now));
            }
            is_news
        }
    }

    pub(in crate::source::kafka) fn onward(lane: &str, onward: Onward) {
        match onward {
            Onward::Above(from, to) => {
                let skipped = to - from;
                tracing::warn!(
                    lane,
                    from,
                    to,
                    skipped,
                    "the log does not hold what was to be read next: it is passed over"
                );
            }
            Onward::Below(from, to) => {
                tracing::warn!(lane, from, to, "the log was cut or made anew: it is read on from below");
            }
        }
    }

    pub(in crate::source::kafka) fn missing(lane: &str) {
        let then = "when it is there again, it is read from what the group has committed, or from where `start` says";
        tracing::warn!(lane, then, "the topic is not there any more: nothing of it is committed");
    }

    pub(in crate::source::kafka) fn lost(lane: &str) {
        tracing::warn!(lane, "the session with the group was lost: what was done since the last commit comes again");
    }

    pub(in crate::source::kafka) fn client(level: Level, facility: &str, message: &str) {
        match level {
            // Comes as an error, too.
            _ if facility == "FAIL" => tracing::debug!(facility, "{message}"),
            Level::Emerg | Level::Alert | Level::Critical | Level::Error => tracing::error!(facility, "{message}"),
            Level::Warning => tracing::warn!(facility, "{message}"),
            Level::Notice | Level::Info => tracing::info!(facility, "{message}"),
            Level::Debug => tracing::debug!(facility, "{message}"),
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_complaint_is_told_once_in_a_while_and_another_at_once() {
            let (complaints, now) = (Complaints::default(), Instant::now());
            let (down, refused) = (RDKafkaErrorCode::AllBrokersDown, RDKafkaErrorCode::Authentication);
            let told = [(down, 0), (down, 1), (refused, 2), (down, 29), (down, 31), (refused, 31), (down, 32)];
            let is_news = told.map(|(code, second)| complaints.is_news(code, now + Duration::from_secs(second)));
            assert_eq!(is_news, [true, false, true, false, true, false, false]);
        }
    }
}

#[cfg(not(feature = "tracing"))]
pub(super) mod log {
    #[derive(Default)]
    pub(in crate::source::kafka) struct Complaints {}

    impl Complaints {
        pub(in crate::source::kafka) fn error(&self, _: &rdkafka::error::KafkaError, _: &str) {}
    }

    pub(in crate::source::kafka) fn onward(_: &str, _: crate::source::kafka::reset::Onward) {}

    pub(in crate::source::kafka) fn missing(_: &str) {}

    pub(in crate::source::kafka) fn lost(_: &str) {}

    pub(in crate::source::kafka) fn client(_: rdkafka::config::RDKafkaLogLevel, _: &str, _: &str) {}
}
