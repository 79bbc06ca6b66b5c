//! The way in.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use crate::{
    acks::Seat,
    budget::Credit,
    config::Overload,
    error::{CommitError, Lost, Refused},
    frame::{Framed, Kind},
    gap::{Cause, Gap},
    journal::Shared,
    line::{Standing, Turn},
    note::{Ack, Class, Note, Ticket},
    staging::{Outside, Patience},
    stripe::Stripe,
    time::Time,
    waiting,
};

/// A handle that appends to one stripe, for any thread or task.
///
/// Records of one producer, and of its clones, are in the order in which they were accepted. Which stripe a producer is of
/// is decided when [`Journal::producer`](crate::Journal::producer) makes it, so a task may move between threads.
#[derive(Clone)]
pub struct Producer {
    shared: Arc<Shared>,
    stripe: Arc<Stripe>,
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("stripe", &self.stripe.index).finish_non_exhaustive()
    }
}

impl Producer {
    pub(crate) fn new(shared: Arc<Shared>, stripe: Arc<Stripe>) -> Self {
        Self { shared, stripe }
    }

    /// Hands in a record without ever waiting, neither for room nor for a disk, and without allocating.
    ///
    /// If there is no room, the record is dropped, displaces an older one, or is sampled, as its class says; a class that
    /// blocks drops it. A loss is counted and told by a gap record, so a caller may ignore the error.
    ///
    /// # Errors
    /// [`Refused`], and the record is not taken.
    #[inline]
    pub fn offer(&self, note: Note<'_>) -> Result<Ticket, Refused> {
        let (framed, ack) = self.frame(note)?;
        match self.try_in_turn(&framed, ack, Patience::Leaves) {
            Ok(seq) => Ok(self.ticket(seq, &framed, ack)),
            Err(outside) => Err(self.refuse(&framed, outside)),
        }
    }

    /// Hands in a record; waits for room if its class blocks, and never for a disk. The future gives the record's place
    /// as soon as it is accepted, whatever acknowledgement was asked for.
    ///
    /// # Errors
    /// [`Refused`], and the record is not taken.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is done has taken nothing and leaves the line.
    pub fn append<'a>(&'a self, note: Note<'a>) -> Appending<'a> {
        Appending::new(self, note, Patience::Leaves)
    }

    /// Hands in a record; waits for room if its class blocks, and may write to the disk itself if a batch is full, which is
    /// the cheapest way of all. For threads that may block.
    ///
    /// # Errors
    /// [`Refused`], and the record is not taken.
    pub fn append_blocking(&self, note: Note<'_>) -> Result<Ticket, Refused> {
        let (framed, ack) = self.frame(note)?;
        match self.try_in_turn(&framed, ack, Patience::Writes) {
            Ok(seq) => Ok(self.ticket(seq, &framed, ack)),
            Err(Outside::Full) => waiting::block(Appending::new(self, note, Patience::Writes)),
            Err(outside) => Err(self.refuse(&framed, outside)),
        }
    }

    /// Hands in a record and waits until it is as safe as its class, or the note, asks.
    ///
    /// # Errors
    /// [`CommitError::Refused`] if it was not taken; [`CommitError::Lost`] if it was and the disk failed for good.
    ///
    /// # Cancel safety
    /// A future that is dropped may or may not have appended the record.
    pub async fn commit(&self, note: Note<'_>) -> Result<Ticket, CommitError> {
        let ack = self.shared.ack(&note);
        let ticket = self.append(note).await?;
        self.wait_asked(ticket, ack).await?;
        Ok(ticket)
    }

    /// [`commit`](Self::commit) for threads that may block.
    ///
    /// # Errors
    /// Those of [`commit`](Self::commit).
    pub fn commit_blocking(&self, note: Note<'_>) -> Result<Ticket, CommitError> {
        let ack = self.shared.ack(&note);
        let ticket = self.append_blocking(note)?;
        waiting::block(self.wait_asked(ticket, ack))?;
        Ok(ticket)
    }

    /// Waits until an accepted record of this journal is as safe as `ack` says, and hurries the writer if need be.
    ///
    /// # Errors
    /// [`Lost`] if it never will be.
    ///
    /// # Cancel safety
    /// The future may be dropped; the record stays on its way.
    ///
    /// # Panics
    /// If the ticket is of another journal with more stripes.
    pub fn wait(&self, ticket: Ticket, ack: Ack) -> Acked<'_> {
        let class = self.shared.config.classes.get(usize::from(ticket.class.index()));
        let may_go = !ticket.is_pinned && class.is_some_and(|class| class.overload == Overload::DropOldest);
        Acked { may_go, ..Acked::new(self.shared.stripe(ticket.stripe), ticket.seq, ack) }
    }

    /// Waits for a record that asked for as much when it was appended, so the writer knows.
    fn wait_asked(&self, ticket: Ticket, ack: Ack) -> Acked<'_> {
        Acked { demanded: true, ..Acked::new(&self.stripe, ticket.seq, ack) }
    }

    /// The stripe that this producer is of.
    #[must_use]
    pub fn stripe(&self) -> u16 {
        self.stripe.index
    }

    #[inline]
    fn ticket(&self, seq: u64, framed: &Framed<'_>, ack: Ack) -> Ticket {
        Ticket { stripe: self.stripe.index, seq, class: framed.class, is_pinned: ack > Ack::Accepted }
    }

    /// In line with whoever appends: handed over in memory, its parts would be read before they are there.
    #[inline(always)]
    fn frame<'a>(&self, note: Note<'a>) -> Result<(Framed<'a>, Ack), Refused> {
        let config = &*self.shared.config;
        let Some(class) = config.classes.get(usize::from(note.class.index())) else {
            return Err(unknown(note.class, config.classes.len()));
        };
        if note.payload.len() > config.record_bytes_max {
            return Err(self.refuse_large(&note));
        }
        let time = note.time.unwrap_or_else(|| Time::read(config.times));
        let framed = Framed { kind: Kind::Record, class: note.class, time, payload: note.payload };
        Ok((framed, note.ack.unwrap_or(class.ack)))
    }

    #[cold]
    fn refuse_large(&self, note: &Note<'_>) -> Refused {
        let (bytes, max) = (note.payload.len(), self.shared.config.record_bytes_max);
        let time = note.time.unwrap_or_else(Time::now);
        self.stripe.lose(&Gap::new(note.class, Cause::TooLarge, bytes, time));
        Refused::TooLarge { bytes, max }
    }

    /// Appends unless that would overtake somebody who waits for room.
    #[inline]
    fn try_in_turn(&self, framed: &Framed<'_>, ack: Ack, patience: Patience) -> Result<u64, Outside> {
        if self.shared.budget.has_line() && !self.stripe.is_closed() && self.blocks(framed) {
            return Err(Outside::Full);
        }
        self.stripe.append(framed, ack, patience, &mut Credit::default())
    }

    fn blocks(&self, framed: &Framed<'_>) -> bool {
        self.deadline(framed).is_some()
    }

    /// How long the class of the record waits, if it does.
    fn deadline(&self, framed: &Framed<'_>) -> Option<Duration> {
        match self.shared.config.classes[usize::from(framed.class.index())].overload {
            Overload::Block { deadline } => Some(deadline),
            _ => None,
        }
    }

    /// The record stays outside: counts it, and says so.
    #[cold]
    fn refuse(&self, framed: &Framed<'_>, outside: Outside) -> Refused {
        let cause = match outside {
            Outside::Closed => return Refused::Closed,
            Outside::Full => Cause::Newest,
            Outside::Sampled => Cause::Sampled,
        };
        self.lose(framed, cause);
        Refused::Dropped
    }

    fn lose(&self, framed: &Framed<'_>, cause: Cause) {
        self.stripe.lose(&Gap::new(framed.class, cause, framed.payload.len(), framed.time));
    }
}

#[cold]
fn unknown(class: Class, classes: usize) -> Refused {
    Refused::UnknownClass { index: class.index(), classes }
}

/// A record on its way into the journal: see [`Producer::append`].
#[must_use = "a record is appended when the future is awaited"]
pub struct Appending<'a> {
    producer: &'a Producer,
    note: Note<'a>,
    patience: Patience,
    framed: Option<(Framed<'a>, Ack)>,
    turn: Option<Turn>,
    deadline: Option<Instant>,
}

impl fmt::Debug for Appending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Appending").field("waits", &self.turn.is_some()).finish_non_exhaustive()
    }
}

impl<'a> Appending<'a> {
    fn new(producer: &'a Producer, note: Note<'a>, patience: Patience) -> Self {
        Self { producer, note, patience, framed: None, turn: None, deadline: None }
    }

    /// The first attempt failed.
    #[cold]
    fn stay_outside(
        &mut self,
        framed: Framed<'a>,
        ack: Ack,
        outside: Outside,
        context: &Context<'_>,
    ) -> Poll<Result<Ticket, Refused>> {
        self.framed = Some((framed, ack));
        let refused = match outside {
            Outside::Full => self.full(&framed, context),
            outside => Some(self.producer.refuse(&framed, outside)),
        };
        match refused {
            Some(refused) => Poll::Ready(Err(refused)),
            None => self.go_on(context),
        }
    }

    /// In line, or in its turn.
    fn go_on(&mut self, context: &Context<'_>) -> Poll<Result<Ticket, Refused>> {
        let (framed, ack) = self.framed.expect("it was framed when it was tried first");
        loop {
            let standing = self.turn.map(|turn| self.producer.shared.budget.look(turn, context.waker()));
            match standing {
                Some(Standing::Waiting) => return Poll::Pending,
                Some(Standing::Expired) => {
                    self.leave();
                    self.producer.lose(&framed, Cause::TimedOut);
                    return Poll::Ready(Err(Refused::TimedOut));
                }
                Some(Standing::Granted) | None => {}
            }
            let refused = match self.attempt(&framed, ack) {
                Ok(seq) => return Poll::Ready(Ok(self.producer.ticket(seq, &framed, ack))),
                Err(Outside::Full) => self.full(&framed, context),
                Err(outside) => Some(self.producer.refuse(&framed, outside)),
            };
            if let Some(refused) = refused {
                return Poll::Ready(Err(refused));
            }
        }
    }

    /// The attempt in its turn, for which there is room.
    fn attempt(&mut self, framed: &Framed<'a>, ack: Ack) -> Result<u64, Outside> {
        let Some(turn) = self.turn.take() else { return self.producer.try_in_turn(framed, ack, self.patience) };
        let budget = &self.producer.shared.budget;
        let mut credit = budget.leave(turn);
        let result = self.producer.stripe.append(framed, ack, self.patience, &mut credit);
        budget.refund(credit);
        result
    }

    fn leave(&mut self) {
        if let Some(turn) = self.turn.take() {
            let budget = &self.producer.shared.budget;
            budget.refund(budget.leave(turn));
        }
    }

    /// There is no room. `Some`: and there will be none.
    fn full(&mut self, framed: &Framed<'a>, context: &Context<'_>) -> Option<Refused> {
        let Some(patience) = self.producer.deadline(framed) else {
            return Some(self.producer.refuse(framed, Outside::Full));
        };
        let shared = &self.producer.shared;
        let deadline = *self.deadline.get_or_insert_with(|| after(patience));
        let (turn, nearest) = shared.budget.join(framed.bytes(), context.waker(), Some(deadline));
        self.turn = Some(turn);
        if self.producer.stripe.is_closed() {
            // Whoever closed it has sent away those in line before we came.
            self.leave();
            return Some(self.producer.refuse(framed, Outside::Closed));
        }
        if nearest {
            shared.wake_clock();
        }
        if self.patience == Patience::Writes {
            // Whoever helped may have left something, and nobody may come now who would.
            self.producer.stripe.demand(Ack::Accepted);
        }
        None
    }
}

/// So long from now; a time that no clock has is one that nobody lives to see.
pub(crate) fn after(time: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    let now = Instant::now();
    now.checked_add(time).unwrap_or_else(|| now + NEVER)
}

impl Future for Appending<'_> {
    type Output = Result<Ticket, Refused>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.framed.is_some() {
            return this.go_on(context);
        }
        let (framed, ack) = match this.producer.frame(this.note) {
            Ok(framed) => framed,
            Err(refused) => return Poll::Ready(Err(refused)),
        };
        match this.producer.try_in_turn(&framed, ack, this.patience) {
            Ok(seq) => Poll::Ready(Ok(this.producer.ticket(seq, &framed, ack))),
            Err(outside) => this.stay_outside(framed, ack, outside, context),
        }
    }
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Waits until a record is as safe as was asked: see [`Producer::wait`].
#[must_use = "nothing waits until the future is awaited"]
pub struct Acked<'a> {
    stripe: &'a Stripe,
    seq: u64,
    ack: Ack,
    seat: Option<Seat>,
    demanded: bool,
    /// A younger record may have taken its place.
    may_go: bool,
}

impl<'a> Acked<'a> {
    pub(crate) fn new(stripe: &'a Stripe, seq: u64, ack: Ack) -> Self {
        Self { stripe, seq, ack, seat: None, demanded: false, may_go: false }
    }
}

impl fmt::Debug for Acked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acked").field("seq", &self.seq).field("ack", &self.ack).finish_non_exhaustive()
    }
}

impl Future for Acked<'_> {
    type Output = Result<(), Lost>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let polled = this.stripe.acks.poll(this.seq, this.ack, &mut this.seat, context);
        if polled.is_pending() && !this.demanded {
            this.demanded = true;
            this.stripe.demand(this.ack);
        }
        if this.may_go
            && polled == Poll::Ready(Ok(()))
            && this.ack > Ack::Accepted
            && this.stripe.is_displaced(this.seq)
        {
            return Poll::Ready(Err(Lost));
        }
        polled
    }
}

impl Drop for Acked<'_> {
    fn drop(&mut self) {
        self.stripe.acks.leave(self.seat.take());
    }
}
