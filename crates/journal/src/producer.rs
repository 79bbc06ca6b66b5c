//! Producers: append and commit.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use crate::{
    blocking::{self, after},
    config::OverloadPolicy,
    durability_tracker::AckWaiterId,
    error::{AppendError, CommitError, RecordLost},
    frame::{FrameInput, FrameKind},
    gap_record::{Gap, LossCause},
    journal_context::JournalContext,
    memory_budget::Reservation,
    producer_record::{Ack, Class, ProducerRecord, RecordId},
    staging::{AppendFailure, BlockingMode},
    stripe::Stripe,
    timestamp::Timestamp,
    wait_queue::{QueueTicket, WaitStatus},
};

/// A handle that appends to one stripe, usable from any thread or task.
///
/// Records of one producer, and of its clones, are in the order in which they were accepted.
/// [`Journal::producer`](crate::Journal::producer) assigns the stripe, so a task may move between threads.
#[derive(Clone)]
pub struct Producer {
    context: Arc<JournalContext>,
    stripe: Arc<Stripe>,
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer").field("stripe", &self.stripe.index).finish_non_exhaustive()
    }
}

impl Producer {
    pub(crate) fn new(context: Arc<JournalContext>, stripe: Arc<Stripe>) -> Self {
        Self { context, stripe }
    }

    /// Appends a record without waiting for room or for the disk, and without allocating.
    ///
    /// If there is no room, the overload policy of the class decides: the record is dropped, displaces an older one, or
    /// is sampled; a class that blocks drops it. A loss is counted and recorded in a gap record, so a caller may ignore
    /// the error.
    ///
    /// # Errors
    /// Returns [`AppendError`] if the record is not accepted.
    #[inline]
    pub fn offer(&self, record: ProducerRecord<'_>) -> Result<RecordId, AppendError> {
        let (framed, ack) = self.frame(record)?;
        match self.try_append(&framed, ack, BlockingMode::NonBlocking) {
            Ok(seq) => Ok(self.record_id(seq, &framed, ack)),
            Err(failure) => Err(self.reject(&framed, failure)),
        }
    }

    /// Appends a record. Waits for room if its class blocks, and never for the disk. The future resolves as soon as the
    /// record is accepted, whatever its ack level.
    ///
    /// # Errors
    /// Returns [`AppendError`] if the record is not accepted.
    ///
    /// # Cancel safety
    /// If the future is dropped before completion, the record is not appended and its place in the queue is given up.
    pub fn append<'a>(&'a self, record: ProducerRecord<'a>) -> AppendFuture<'a> {
        AppendFuture::new(self, record, BlockingMode::NonBlocking)
    }

    /// Appends a record. Waits for room if its class blocks, and may write a full batch to the disk itself, which is
    /// cheaper than waking the writer thread. For threads that may block.
    ///
    /// # Errors
    /// Returns [`AppendError`] if the record is not accepted.
    pub fn append_blocking(&self, record: ProducerRecord<'_>) -> Result<RecordId, AppendError> {
        let (framed, ack) = self.frame(record)?;
        match self.try_append(&framed, ack, BlockingMode::MayBlock) {
            Ok(seq) => Ok(self.record_id(seq, &framed, ack)),
            Err(AppendFailure::Full) => blocking::block(AppendFuture::new(self, record, BlockingMode::MayBlock)),
            Err(failure) => Err(self.reject(&framed, failure)),
        }
    }

    /// Appends a record and waits until it reaches the ack level of the record or its class.
    ///
    /// # Errors
    /// Returns [`CommitError::Append`] if the record is not accepted, and [`CommitError::Lost`] if it is accepted and
    /// then lost.
    ///
    /// # Cancel safety
    /// If the future is dropped, the record may or may not have been appended.
    pub async fn commit(&self, record: ProducerRecord<'_>) -> Result<RecordId, CommitError> {
        let ack = self.context.ack(&record);
        let record_id = self.append(record).await?;
        self.wait_requested(record_id, ack).await?;
        Ok(record_id)
    }

    /// Like [`commit`](Self::commit), for threads that may block.
    ///
    /// # Errors
    /// Returns the errors of [`commit`](Self::commit).
    pub fn commit_blocking(&self, record: ProducerRecord<'_>) -> Result<RecordId, CommitError> {
        let ack = self.context.ack(&record);
        let record_id = self.append_blocking(record)?;
        blocking::block(self.wait_requested(record_id, ack))?;
        Ok(record_id)
    }

    /// Waits until an accepted record of this journal reaches an ack level. Makes the writer write earlier if needed.
    ///
    /// # Errors
    /// Returns [`RecordLost`] if the record never reaches the level.
    ///
    /// # Cancel safety
    /// The future may be dropped; the record stays in the journal.
    ///
    /// # Panics
    /// Panics if `record_id` belongs to another journal with more stripes.
    pub fn wait(&self, record_id: RecordId, ack: Ack) -> AckFuture<'_> {
        let class = self.context.config.classes.get(usize::from(record_id.class.index()));
        let is_displaceable =
            !record_id.is_pinned && class.is_some_and(|class| class.overload == OverloadPolicy::DropOldest);
        AckFuture { is_displaceable, ..AckFuture::new(self.context.stripe(record_id.stripe), record_id.seq, ack) }
    }

    /// Waits until an accepted record and all records before it in its stripe reach an ack level. Makes the writer write
    /// earlier if needed. Records that were never accepted or were displaced by newer ones do not count: gap records count
    /// them.
    ///
    /// # Errors
    /// Returns [`RecordLost`] if any of these records never reaches the level. Since such a record is missing, the error
    /// holds for all later records of the stripe too, until the journal is opened again.
    ///
    /// # Cancel safety
    /// The future may be dropped; the records stay in the journal.
    ///
    /// # Panics
    /// Panics if `record_id` belongs to another journal with more stripes.
    pub fn wait_through(&self, record_id: RecordId, ack: Ack) -> AckFuture<'_> {
        AckFuture { covers_earlier: true, ..self.wait(record_id, ack) }
    }

    /// Waits for a record that was appended with this ack level, so the writer needs no further request.
    fn wait_requested(&self, record_id: RecordId, ack: Ack) -> AckFuture<'_> {
        AckFuture::passive(&self.stripe, record_id.seq, ack)
    }

    /// The stripe of this producer.
    #[must_use]
    pub fn stripe(&self) -> u16 {
        self.stripe.index
    }

    #[inline]
    fn record_id(&self, seq: u64, framed: &FrameInput<'_>, ack: Ack) -> RecordId {
        RecordId { stripe: self.stripe.index, seq, class: framed.class, is_pinned: ack > Ack::Accepted }
    }

    /// Inlined into the append: returned in memory, the parts would be loaded before their stores have retired.
    #[inline(always)]
    fn frame<'a>(&self, record: ProducerRecord<'a>) -> Result<(FrameInput<'a>, Ack), AppendError> {
        let config = &*self.context.config;
        let Some(class) = config.classes.get(usize::from(record.class.index())) else {
            return Err(unknown_class(record.class, config.classes.len()));
        };
        if record.payload.len() > config.record_bytes_max {
            return Err(self.reject_too_large(&record));
        }
        let time = record.time.unwrap_or_else(|| Timestamp::read(config.timestamps));
        let framed = FrameInput { kind: FrameKind::Record, class: record.class, time, payload: record.payload };
        Ok((framed, record.ack.unwrap_or(class.ack)))
    }

    #[cold]
    fn reject_too_large(&self, record: &ProducerRecord<'_>) -> AppendError {
        let (bytes, max) = (record.payload.len(), self.context.config.record_bytes_max);
        let time = record.time.unwrap_or_else(Timestamp::now);
        self.stripe.record_loss(&Gap::new(record.class, LossCause::TooLarge, bytes, time));
        AppendError::TooLarge { bytes, max }
    }

    /// Appends unless that would overtake a waiting producer.
    #[inline]
    fn try_append(&self, framed: &FrameInput<'_>, ack: Ack, blocking: BlockingMode) -> Result<u64, AppendFailure> {
        if self.context.budget.has_waiters() && !self.stripe.is_closed() && self.can_block(framed) {
            return Err(AppendFailure::Full);
        }
        self.stripe.append(framed, ack, blocking, &mut Reservation::default())
    }

    fn can_block(&self, framed: &FrameInput<'_>) -> bool {
        self.deadline(framed).is_some()
    }

    /// How long the class of the record waits, if it blocks.
    fn deadline(&self, framed: &FrameInput<'_>) -> Option<Duration> {
        match self.context.config.classes[usize::from(framed.class.index())].overload {
            OverloadPolicy::Block { deadline } => Some(deadline),
            _ => None,
        }
    }

    /// Counts the loss of a rejected record and returns its error.
    #[cold]
    fn reject(&self, framed: &FrameInput<'_>, failure: AppendFailure) -> AppendError {
        let cause = match failure {
            AppendFailure::Closed => return AppendError::Closed,
            AppendFailure::Full => LossCause::Newest,
            AppendFailure::Sampled => LossCause::Sampled,
        };
        self.record_loss(framed, cause);
        AppendError::Dropped
    }

    fn record_loss(&self, framed: &FrameInput<'_>, cause: LossCause) {
        self.stripe.record_loss(&Gap::new(framed.class, cause, framed.payload.len(), framed.time));
    }
}

#[cold]
fn unknown_class(class: Class, classes: usize) -> AppendError {
    AppendError::UnknownClass { index: class.index(), classes }
}

/// The future of [`Producer::append`].
#[must_use = "a record is appended only when the future is awaited"]
pub struct AppendFuture<'a> {
    producer: &'a Producer,
    record: ProducerRecord<'a>,
    blocking: BlockingMode,
    framed: Option<(FrameInput<'a>, Ack)>,
    ticket: Option<QueueTicket>,
    deadline: Option<Instant>,
}

impl fmt::Debug for AppendFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AppendFuture").field("queued", &self.ticket.is_some()).finish_non_exhaustive()
    }
}

impl<'a> AppendFuture<'a> {
    fn new(producer: &'a Producer, record: ProducerRecord<'a>, blocking: BlockingMode) -> Self {
        Self { producer, record, blocking, framed: None, ticket: None, deadline: None }
    }

    /// Continues after the first attempt failed.
    #[cold]
    fn retry_append(
        &mut self,
        framed: FrameInput<'a>,
        ack: Ack,
        failure: AppendFailure,
        cx: &Context<'_>,
    ) -> Poll<Result<RecordId, AppendError>> {
        self.framed = Some((framed, ack));
        let rejected = match failure {
            AppendFailure::Full => self.on_full(&framed, cx),
            failure => Some(self.producer.reject(&framed, failure)),
        };
        match rejected {
            Some(rejected) => Poll::Ready(Err(rejected)),
            None => self.poll_queued(cx),
        }
    }

    /// Polls the queue and appends once room is granted.
    fn poll_queued(&mut self, cx: &Context<'_>) -> Poll<Result<RecordId, AppendError>> {
        let (framed, ack) = self.framed.expect("the first attempt framed the record");
        loop {
            let status = self.ticket.map(|ticket| self.producer.context.budget.status(ticket, cx.waker()));
            match status {
                Some(WaitStatus::Waiting) => return Poll::Pending,
                Some(WaitStatus::Expired) => {
                    self.leave_queue();
                    self.producer.record_loss(&framed, LossCause::TimedOut);
                    return Poll::Ready(Err(AppendError::TimedOut));
                }
                Some(WaitStatus::Granted) | None => {}
            }
            let rejected = match self.attempt(&framed, ack) {
                Ok(seq) => return Poll::Ready(Ok(self.producer.record_id(seq, &framed, ack))),
                Err(AppendFailure::Full) => self.on_full(&framed, cx),
                Err(failure) => Some(self.producer.reject(&framed, failure)),
            };
            if let Some(rejected) = rejected {
                return Poll::Ready(Err(rejected));
            }
        }
    }

    /// Appends with the granted room.
    fn attempt(&mut self, framed: &FrameInput<'a>, ack: Ack) -> Result<u64, AppendFailure> {
        let Some(ticket) = self.ticket.take() else { return self.producer.try_append(framed, ack, self.blocking) };
        let budget = &self.producer.context.budget;
        let mut reservation = budget.leave(ticket);
        let result = self.producer.stripe.append(framed, ack, self.blocking, &mut reservation);
        budget.release_reservation(reservation);
        result
    }

    fn leave_queue(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let budget = &self.producer.context.budget;
            budget.release_reservation(budget.leave(ticket));
        }
    }

    /// Joins the queue. `Some`: the record is rejected.
    fn on_full(&mut self, framed: &FrameInput<'a>, cx: &Context<'_>) -> Option<AppendError> {
        let Some(blocking) = self.producer.deadline(framed) else {
            return Some(self.producer.reject(framed, AppendFailure::Full));
        };
        let context = &self.producer.context;
        let deadline = *self.deadline.get_or_insert_with(|| after(blocking));
        let (ticket, is_nearest) = context.budget.enqueue(framed.bytes(), cx.waker(), Some(deadline));
        self.ticket = Some(ticket);
        if self.producer.stripe.is_closed() {
            // Closing wakes the queue once; this waiter may have joined later.
            self.leave_queue();
            return Some(self.producer.reject(framed, AppendFailure::Closed));
        }
        if is_nearest {
            context.wake_timer();
        }
        if self.blocking == BlockingMode::MayBlock {
            // The writing producer may have left full chunks behind, and no other may come to write them.
            self.producer.stripe.request_ack(Ack::Accepted);
        }
        None
    }
}

impl Future for AppendFuture<'_> {
    type Output = Result<RecordId, AppendError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.framed.is_some() {
            return this.poll_queued(cx);
        }
        let (framed, ack) = match this.producer.frame(this.record) {
            Ok(framed) => framed,
            Err(rejected) => return Poll::Ready(Err(rejected)),
        };
        match this.producer.try_append(&framed, ack, this.blocking) {
            Ok(seq) => Poll::Ready(Ok(this.producer.record_id(seq, &framed, ack))),
            Err(failure) => this.retry_append(framed, ack, failure, cx),
        }
    }
}

impl Drop for AppendFuture<'_> {
    fn drop(&mut self) {
        self.leave_queue();
    }
}

/// The future of [`Producer::wait`] and [`Producer::wait_through`].
#[must_use = "futures do nothing unless awaited"]
pub struct AckFuture<'a> {
    stripe: &'a Stripe,
    seq: u64,
    ack: Ack,
    waiter_id: Option<AckWaiterId>,
    is_requested: bool,
    /// A newer record may have displaced this one.
    is_displaceable: bool,
    /// The result covers all records of the stripe up to this one.
    covers_earlier: bool,
}

impl<'a> AckFuture<'a> {
    pub(crate) fn new(stripe: &'a Stripe, seq: u64, ack: Ack) -> Self {
        Self { stripe, seq, ack, waiter_id: None, is_requested: false, is_displaceable: false, covers_earlier: false }
    }

    /// Waits without a request to the writer.
    pub(crate) fn passive(stripe: &'a Stripe, seq: u64, ack: Ack) -> Self {
        Self { is_requested: true, ..Self::new(stripe, seq, ack) }
    }
}

impl fmt::Debug for AckFuture<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AckFuture").field("seq", &self.seq).field("ack", &self.ack).finish_non_exhaustive()
    }
}

impl Future for AckFuture<'_> {
    type Output = Result<(), RecordLost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let polled = this.stripe.acks.poll(this.seq, this.ack, &mut this.waiter_id, cx);
        if polled.is_pending() && !this.is_requested {
            this.is_requested = true;
            this.stripe.request_ack(this.ack);
        }
        if this.is_displaceable
            && polled == Poll::Ready(Ok(()))
            && this.ack > Ack::Accepted
            && this.stripe.is_displaced(this.seq)
        {
            return Poll::Ready(Err(RecordLost));
        }
        if this.covers_earlier && polled == Poll::Ready(Ok(())) && this.stripe.acks.has_lost_through(this.seq, this.ack)
        {
            return Poll::Ready(Err(RecordLost));
        }
        polled
    }
}

impl Drop for AckFuture<'_> {
    fn drop(&mut self) {
        self.stripe.acks.unregister(self.waiter_id.take());
    }
}
