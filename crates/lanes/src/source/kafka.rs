//! A source that reads Kafka topics as a member of a consumer group (feature `kafka`).
//!
//! A lane is a partition. The group may revoke and assign lanes at any time; other lanes continue meanwhile with a
//! cooperative group protocol, which is the default. A revoked lane drains first: it starts no more records, running
//! handlers end (within [`KafkaSourceBuilder::drain`]), and finished records are committed before the group gets the
//! partition back. A lane that is assigned again has a higher epoch.
//!
//! The source uses two librdkafka clients: one is the group member, the other fetches records. One thread drives both and
//! always answers the group in time, so a subscription that is full or whose handlers hang keeps its membership.
//! Prefetched records are bounded by [`KafkaSourceBuilder::prefetch_bytes`].
//!
//! Positions are Kafka offsets. Compacted records, aborted transactions and control records are gaps. Gaps at the end of
//! a partition are committed, so that a group without unprocessed records has no lag. Records of open transactions are
//! not delivered (`isolation.level` is `read_committed`).
//!
//! ```no_run
//! use tidegate_lanes::source::kafka::KafkaSource;
//!
//! let source = KafkaSource::builder("localhost:9092", "billing").topic("orders").build()?;
//! # Ok::<(), tidegate_lanes::source::kafka::KafkaSourceError>(())
//! ```
//!
//! A [`DeadLetterTopic`] stores dead letters with the partition that they come from. It needs the
//! [`partition_map`](KafkaSource::partition_map) of the source, taken before the source moves into the subscription:
//!
//! ```no_run
//! use tidegate_lanes::source::kafka::{DeadLetterTopic, KafkaSource};
//! use tidegate_lanes::{ExhaustedAction, RecordFailure, Subscription};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = KafkaSource::builder("localhost:9092", "billing").topic("orders").build()?;
//! let dead_letters = DeadLetterTopic::new("localhost:9092", "orders-dead", source.partition_map())?;
//! let subscription = Subscription::builder("billing")
//!     .source(source)
//!     .exhausted(ExhaustedAction::DeadLetter)
//!     .dead_letter_queue(dead_letters)
//!     .process(|record| async move {
//!         let order = record.payload().ok_or(RecordFailure::permanent("order has no payload"))?;
//!         println!("{} bytes", order.len());
//!         Ok::<(), RecordFailure>(())
//!     })?;
//! subscription.run().await?;
//! # Ok(())
//! # }
//! ```

#[expect(unsafe_code, reason = "librdkafka's batch API has no safe wrapper")]
mod batch;
mod builder;
mod channel;
mod client_log;
mod commit_queue;
mod committer;
mod context;
mod dead_letter_topic;
mod decode;
mod error;
mod fetcher;
mod log;
mod member;
mod offset_reset;
mod partition_map;
mod partition_reader;
mod revocation;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

pub use builder::{KafkaSourceBuilder, StartOffset};
pub use dead_letter_topic::DeadLetterTopic;
pub use error::KafkaSourceError;
pub use partition_map::{Partition, PartitionMap};

use super::interface::{LaneCommit, PollLimit, Source, SourceEvent};
use crate::record::{Epoch, Lane, Position, Record};
use channel::SourceChannel;
use member::GroupMember;

impl KafkaSourceBuilder {
    /// Builds the source, which starts to join its group. Its thread creates the clients.
    ///
    /// # Errors
    /// Returns [`KafkaSourceError::Settings`] or [`KafkaSourceError::Reserved`] for an invalid property,
    /// [`KafkaSourceError::Subscription`] without a topic or a group, and [`KafkaSourceError::Thread`] if the thread
    /// cannot be started.
    pub fn build(self) -> Result<KafkaSource, KafkaSourceError> {
        self.check()?;
        KafkaSource::start(self)
    }
}

/// A member of a consumer group. When dropped, its thread completes the commits and leaves the group.
#[derive(Debug)]
pub struct KafkaSource {
    channel: Arc<SourceChannel>,
    partition_map: PartitionMap,
}

impl KafkaSource {
    /// Starts a builder. `brokers` is the value of `bootstrap.servers`.
    pub fn builder(brokers: &str, group: &str) -> KafkaSourceBuilder {
        KafkaSourceBuilder::new(brokers, group)
    }

    fn start(settings: KafkaSourceBuilder) -> Result<Self, KafkaSourceError> {
        let (channel, partition_map) = (Arc::new(SourceChannel::default()), PartitionMap::default());
        let (shared, lanes) = (Arc::clone(&channel), partition_map.clone());
        let body = move || {
            shared.set_member_thread();
            let result = catch_unwind(AssertUnwindSafe(|| run_member(settings, &shared, lanes)));
            shared.end(result.unwrap_or(Err(KafkaSourceError::Internal)));
        };
        std::thread::Builder::new().name("lanes-kafka".to_owned()).spawn(body).map_err(KafkaSourceError::Thread)?;
        Ok(Self { channel, partition_map })
    }

    /// The partitions of the lanes; stays valid after the source has moved into a subscription.
    #[must_use]
    pub fn partition_map(&self) -> PartitionMap {
        self.partition_map.clone()
    }
}

/// The body of the member thread.
fn run_member(
    settings: KafkaSourceBuilder,
    channel: &Arc<SourceChannel>,
    partition_map: PartitionMap,
) -> Result<(), KafkaSourceError> {
    match GroupMember::join(settings, Arc::clone(channel), partition_map) {
        Ok(member) => member.run(),
        Err(error) => {
            channel.fail(error);
            Ok(())
        }
    }
}

impl Drop for KafkaSource {
    fn drop(&mut self) {
        self.channel.close();
    }
}

impl Source for KafkaSource {
    type Error = KafkaSourceError;

    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        room: PollLimit,
        batch: &mut Vec<Record>,
    ) -> Poll<Result<SourceEvent, KafkaSourceError>> {
        self.channel.poll(cx, room, batch)
    }

    fn pause(&mut self, lane: Lane, epoch: Epoch) {
        self.channel.set_paused(lane, epoch, true);
    }

    fn resume(&mut self, lane: Lane, epoch: Epoch) {
        self.channel.set_paused(lane, epoch, false);
    }

    fn commit(&mut self, commits: &[LaneCommit]) {
        self.channel.commit(commits);
    }

    fn release(&mut self, lane: Lane, epoch: Epoch, through: Option<Position>) {
        self.channel.release(lane, epoch, through);
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), KafkaSourceError>> {
        self.channel.poll_close(cx)
    }

    fn buffered_bytes(&self) -> usize {
        self.channel.buffered_bytes()
    }

    fn lane_name(&self, lane: Lane) -> String {
        self.partition_map.name(lane)
    }
}
