//! Callbacks of the Kafka clients.
//!
//! librdkafka does not require an answer to a rebalance inside the callback; it waits until the application assigns or
//! unassigns. So the callback only stores the event. The member thread keeps polling while lanes drain, and answers
//! afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Statistics, TopicPartitionList};

use super::builder::RECORD_BYTES;
use super::channel::SourceChannel;
use super::client_log::{ClientLogEvent, ClientLogEventKind};
use super::error::KafkaSourceError;
use super::log;
use crate::sync::{Mutex, lock};

/// A leaving member has settled once no rebalance was acknowledged for this long ...
const SETTLE_POLL: Duration = Duration::from_millis(20);
/// ... or after this many polls.
const SETTLE_POLLS_MAX: u32 = 50;

/// A rebalance event.
#[derive(Debug)]
pub(super) enum RebalanceEvent {
    Assigned(TopicPartitionList),
    Revoked(TopicPartitionList),
}

/// The callback context of a client.
pub(super) struct KafkaContext {
    channel: Arc<SourceChannel>,
    events: Mutex<Vec<RebalanceEvent>>,
    log_events: Mutex<Vec<ClientLogEvent>>,
    /// Rebalances are acknowledged directly in the callback.
    are_callbacks_stopped: AtomicBool,
    /// Rebalances acknowledged in the callback.
    acknowledged: AtomicU32,
    error_log: log::ErrorLogLimiter,
}

impl KafkaContext {
    pub(super) fn new(channel: Arc<SourceChannel>) -> Self {
        Self {
            channel,
            events: Mutex::default(),
            log_events: Mutex::default(),
            are_callbacks_stopped: AtomicBool::new(false),
            acknowledged: AtomicU32::new(0),
            error_log: log::ErrorLogLimiter::default(),
        }
    }

    pub(super) fn events(&self) -> Vec<RebalanceEvent> {
        std::mem::take(&mut *lock(&self.events))
    }

    /// Takes the log events of partitions.
    pub(super) fn log_events(&self) -> Vec<ClientLogEvent> {
        std::mem::take(&mut *lock(&self.log_events))
    }

    /// Switches to acknowledging rebalances in the callback, as needed while a client closes.
    pub(super) fn stop_callbacks(&self) {
        self.are_callbacks_stopped.store(true, Ordering::Relaxed);
    }

    fn push_event(&self, event: RebalanceEvent) {
        lock(&self.events).push(event);
    }
}

/// Acknowledges an assignment. The member itself fetches nothing; the [`Fetcher`](super::fetcher::Fetcher) reads the
/// partitions.
pub(super) fn acknowledge_assign(member: &BaseConsumer<KafkaContext>) -> KafkaResult<()> {
    match member.rebalance_protocol() {
        RebalanceProtocol::Cooperative => member.incremental_assign(&TopicPartitionList::new()),
        _ => member.assign(&TopicPartitionList::new()),
    }
}

/// Acknowledges a revocation.
pub(super) fn acknowledge_revoke(member: &BaseConsumer<KafkaContext>) -> KafkaResult<()> {
    match member.rebalance_protocol() {
        RebalanceProtocol::Cooperative => member.incremental_unassign(&TopicPartitionList::new()),
        _ => member.unassign(),
    }
}

/// Unsubscribes and acknowledges all pending rebalances before the client is closed. Closing a client does the same, but
/// a pending acknowledgement then never completes: librdkafka drops the request without a reply.
pub(super) fn unsubscribe(member: &BaseConsumer<KafkaContext>) {
    member.unsubscribe();
    for _ in 0..SETTLE_POLLS_MAX {
        let before = member.context().acknowledged.load(Ordering::Relaxed);
        let _ = member.poll(SETTLE_POLL);
        if member.context().acknowledged.load(Ordering::Relaxed) == before {
            return;
        }
    }
}

impl ConsumerContext for KafkaContext {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, what: RDKafkaRespErr, partitions: &mut TopicPartitionList) {
        let is_grant = what == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if self.are_callbacks_stopped.load(Ordering::Relaxed) {
            // Errors do not matter, as the client is closing.
            let _ = if is_grant { acknowledge_assign(consumer) } else { acknowledge_revoke(consumer) };
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let partitions = partitions.clone();
        self.push_event(if is_grant {
            RebalanceEvent::Assigned(partitions)
        } else {
            RebalanceEvent::Revoked(partitions)
        });
    }
}

impl ClientContext for KafkaContext {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        let event = ClientLogEvent::of(message);
        // librdkafka repeats this message every second for each partition; the member logs it once.
        let is_known = event.as_ref().is_some_and(|event| event.what == ClientLogEventKind::TopicMissing);
        log::client(if is_known { RDKafkaLogLevel::Debug } else { level }, facility, message);
        if let Some(event) = event {
            lock(&self.log_events).push(event);
            self.channel.wake_thread();
        }
    }

    fn stats(&self, statistics: Statistics) {
        let partitions = statistics.topics.values().flat_map(|topic| topic.partitions.values());
        let bytes = partitions.map(|partition| {
            let records = usize::try_from(partition.fetchq_cnt).unwrap_or(0);
            usize::try_from(partition.fetchq_size).unwrap_or(0) + records * RECORD_BYTES
        });
        self.channel.set_client_bytes(bytes.sum());
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(failure) = KafkaSourceError::of_certificate(&error, reason) {
            self.channel.fail(failure);
        }
        self.error_log.log(&error, reason);
    }
}
