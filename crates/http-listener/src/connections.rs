//! The connection slots of one socket. Idle connections cannot keep new ones out.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::Notify,
    time::{Instant, Sleep},
};

/// Stage of a connection, in the order in which connections are displaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestStage {
    /// The request is incomplete.
    Head,
    /// The request waits until its page may be built.
    Queued,
    /// The reply is being sent, or the client has read it and is idle.
    Reply,
    /// The request is in work, which depends on the gateway only. Not displaced.
    Page,
}

/// A bounded set of connections. See the [module](self).
#[derive(Debug)]
pub(crate) struct ConnectionSlots {
    inner: Mutex<SlotTable>,
    released: Notify,
    /// A new connection waits for a slot.
    is_awaited: AtomicBool,
    connections_max: usize,
}

#[derive(Debug, Default)]
struct SlotTable {
    open: BTreeMap<u64, OpenConnection>,
    /// The connections that can be displaced, in the order in which they are. A request that begins does not take its
    /// connection out, and most requests end before a slot is needed: so they need no lock. The stage of an entry may be past.
    waiting: BTreeSet<(RequestStage, u64)>,
    next: u64,
}

#[derive(Debug)]
struct OpenConnection {
    state: Arc<ConnectionState>,
    /// The stage of the entry in [`SlotTable::waiting`].
    listed: Option<RequestStage>,
}

#[derive(Debug)]
struct ConnectionState {
    /// The stage, [`LISTED`], and [`HOLD`] times the number of requests in work.
    word: AtomicU64,
    displaced: Notify,
}

const STAGE_MASK: u64 = 3;
/// Set while the connection is in [`SlotTable::waiting`]; changed under the lock.
const LISTED: u64 = 1 << 2;
const HOLD: u64 = 1 << 3;

const fn stage_of(word: u64) -> RequestStage {
    match word & STAGE_MASK {
        0 => RequestStage::Head,
        1 => RequestStage::Queued,
        2 => RequestStage::Reply,
        _ => RequestStage::Page,
    }
}

const fn at_stage(word: u64, stage: RequestStage) -> u64 {
    (word & !STAGE_MASK) | stage as u64
}

/// The slot of one connection; released when dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    pub(crate) number: u64,
    peer: SocketAddr,
    slots: Arc<ConnectionSlots>,
    state: Arc<ConnectionState>,
    opened: Instant,
    /// Microseconds from `opened` until the client began to owe the head of a request; [`IN_WORK`] while there is a request.
    head_awaited: AtomicU64,
    /// The timer of a request that has ended, for the next one.
    timer: Mutex<Option<Pin<Box<Sleep>>>>,
}

/// No head is awaited.
const IN_WORK: u64 = u64::MAX;

/// A request in work: its connection is not displaced until this value is dropped.
#[derive(Debug)]
pub struct ConnectionHold(Arc<ConnectionSlot>);

impl ConnectionSlots {
    pub(crate) fn new(connections_max: usize) -> Self {
        Self { inner: Mutex::default(), released: Notify::new(), is_awaited: AtomicBool::new(false), connections_max }
    }

    /// Takes a slot. Without a free one, displaces the oldest connection that waits for its client: an incomplete request
    /// first, then a queued one, then a reply. If all requests are in work, this call waits.
    ///
    /// # Cancel safety
    /// Safe: no slot is taken before this returns.
    pub(crate) async fn acquire(slots: &Arc<Self>, peer: SocketAddr) -> ConnectionSlot {
        let slot = loop {
            let mut released = std::pin::pin!(slots.released.notified());
            released.as_mut().enable();
            // A request that ends from now on notifies, and try_acquire finds those that ended before.
            slots.is_awaited.store(true, Ordering::SeqCst);
            if let Some(slot) = Self::try_acquire(slots, peer) {
                break slot;
            }
            released.await;
        };
        slots.is_awaited.store(false, Ordering::SeqCst);
        slot
    }

    fn try_acquire(slots: &Arc<Self>, peer: SocketAddr) -> Option<ConnectionSlot> {
        let mut table = slots.lock();
        if table.open.len() >= slots.connections_max {
            table.displace()?;
        }
        let number = table.next;
        table.next += 1;
        let word = AtomicU64::new(at_stage(LISTED, RequestStage::Head));
        let state = Arc::new(ConnectionState { word, displaced: Notify::new() });
        let open = OpenConnection { state: Arc::clone(&state), listed: Some(RequestStage::Head) };
        table.open.insert(number, open);
        table.waiting.insert((RequestStage::Head, number));
        drop(table);
        let (slots, opened, head_awaited) = (Arc::clone(slots), Instant::now(), AtomicU64::new(0));
        Some(ConnectionSlot { number, peer, slots, state, opened, head_awaited, timer: Mutex::default() })
    }

    /// A holder that panicked left consistent maps: each section makes one change.
    fn lock(&self) -> MutexGuard<'_, SlotTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a connection by its present stage, unless it was displaced or has a request in work.
    fn list(&self, number: u64) {
        self.lock().list(number);
        // The connection may be displaced from now on.
        self.notify();
    }

    /// Wakes a new connection that waits for a slot.
    fn notify(&self) {
        if self.is_awaited.load(Ordering::SeqCst) {
            self.released.notify_waiters();
        }
    }
}

impl SlotTable {
    fn list(&mut self, number: u64) {
        let Some(open) = self.open.get_mut(&number) else { return };
        if let Some(listed) = open.listed.take() {
            self.waiting.remove(&(listed, number));
        }
        let list = |word: u64| match stage_of(word) {
            RequestStage::Page => Some(word & !LISTED),
            _ => Some(word | LISTED),
        };
        let (Ok(word) | Err(word)) = open.state.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, list);
        if stage_of(word) != RequestStage::Page {
            open.listed = Some(stage_of(word));
            self.waiting.insert((stage_of(word), number));
        }
    }

    /// Displaces the first connection that waits for its client.
    fn displace(&mut self) -> Option<()> {
        loop {
            let (listed, number) = *self.waiting.first()?;
            let word = self.open.get(&number).map(|open| open.state.word.load(Ordering::SeqCst));
            if word.is_some_and(|word| stage_of(word) != listed) {
                // The stage is another now. A connection with a request in work is listed again at the end of the request.
                self.list(number);
                continue;
            }
            self.waiting.pop_first();
            if let Some(open) = self.open.remove(&number) {
                open.state.displaced.notify_one();
                return Some(());
            }
        }
    }
}

impl ConnectionSlot {
    /// The address of the client.
    #[must_use]
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    fn update(&self, change: impl Fn(u64) -> u64) -> u64 {
        let changed = |word| Some(change(word));
        let (Ok(before) | Err(before)) = self.state.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, changed);
        change(before)
    }

    /// Sets the stage, for connections with one request at a time.
    pub fn set(&self, stage: RequestStage) {
        self.update(|word| at_stage(word, stage));
        self.slots.list(self.number);
    }

    /// Keeps the connection until the returned value is dropped; for connections with several requests at a time. A connection
    /// that is displaced at the same moment is not kept.
    #[must_use]
    pub fn hold(self: &Arc<Self>) -> ConnectionHold {
        self.update(|word| at_stage(word + HOLD, RequestStage::Page));
        ConnectionHold(Arc::clone(self))
    }

    fn release(&self) {
        let word = self.update(|word| match word - HOLD {
            left if left < HOLD => at_stage(left, RequestStage::Reply),
            left => left,
        });
        if stage_of(word) == RequestStage::Page {
            return;
        }
        match word & LISTED {
            0 => self.slots.list(self.number),
            _ => self.slots.notify(),
        }
    }

    /// A holder that panicked left a timer, or none.
    fn lock_timer(&self) -> MutexGuard<'_, Option<Pin<Box<Sleep>>>> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the head of a request is complete.
    pub(crate) fn begin(&self) {
        self.head_awaited.store(IN_WORK, Ordering::Relaxed);
    }

    /// Records that the client owes the head of a request from now on.
    pub(crate) fn await_head(&self) {
        let since = u64::try_from(self.opened.elapsed().as_micros()).unwrap_or(IN_WORK);
        self.head_awaited.store(since, Ordering::Relaxed);
    }

    /// Completes when the client has owed the head of a request for `limit`. One timer serves all requests of a connection,
    /// because it is not changed by them.
    ///
    /// # Cancel safety
    /// Safe: nothing is consumed.
    pub(crate) async fn head_overdue(&self, limit: Duration) {
        loop {
            let since = match self.head_awaited.load(Ordering::Relaxed) {
                // A head that is awaited from now on is not overdue before the next look.
                IN_WORK => Instant::now(),
                micros => self.opened + Duration::from_micros(micros),
            };
            let until = since + limit;
            if until <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    /// Completes when the slot is needed for another connection.
    ///
    /// # Cancel safety
    /// Safe: the notification is kept for the next call.
    pub(crate) async fn displaced(&self) {
        self.state.displaced.notified().await;
    }
}

impl ConnectionHold {
    /// Another hold of the same connection.
    #[must_use]
    pub fn again(&self) -> Self {
        self.0.hold()
    }

    /// The address of the client.
    #[must_use]
    pub fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    /// Completes after `limit`.
    pub fn timer(&self, limit: Duration) -> ConnectionTimer<'_> {
        let until = Instant::now() + limit;
        let kept = self.0.lock_timer().take();
        let sleep = match kept {
            Some(mut sleep) => {
                sleep.as_mut().reset(until);
                sleep
            }
            None => Box::pin(tokio::time::sleep_until(until)),
        };
        ConnectionTimer { sleep: Some(sleep), slot: &self.0 }
    }
}

/// A timer that its connection keeps for the next request. A timer that is set later and later is not moved between the lists
/// of the runtime, which all connections share: a request neither adds nor removes one.
///
/// # Cancel safety
/// Safe: the time goes on.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct ConnectionTimer<'a> {
    sleep: Option<Pin<Box<Sleep>>>,
    slot: &'a ConnectionSlot,
}

impl Future for ConnectionTimer<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.sleep.as_mut().map_or(Poll::Ready(()), |sleep| sleep.as_mut().poll(cx))
    }
}

impl Drop for ConnectionTimer<'_> {
    fn drop(&mut self) {
        *self.slot.lock_timer() = self.sleep.take();
    }
}

impl Drop for ConnectionHold {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        let mut table = self.slots.lock();
        if let Some(listed) = table.open.remove(&self.number).and_then(|open| open.listed) {
            table.waiting.remove(&(listed, self.number));
        }
        drop(table);
        self.slots.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 8;

    fn slots() -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots::new(MAX))
    }

    fn acquired(slots: &Arc<ConnectionSlots>) -> Arc<ConnectionSlot> {
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        Arc::new(ConnectionSlots::try_acquire(slots, peer).expect("a free slot"))
    }

    fn full(slots: &Arc<ConnectionSlots>) -> Vec<Arc<ConnectionSlot>> {
        (0..MAX).map(|_| acquired(slots)).collect()
    }

    /// The connections that were displaced.
    fn displaced(all: &[Arc<ConnectionSlot>]) -> Vec<u64> {
        let is_open = |slot: &&Arc<ConnectionSlot>| slot.slots.lock().open.contains_key(&slot.number);
        all.iter().filter(|slot| !is_open(slot)).map(|slot| slot.number).collect()
    }

    #[test]
    fn oldest_incomplete_request_is_displaced() {
        let slots = slots();
        let mut all = full(&slots);
        all[0].set(RequestStage::Page);
        all[1].set(RequestStage::Reply);
        assert!(displaced(&all).is_empty());
        all.push(acquired(&slots));
        all.push(acquired(&slots));
        assert_eq!(displaced(&all), [2, 3]);
    }

    #[test]
    fn unread_reply_is_displaced_after_requests() {
        let slots = slots();
        let mut all = full(&slots);
        all.iter().for_each(|slot| slot.set(RequestStage::Page));
        let peer = all[0].peer();
        assert!(ConnectionSlots::try_acquire(&slots, peer).is_none(), "all wait for the gateway");
        all[5].set(RequestStage::Reply);
        all.push(acquired(&slots));
        assert_eq!(displaced(&all), [5]);
        drop(all.remove(0));
        acquired(&slots);
    }

    #[test]
    fn connection_is_kept_by_each_request_in_work() {
        let slots = slots();
        let all = full(&slots);
        let peer = all[0].peer();
        let mut holds: Vec<_> = all.iter().map(ConnectionSlot::hold).collect();
        let second = all[3].hold();
        drop(holds.remove(3));
        assert!(ConnectionSlots::try_acquire(&slots, peer).is_none(), "another request of the connection is in work");
        drop(second);
        let _newest = acquired(&slots);
        assert_eq!(displaced(&all), [3]);
        drop((holds, all));
        let table = slots.lock();
        assert_eq!((table.open.len(), table.waiting.len()), (1, 1), "the newest is left");
        drop(table);
    }
}
