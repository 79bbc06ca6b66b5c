//! What was accepted and not yet taken by the writer: the state under a stripe's lock.
//!
//! Producers copy frames into the current chunk; full chunks queue behind it. The writer takes whole chunks out by
//! moving them, so it writes without the lock, and producers fill the next chunk meanwhile. Nothing here waits.

use std::{
    collections::VecDeque,
    mem,
    time::{Duration, Instant},
};

use crate::{
    budget::{Budget, Credit},
    chunk::Chunk,
    config::{ClassConfig, Overload},
    frame::{Framed, Kind},
    gap::{Cause, Gap, Losses},
    note::Ack,
    stretches::Stretches,
    time::Time,
};

/// When the writer wants to be woken. It says so under the lock, so no wake-up is lost and none is sent twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attention {
    /// Not at all: it will look again by itself.
    Busy,
    /// When so many records are waited for, or a chunk is full. It looks again by itself soon.
    Lingering { asks: usize },
    /// When anything comes.
    Idle,
}

/// What the producer does after it has let go of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nudge {
    None,
    /// Wake the writer.
    Wake,
    /// A chunk is full: write it.
    Write,
}

/// Whether a producer may be held up by the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// It may, so it writes full chunks itself: cheaper than to wake another thread.
    Writes,
    /// It must not.
    Leaves,
}

/// Where room for a record comes from.
pub(crate) struct Room<'a> {
    pub(crate) classes: &'a [ClassConfig],
    pub(crate) budget: &'a Budget,
    /// What was set aside for this record.
    pub(crate) credit: &'a mut Credit,
}

/// Books of one class. Everything offered is accepted, dropped at the door, or refused by a deadline.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ClassBooks {
    pub(crate) accepted: u64,
    pub(crate) accepted_bytes: u64,
    /// By [`Cause`].
    pub(crate) lost: [u64; 5],
    pub(crate) lost_bytes: [u64; 5],
}

/// Why a record did not get in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outside {
    /// No room now.
    Full,
    /// Its class is sampled, and this one is not kept.
    Sampled,
    Closed,
}

/// What the writer gets.
#[derive(Debug)]
pub(crate) enum Taken {
    Batch(Batch),
    /// Nothing yet; look again then, or when woken.
    Linger(Duration),
    /// Nothing at all; look again when woken.
    Idle,
    /// The journal is closed and everything was taken.
    Ended,
}

/// Chunks to be written, and how safe their records shall be when they are given back.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) ask: Ack,
    /// All numbers below are in this batch or an earlier one.
    pub(crate) end: u64,
    /// How many records of it are waited for.
    pub(crate) asks: usize,
}

/// When a batch is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) linger: Duration,
    /// At most so many bytes of chunks at once, but at least one chunk.
    pub(crate) bytes_max: usize,
    /// More producers are about to ask for the same sync.
    pub(crate) gather: Option<Gather>,
}

/// For whom a sync waits, so that it serves all of them and not the first alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gather {
    /// For so many.
    pub(crate) asks: usize,
    /// Until then at most.
    pub(crate) until: Instant,
    /// No longer than this without another one coming.
    pub(crate) quiet: Duration,
}

/// How often it is looked in such a time whether another one came.
const LOOKS: u32 = 4;

pub(crate) struct Staging {
    full: VecDeque<Chunk>,
    current: Option<Chunk>,
    next_seq: u64,
    /// The most that any staged record, or anybody else, asks for.
    ask: Ack,
    asks: usize,
    /// How many asked when it was looked last, and since when there were so many.
    gathered: Option<(usize, Instant)>,
    /// Since when something lies here.
    since: Option<Instant>,
    losses: Losses,
    attention: Attention,
    closed: bool,
    /// Records seen by a sampled class while it is sampled.
    samples: Box<[u32]>,
    books: Box<[ClassBooks]>,
    /// Numbers whose records had to go.
    displaced: Stretches,
}

impl Staging {
    pub(crate) fn new(classes: usize, next_seq: u64) -> Self {
        Self {
            full: VecDeque::new(),
            current: None,
            next_seq,
            ask: Ack::Accepted,
            asks: 0,
            gathered: None,
            since: None,
            losses: Losses::default(),
            attention: Attention::Busy,
            closed: false,
            samples: vec![0; classes].into(),
            books: vec![ClassBooks::default(); classes].into(),
            displaced: Stretches::default(),
        }
    }

    /// Takes a record in, and gives its number.
    #[inline]
    pub(crate) fn append(
        &mut self,
        framed: &Framed<'_>,
        ack: Ack,
        patience: Patience,
        room: Room<'_>,
    ) -> Result<(u64, Nudge), Outside> {
        if self.closed {
            return Err(Outside::Closed);
        }
        let class = usize::from(framed.class.index());
        if let Overload::Sample { one_in } = room.classes[class].overload
            && !self.keeps_sample(class, one_in, room.budget)
        {
            return Err(Outside::Sampled);
        }
        let bytes = framed.bytes();
        if !self.current.as_ref().is_some_and(|chunk| chunk.has_room_for(bytes)) {
            self.turn_over(bytes, class, room)?;
        }
        let chunk = self.current.as_mut().expect("there is a chunk with room");
        let seq = self.next_seq;
        chunk.push(framed, seq);
        self.next_seq += 1;
        self.books[class].accepted += 1;
        self.books[class].accepted_bytes += framed.payload.len() as u64;
        if ack > Ack::Accepted {
            chunk.pin();
            self.asks += 1;
            self.ask = self.ask.max(ack);
        }
        if self.since.is_none() {
            self.since = Some(Instant::now());
        }
        Ok((seq, self.nudge(patience)))
    }

    /// Puts the current chunk to the full ones and begins another.
    fn turn_over(&mut self, bytes: usize, class: usize, room: Room<'_>) -> Result<(), Outside> {
        let Room { classes, budget, credit } = room;
        let can_wait = matches!(classes[class].overload, Overload::Block { .. });
        if can_wait && credit.is_empty() && budget.is_reserved(bytes) {
            return Err(Outside::Full);
        }
        let fresh = match budget.take(bytes, credit) {
            Some(chunk) => chunk,
            None if classes[class].overload == Overload::DropOldest && self.drop_oldest(classes, budget) => {
                budget.take(bytes, credit).ok_or(Outside::Full)?
            }
            None => return Err(Outside::Full),
        };
        self.full.extend(self.current.replace(fresh));
        Ok(())
    }

    fn keeps_sample(&mut self, class: usize, one_in: u32, budget: &Budget) -> bool {
        if !budget.is_half_used() {
            return true;
        }
        self.samples[class] = (self.samples[class] + 1) % one_in;
        self.samples[class] == 0
    }

    #[inline]
    fn nudge(&mut self, patience: Patience) -> Nudge {
        let full = !self.full.is_empty();
        let wake = match self.attention {
            Attention::Busy => false,
            Attention::Lingering { asks } => full || (asks > 0 && self.asks >= asks),
            Attention::Idle => true,
        };
        match patience {
            Patience::Writes if full => Nudge::Write,
            _ if wake => self.wake(),
            _ => Nudge::None,
        }
    }

    /// The writer is to be woken, if it wants to be; it is told so once.
    pub(crate) fn wake(&mut self) -> Nudge {
        let asleep = mem::replace(&mut self.attention, Attention::Busy) != Attention::Busy;
        if asleep { Nudge::Wake } else { Nudge::None }
    }

    /// Drops old records that may be displaced until a whole chunk is free. `false`: there were too few.
    fn drop_oldest(&mut self, classes: &[ClassConfig], budget: &Budget) -> bool {
        self.full.extend(self.current.take());
        let mut at = 0;
        while at < self.full.len() {
            if self.full[at].is_pinned() || !self.is_freed(at, classes) {
                at += 1;
                continue;
            }
            // One that tells of losses takes nothing of the bound, and gives nothing back.
            if let Some(chunk) = self.full.remove(at).filter(|chunk| chunk.charge() > 0) {
                budget.give(chunk);
                return true;
            }
        }
        false
    }

    /// Drops what may be displaced; whether the chunk is not needed for the rest.
    fn is_freed(&mut self, at: usize, classes: &[ClassConfig]) -> bool {
        self.strip(at, classes);
        self.full[at].is_empty() || (at > 0 && self.absorb(at))
    }

    fn strip(&mut self, at: usize, classes: &[ClassConfig]) {
        let Self { full, losses, books, displaced, .. } = self;
        full[at].strip(|frame| {
            let class = usize::from(frame.class.index());
            let drops = frame.kind == Kind::Record && classes[class].overload == Overload::DropOldest;
            if drops {
                let gap = Gap::new(frame.class, Cause::Oldest, frame.payload.len(), frame.time);
                books[class].lose(&gap);
                losses.add(&gap);
                displaced.add(frame.seq..frame.seq + 1);
            }
            drops
        });
    }

    fn absorb(&mut self, at: usize) -> bool {
        let (earlier, later) = self.full.make_contiguous().split_at_mut(at);
        earlier.last_mut().is_some_and(|earlier| !earlier.is_pinned() && earlier.absorb(&later[0]))
    }

    /// A record was lost at the door.
    pub(crate) fn lose(&mut self, gap: &Gap) -> Nudge {
        self.books[usize::from(gap.class.index())].lose(gap);
        self.losses.add(gap);
        if self.since.is_none() {
            self.since = Some(Instant::now());
        }
        if self.attention == Attention::Idle { self.wake() } else { Nudge::None }
    }

    /// Somebody waits for everything that is staged.
    pub(crate) fn demand(&mut self, ack: Ack) -> Nudge {
        self.ask = self.ask.max(ack);
        self.wake()
    }

    /// Nothing more is taken in.
    pub(crate) fn close(&mut self) -> Nudge {
        self.closed = true;
        self.wake()
    }

    /// Hands chunks to the writer: the full ones, or all if they are due.
    pub(crate) fn take(&mut self, pace: &Pace, now: Instant) -> Taken {
        let age = self.since.map(|since| now.saturating_duration_since(since));
        let gathering = self.gathering(pace, now);
        let asked = self.ask > Ack::Accepted && gathering.is_none();
        let due = asked || self.closed || age.is_some_and(|age| age >= pace.linger);
        if due && (self.since.is_some() || asked) {
            return Taken::Batch(self.batch(pace, true));
        }
        if !self.full.is_empty() {
            return Taken::Batch(self.batch(pace, false));
        }
        if self.closed {
            return Taken::Ended;
        }
        if age.is_none() && gathering.is_none() {
            self.attention = Attention::Idle;
            return Taken::Idle;
        }
        // Somebody may ask for what was taken before, with nothing here.
        let (asks, wait) = gathering.unwrap_or((1, pace.linger));
        self.attention = Attention::Lingering { asks };
        Taken::Linger(age.map_or(wait, |age| wait.min(pace.linger.saturating_sub(age))))
    }

    /// Hands full chunks to a producer that writes them in the writer's place. The writer's wishes stay as they are, as it
    /// sleeps or works on. A sync is left to it.
    pub(crate) fn take_full(&mut self, bytes_max: usize) -> Option<Batch> {
        if self.full.is_empty() || self.ask == Ack::Durable {
            return None;
        }
        let chunks = self.pop_chunks(bytes_max);
        Some(Batch { chunks, ask: Ack::Written, end: self.staged_from(), asks: 0 })
    }

    fn pop_chunks(&mut self, bytes_max: usize) -> Vec<Chunk> {
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        while let Some(chunk) = self.full.pop_front_if(|chunk| bytes == 0 || bytes + chunk.charge() <= bytes_max) {
            bytes += chunk.charge();
            chunks.push(chunk);
        }
        chunks
    }

    /// The number from which on records are still here.
    fn staged_from(&self) -> u64 {
        let first = self.full.front().or(self.current.as_ref()).and_then(Chunk::seqs);
        first.map_or(self.next_seq, |(first, _)| first)
    }

    /// How many askers the writer waits for, and how long until it looks again.
    fn gathering(&mut self, pace: &Pace, now: Instant) -> Option<(usize, Duration)> {
        let Gather { asks, until, quiet } = pace.gather?;
        if self.ask == Ack::Accepted || !self.full.is_empty() || self.asks >= asks || self.closed {
            return None;
        }
        let (known, since) = self.gathered.filter(|(known, _)| *known >= self.asks).unwrap_or((self.asks, now));
        self.gathered = Some((known, since));
        let until = until.min(since + quiet);
        (now < until).then(|| (asks, (until - now).min(quiet / LOOKS)))
    }

    fn batch(&mut self, pace: &Pace, due: bool) -> Batch {
        if due {
            self.tell_losses();
            self.full.extend(self.current.take());
        }
        let chunks = self.pop_chunks(pace.bytes_max);
        let is_rest = !self.full.is_empty() || self.current.is_some();
        self.since = is_rest.then(Instant::now);
        self.attention = Attention::Busy;
        let ask = mem::take(&mut self.ask);
        let asks = mem::take(&mut self.asks);
        self.gathered = None;
        // What did not fit is asked for as before.
        if !self.full.is_empty() {
            self.ask = ask;
        }
        Batch { chunks, ask, end: self.staged_from(), asks }
    }

    /// Losses become records as soon as something is written again. They are few and small, and outside of the bound.
    fn tell_losses(&mut self) {
        if self.losses.is_empty() {
            return;
        }
        let mut chunk = Chunk::outside_of_bound();
        for gap in self.losses.drain() {
            let payload = gap.payload();
            let framed = Framed { kind: Kind::Gap, class: gap.class, time: Time::now(), payload: &payload };
            chunk.push(&framed, self.next_seq);
            self.next_seq += 1;
        }
        self.full.extend(self.current.take());
        self.full.push_back(chunk);
    }

    /// Whether the record had to go for a younger one.
    pub(crate) fn is_displaced(&self, seq: u64) -> bool {
        self.displaced.has(seq)
    }

    /// How many records are waited for.
    pub(crate) fn asks(&self) -> usize {
        self.asks
    }

    pub(crate) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    pub(crate) fn next_seq(&self) -> u64 {
        self.next_seq
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn books(&self) -> &[ClassBooks] {
        &self.books
    }

    /// Bytes staged, and the time of the oldest record among them.
    pub(crate) fn staged(&self) -> (usize, Option<Time>) {
        let chunks = || self.full.iter().chain(&self.current);
        let oldest = chunks().find_map(Chunk::times).map(|(first, _)| first);
        (chunks().map(|chunk| chunk.bytes().len()).sum(), oldest)
    }
}

impl ClassBooks {
    fn lose(&mut self, gap: &Gap) {
        self.lost[gap.cause as usize] += gap.records;
        self.lost_bytes[gap.cause as usize] += gap.bytes;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::note::Class;

    const QUIET: Duration = Duration::from_micros(100);

    fn ask(staging: &mut Staging, budget: &Budget) {
        let classes = [ClassConfig::new("one")];
        let framed = Framed { kind: Kind::Record, class: Class::new(0), time: Time::MIN, payload: b"record" };
        let room = Room { classes: &classes, budget, credit: &mut Credit::default() };
        staging.append(&framed, Ack::Durable, Patience::Leaves, room).expect("there is room");
    }

    #[test]
    fn room_is_found_behind_what_tells_of_losses() {
        const CHUNK: usize = 4 << 10;
        let (mut staging, budget) = (Staging::new(2, 0), Budget::new(4 * CHUNK, CHUNK));
        let classes = [ClassConfig::new("goes").overload(Overload::DropOldest), ClassConfig::new("stays")];
        let offer = |staging: &mut Staging, class: u8| {
            let framed =
                Framed { kind: Kind::Record, class: Class::new(class), time: Time::MIN, payload: &[b'x'; 1000] };
            let room = Room { classes: &classes, budget: &budget, credit: &mut Credit::default() };
            staging.append(&framed, Ack::Accepted, Patience::Leaves, room).map(|(seq, _)| seq)
        };
        // One chunk in which something stays, a gap, and three chunks of what may go.
        for class in [1, 0, 0, 0] {
            offer(&mut staging, class).expect("there is room");
        }
        staging.lose(&Gap::new(Class::new(0), Cause::TooLarge, 1, Time::MIN));
        staging.tell_losses();
        for _ in 0..12 {
            offer(&mut staging, 0).expect("there is room");
        }
        assert_eq!(offer(&mut staging, 0), Ok(17), "older ones go");
        assert_eq!(staging.books()[0].lost[Cause::Oldest as usize], 3 + 4);
    }

    #[test]
    fn a_sync_waits_for_as_many_as_the_last_one_served_while_they_come() {
        let (mut staging, budget) = (Staging::new(1, 0), Budget::new(1 << 20, 64 << 10));
        let begun = Instant::now();
        let gather = Gather { asks: 4, until: begun + 10 * QUIET, quiet: QUIET };
        let pace = Pace { linger: Duration::from_secs(1), bytes_max: 1 << 20, gather: Some(gather) };
        let asks = |taken: Taken| match taken {
            Taken::Batch(batch) => Some(batch.asks),
            Taken::Linger(time) => {
                assert!(time <= QUIET, "{time:?}");
                None
            }
            other => panic!("{other:?}"),
        };
        // All of them come.
        for _ in 0..3 {
            ask(&mut staging, &budget);
            assert_eq!(asks(staging.take(&pace, begun)), None);
        }
        ask(&mut staging, &budget);
        assert_eq!(asks(staging.take(&pace, begun)), Some(4));
        // No more come than two.
        ask(&mut staging, &budget);
        assert_eq!(asks(staging.take(&pace, begun)), None);
        ask(&mut staging, &budget);
        assert_eq!(asks(staging.take(&pace, begun + QUIET)), None, "there is one more");
        assert_eq!(asks(staging.take(&pace, begun + QUIET + QUIET / 2)), None, "woken early");
        assert_eq!(asks(staging.take(&pace, begun + 2 * QUIET)), Some(2));
        // Somebody asks for what was taken already, and nobody else comes.
        staging.demand(Ack::Durable);
        assert_eq!(asks(staging.take(&pace, begun + 3 * QUIET)), None);
        assert_eq!(asks(staging.take(&pace, begun + 4 * QUIET)), Some(0));
        // They come one by one, and the time is over.
        ask(&mut staging, &budget);
        assert_eq!(asks(staging.take(&pace, begun + 10 * QUIET)), Some(1));
    }
}
