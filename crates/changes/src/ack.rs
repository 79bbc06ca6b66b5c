//! Acknowledgements: what the consumer declares durable, and the flush position that follows from it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tidegate_wire::replication::Lsn;
use tokio::sync::Notify;

use crate::event::ChangeEvent;

/// Acknowledges what is durable. Clones acknowledge for the same stream.
#[derive(Clone, Debug, Default)]
pub struct Acknowledge {
    shared: Arc<SharedAck>,
}

#[derive(Debug, Default)]
struct SharedAck {
    durable: AtomicU64,
    changed: Notify,
}

impl Acknowledge {
    /// Declares everything up to this position durable: the `end_lsn` of a transaction or message, or the position of a
    /// [`Progress`](crate::ChangeEvent::Progress), and all that was delivered before it.
    ///
    /// A lower position than before has no effect. The call does not wait; the next status update carries the position.
    pub fn up_to(&self, lsn: Lsn) {
        if self.shared.durable.fetch_max(lsn.0, Ordering::AcqRel) < lsn.0 {
            self.shared.changed.notify_one();
        }
    }

    /// The highest acknowledged position.
    #[must_use]
    pub fn acknowledged(&self) -> Lsn {
        Lsn(self.shared.durable.load(Ordering::Acquire))
    }

    /// Waits for an acknowledgement since the last call. For one waiter.
    ///
    /// # Cancel safety
    /// An acknowledgement that comes in meanwhile is returned by the next call.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }
}

/// How positions count that no transaction belongs to, while the server writes WAL that is not published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdleAck {
    /// The stream acknowledges such positions while no transaction waits for the consumer. Fits consumers that resume from
    /// the slot.
    #[default]
    Automatic,
    /// The consumer acknowledges [`Progress`](crate::ChangeEvent::Progress) after it has stored the position. For
    /// consumers that resume from their own position, which must not fall behind the slot (CH-10).
    Consumer,
}

/// Computes the flush position from what was received, delivered and acknowledged.
///
/// Invariants: the flush position never decreases, and never passes the end of a transaction that is not
/// delivered, or not acknowledged (CH-01, CH-03, CH-04).
///
/// ```
/// use tidegate_changes::{AckTracker, IdleAck, Lsn};
///
/// let mut tracker = AckTracker::new(IdleAck::Automatic, Lsn(100));
/// tracker.on_delivered(Lsn(200));
/// tracker.on_keepalive(Lsn(300));
/// // A transaction up to 200 is not durable yet.
/// assert_eq!(tracker.flush(false), Lsn(100));
/// tracker.on_acknowledged(Lsn(200));
/// assert_eq!(tracker.flush(false), Lsn(300));
/// ```
#[derive(Clone, Debug)]
pub struct AckTracker {
    idle_ack: IdleAck,
    /// End of the WAL that the server has sent.
    received: Lsn,
    /// Acknowledgement position of the newest delivered transaction or message.
    delivered: Lsn,
    /// The newest position without a transaction.
    idle: Lsn,
    durable: Lsn,
    flushed: Lsn,
}

impl AckTracker {
    /// Starts at a position up to which everything is durable.
    #[must_use]
    pub const fn new(idle_ack: IdleAck, start: Lsn) -> Self {
        Self { idle_ack, received: start, delivered: start, idle: Lsn::ZERO, durable: start, flushed: start }
    }

    /// Data up to this position was received.
    pub fn on_received(&mut self, lsn: Lsn) {
        self.received = self.received.max(lsn);
    }

    /// A transaction or message that ends here was delivered to the consumer, who has to acknowledge it.
    pub fn on_delivered(&mut self, end_lsn: Lsn) {
        self.delivered = self.delivered.max(end_lsn);
        self.on_received(end_lsn);
    }

    /// The server has decoded up to this position, or sent an empty transaction that ends here; everything before it was
    /// delivered.
    pub fn on_keepalive(&mut self, lsn: Lsn) {
        self.idle = self.idle.max(lsn);
        self.on_received(lsn);
    }

    /// Counts an event that is about to be delivered.
    pub fn on_event(&mut self, event: &ChangeEvent) {
        match event {
            ChangeEvent::Commit(commit) => self.on_delivered(commit.end_lsn),
            ChangeEvent::Message(message) => self.on_delivered(message.end_lsn),
            ChangeEvent::Progress(lsn) => self.on_keepalive(*lsn),
            ChangeEvent::Begin(_) | ChangeEvent::Schema(_) | ChangeEvent::Change(_) => {}
        }
    }

    /// The consumer has acknowledged a position. A position beyond the newest delivered one counts up to that one.
    pub fn on_acknowledged(&mut self, lsn: Lsn) {
        self.durable = self.durable.max(lsn.min(self.delivered.max(self.idle)));
    }

    /// The flush position to send. `in_transaction` states whether parts of an unfinished transaction were received.
    pub fn flush(&mut self, in_transaction: bool) -> Lsn {
        let is_held = in_transaction || self.is_held();
        let counts_idle = self.idle_ack == IdleAck::Automatic && !is_held;
        let candidate = if counts_idle { self.durable.max(self.idle) } else { self.durable };
        self.flushed = self.flushed.max(candidate);
        self.flushed
    }

    /// Whether the consumer has not acknowledged all that was delivered.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.durable < self.delivered
    }

    /// End of the WAL that the server has sent.
    #[must_use]
    pub const fn received(&self) -> Lsn {
        self.received
    }

    /// The highest position that the consumer has acknowledged.
    #[must_use]
    pub const fn durable(&self) -> Lsn {
        self.durable
    }

    /// The flush position that was computed last.
    #[must_use]
    pub const fn flushed(&self) -> Lsn {
        self.flushed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracker() -> AckTracker {
        AckTracker::new(IdleAck::Automatic, Lsn(100))
    }

    /// CH-01.
    #[test]
    fn keepalive_does_not_pass_a_held_transaction() {
        let mut tracker = tracker();
        tracker.on_delivered(Lsn(200));
        tracker.on_keepalive(Lsn(500));
        assert_eq!(tracker.flush(false), Lsn(100));
        tracker.on_acknowledged(Lsn(200));
        assert_eq!(tracker.flush(false), Lsn(500));
    }

    /// CH-02.
    #[test]
    fn keepalive_counts_while_the_tables_rest() {
        let mut tracker = tracker();
        for lsn in [200, 300, 250] {
            tracker.on_keepalive(Lsn(lsn));
        }
        assert_eq!(tracker.flush(false), Lsn(300));
    }

    /// CH-03: an empty transaction after an unacknowledged one.
    #[test]
    fn empty_transaction_waits_for_earlier_ones() {
        let mut tracker = tracker();
        tracker.on_delivered(Lsn(200));
        tracker.on_event(&ChangeEvent::Progress(Lsn(300)));
        assert_eq!(tracker.flush(false), Lsn(100));
        tracker.on_delivered(Lsn(400));
        tracker.on_acknowledged(Lsn(200));
        assert_eq!(tracker.flush(false), Lsn(200));
        tracker.on_acknowledged(Lsn(400));
        assert_eq!(tracker.flush(false), Lsn(400));
    }

    /// CH-05: the position is the end of the commit record, so that the transaction does not come again.
    #[test]
    fn flush_is_the_end_of_the_commit() {
        let mut tracker = tracker();
        tracker.on_delivered(Lsn(208));
        tracker.on_acknowledged(Lsn(200));
        assert_eq!((tracker.flush(false), tracker.is_held()), (Lsn(200), true));
        tracker.on_acknowledged(Lsn(208));
        assert_eq!((tracker.flush(false), tracker.is_held()), (Lsn(208), false));
    }

    /// CH-18: a keepalive in the middle of a transaction, and after it.
    #[test]
    fn fragments_of_a_transaction_do_not_move_flush() {
        let mut tracker = tracker();
        tracker.on_received(Lsn(300));
        tracker.on_keepalive(Lsn(300));
        assert_eq!(tracker.flush(true), Lsn(100));
        tracker.on_delivered(Lsn(400));
        tracker.on_acknowledged(Lsn(400));
        assert_eq!(tracker.flush(false), Lsn(400));
        assert_eq!(tracker.received(), Lsn(400));
    }

    #[test]
    fn flush_never_decreases() {
        let mut tracker = tracker();
        tracker.on_keepalive(Lsn(300));
        assert_eq!(tracker.flush(false), Lsn(300));
        tracker.on_delivered(Lsn(400));
        assert_eq!(tracker.flush(true), Lsn(300));
        tracker.on_acknowledged(Lsn(50));
        assert_eq!(tracker.flush(false), Lsn(300));
    }

    #[test]
    fn position_that_was_not_delivered_does_not_count() {
        let mut tracker = tracker();
        tracker.on_delivered(Lsn(200));
        tracker.on_acknowledged(Lsn(u64::MAX));
        assert_eq!(tracker.flush(false), Lsn(200));
    }

    /// CH-10: the stored position never falls behind the slot.
    #[test]
    fn consumer_acknowledges_idle_positions_itself() {
        let mut tracker = AckTracker::new(IdleAck::Consumer, Lsn(100));
        tracker.on_keepalive(Lsn(300));
        assert_eq!(tracker.flush(false), Lsn(100));
        tracker.on_acknowledged(Lsn(300));
        assert_eq!(tracker.flush(false), Lsn(300));
    }

    /// A model: transactions with random gaps, acknowledged in order with a random delay. Flush never passes an
    /// unacknowledged end, and reaches the newest position when everything is acknowledged.
    #[test]
    fn flush_agrees_with_a_model() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..300 {
            let mut tracker = AckTracker::new(IdleAck::Automatic, Lsn(0));
            let (mut at, mut waiting, mut newest_idle) = (0, std::collections::VecDeque::new(), 0);
            for _ in 0..random.usize(1..80) {
                at += random.u64(1..9);
                match random.u8(..4) {
                    0 => {
                        tracker.on_keepalive(Lsn(at));
                        newest_idle = at;
                    }
                    1 => {
                        tracker.on_delivered(Lsn(at));
                        waiting.push_back(at);
                    }
                    _ => {
                        if let Some(end) = waiting.pop_front() {
                            tracker.on_acknowledged(Lsn(end));
                        }
                    }
                }
                let flush = tracker.flush(random.bool()).0;
                assert!(waiting.front().is_none_or(|first| flush < *first), "seed {seed}: {flush} {waiting:?}");
            }
            let last = waiting.back().copied().unwrap_or(0);
            tracker.on_acknowledged(Lsn(last));
            assert!(tracker.flush(false).0 >= newest_idle.max(last), "seed {seed}");
        }
    }
}
