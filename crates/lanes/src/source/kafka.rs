//! Records of Kafka's topics, as a member of a consumer group (feature `kafka`).
//!
//! A lane is a partition. The group may take lanes away and bring others at any time; lanes that stay go on being read,
//! run and committed meanwhile, if the protocol of the group is a cooperative one, which is the default. A lane that is
//! taken away comes to rest first: nothing more is started, what runs ends (within [`Settings::drain`]), what is done is
//! committed, and only then does the group hear that it may have the partition. A lane that comes back has another epoch.
//!
//! There are two clients (of librdkafka): one is the member of the group, the other one reads. Both are spoken to by one
//! thread, which is always ready to answer the group: a subscription that is full, or whose handlers hang, does not lose
//! its membership. What is read ahead is bounded by [`Settings::prefetch_bytes`].
//!
//! Positions are Kafka's offsets. Compacted records, aborted transactions and markers are gaps, which are free; those at
//! the end of a partition are passed, so that a group that has done everything has no lag. Records of transactions that
//! are not committed are not seen (`isolation.level` is `read_committed`).
//!
//! ```no_run
//! use tidegate_lanes::source::kafka::Kafka;
//!
//! let source = Kafka::builder("localhost:9092", "billing").topic("orders").build()?;
//! # Ok::<(), tidegate_lanes::source::kafka::Error>(())
//! ```
//!
//! What cannot be done may go to a topic, a [`LetterTopic`], whose letters say from which partition they came. That is known by
//! the source's [`roster`](Kafka::roster), which is asked for before the source is given away:
//!
//! ```no_run
//! use tidegate_lanes::source::kafka::{Kafka, LetterTopic};
//! use tidegate_lanes::{Exhausted, Failure, Subscription};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let source = Kafka::builder("localhost:9092", "billing").topic("orders").build()?;
//! let letters = LetterTopic::new("localhost:9092", "orders-dead", source.roster())?;
//! let subscription = Subscription::builder("billing")
//!     .source(source)
//!     .exhausted(Exhausted::DeadLetter)
//!     .dead_letter(letters)
//!     .process(|record| async move {
//!         let order = record.payload().ok_or(Failure::permanent("a tombstone is no order"))?;
//!         println!("{} bytes", order.len());
//!         Ok::<(), Failure>(())
//!     })?;
//! subscription.run().await?;
//! # Ok(())
//! # }
//! ```

#[expect(unsafe_code, reason = "the client library's batches are not offered to safe code")]
mod batch;
mod commits;
mod committer;
mod decode;
mod ear;
mod error;
mod handover;
mod letters;
mod member;
mod reader;
mod reading;
mod remark;
mod reset;
mod revocation;
mod roster;
mod settings;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};

pub use error::Error;
pub use letters::LetterTopic;
pub use roster::{Partition, Roster};
pub use settings::{Settings, Start};

use super::{Event, Mark, Room, Source};
use crate::record::{Epoch, Lane, Position, Record};
use handover::Handover;
use member::Member;

/// A member of a consumer group. Dropped, it commits what it was told and leaves the group, on its own thread.
#[derive(Debug)]
pub struct Kafka {
    handover: Arc<Handover>,
    roster: Roster,
}

impl Kafka {
    /// Begins to describe a source: brokers as in `bootstrap.servers`, and the name of the group.
    pub fn builder(brokers: &str, group: &str) -> Settings {
        Settings::new(brokers, group)
    }

    fn begin(settings: Settings) -> Result<Self, Error> {
        let (handover, roster) = (Arc::new(Handover::default()), Roster::default());
        let (shared, lanes) = (Arc::clone(&handover), roster.clone());
        let body = move || {
            shared.belongs_to_this_thread();
            let result = catch_unwind(AssertUnwindSafe(|| serve(settings, &shared, lanes)));
            shared.end(result.unwrap_or(Err(Error::Broken)));
        };
        std::thread::Builder::new().name("lanes-kafka".to_owned()).spawn(body).map_err(Error::Thread)?;
        Ok(Self { handover, roster })
    }

    /// Which partition is which lane, also after the source was given to a subscription.
    #[must_use]
    pub fn roster(&self) -> Roster {
        self.roster.clone()
    }
}

/// The life of the client's thread.
fn serve(settings: Settings, handover: &Arc<Handover>, roster: Roster) -> Result<(), Error> {
    match Member::join(settings, Arc::clone(handover), roster) {
        Ok(member) => member.run(),
        Err(error) => {
            handover.fail(error);
            Ok(())
        }
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.handover.close();
    }
}

impl Source for Kafka {
    type Error = Error;

    fn poll(&mut self, cx: &mut Context<'_>, room: Room, batch: &mut Vec<Record>) -> Poll<Result<Event, Error>> {
        self.handover.poll(cx, room, batch)
    }

    fn pause(&mut self, lane: Lane, epoch: Epoch) {
        self.handover.set_paused(lane, epoch, true);
    }

    fn resume(&mut self, lane: Lane, epoch: Epoch) {
        self.handover.set_paused(lane, epoch, false);
    }

    fn commit(&mut self, marks: &[Mark]) {
        self.handover.commit(marks);
    }

    fn release(&mut self, lane: Lane, epoch: Epoch, through: Option<Position>) {
        self.handover.release(lane, epoch, through);
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.handover.poll_close(cx)
    }

    fn buffered_bytes(&self) -> usize {
        self.handover.buffered_bytes()
    }

    fn lane_name(&self, lane: Lane) -> String {
        self.roster.name(lane)
    }
}
