//! Drives one shard: takes its mail, starts what may run, sends what became of it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Sleep;

use crate::clock::Clock;
use crate::completion::{Completion, Outcome, Ticket, Word};
use crate::crew::{Crew, Guarded, Running, Task, Work};
use crate::dead_letter::{DeadLetter, Letter};
use crate::failure::{Cause, Failure};
use crate::gate::{Gate, Grant};
use crate::intake::IntakeMail;
use crate::mailbox::Mailbox;
use crate::moment::Moment;
use crate::observe::{Board, Interceptor};
use crate::pace::Pace;
use crate::panic;
use crate::policy::Policy;
use crate::record::{Epoch, Lane, Record};
use crate::shard::{Order, Report, Shard, ShardMail, Standing, Start};
use crate::span::AttemptSpan;

/// What all workers of a subscription share.
pub(crate) struct Shared {
    pub(crate) policy: Arc<Policy>,
    pub(crate) gate: Gate,
    /// On which handlers run, if they block.
    pub(crate) threads: Option<usize>,
    pub(crate) pace: Pace,
    pub(crate) shards: Vec<Mailbox<ShardMail>>,
    pub(crate) intake: Mailbox<IntakeMail>,
    pub(crate) board: Arc<Board>,
    pub(crate) clock: Clock,
    pub(crate) dead_letter: Option<Arc<dyn DeadLetter>>,
    pub(crate) interceptors: Vec<Arc<dyn Interceptor>>,
    /// Of whoever built the subscription.
    pub(crate) tokio: Handle,
    /// Of the shards, if each has a thread of its own.
    pub(crate) homes: Vec<Handle>,
}

impl Shared {
    /// Where a shard and its handlers run.
    pub(crate) fn home(&self, shard: usize) -> &Handle {
        self.homes.get(shard).unwrap_or(&self.tokio)
    }

    /// Lets a shard look at the gate again.
    pub(crate) fn nudge(&self, shard: usize) {
        self.shards[shard].post(|mail| mail.is_nudged = true);
    }
}

/// Starts in one turn, after which others on the thread have theirs.
const TURN_STARTS: usize = 256;
/// Permits asked for at once.
const GRANT: usize = 64;
/// How long it rests at most while its crew has enough to do.
const REST: Duration = Duration::from_millis(1);
/// How often what it knows of hot keys is written down.
const HOT_TURNS: u32 = 64;

pub(crate) struct Worker<C: Crew> {
    number: usize,
    shard: Shard,
    crew: C,
    shared: Arc<Shared>,
    /// Handlers and dead-letters that run, by flight.
    running: Vec<Option<Aloft<C::Running>>>,
    mail: ShardMail,
    reports: Vec<Report>,
    sleep: Pin<Box<Sleep>>,
    sleeps_until: Moment,
    /// Before that it lets completions gather, if its crew has enough to do.
    rests_until: Moment,
    /// What the intake was told.
    told: Standing,
    waits_at_gate: bool,
    is_over: bool,
    turns: u32,
}

enum Aloft<R> {
    Handler(R),
    Burial(Task),
}

impl<R: Running> Aloft<R> {
    fn abort(&self) -> bool {
        match self {
            Self::Handler(handler) => handler.abort(),
            Self::Burial(task) => task.abort(),
        }
    }

    fn give_up(&self) {
        match self {
            Self::Handler(handler) => handler.give_up(),
            Self::Burial(task) => task.give_up(),
        }
    }
}

impl<C: Crew> Worker<C> {
    pub(crate) fn new(number: usize, crew: C, shared: Arc<Shared>) -> Self {
        let seed = fastrand::u64(..);
        let sleep = {
            // Its timer is that of the runtime on which it is made.
            let _inside = shared.home(number).enter();
            Box::pin(tokio::time::sleep_until(shared.clock.instant(Moment(u64::MAX))))
        };
        Self {
            number,
            shard: Shard::new(Arc::clone(&shared.policy), seed),
            crew,
            shared,
            running: Vec::new(),
            mail: ShardMail::default(),
            reports: Vec::new(),
            sleep,
            sleeps_until: Moment(u64::MAX),
            rests_until: Moment::default(),
            told: Standing::default(),
            waits_at_gate: false,
            is_over: false,
            turns: 0,
        }
    }

    /// Runs until it is told that the subscription is over.
    ///
    /// # Cancel safety
    /// Dropped, it aborts every handler that runs.
    pub(crate) async fn run(mut self) {
        while !self.is_over {
            if self.shard.ready() == 0 || self.waits_at_gate {
                poll_fn(|cx| self.poll_wake(cx)).await;
            } else {
                tokio::task::yield_now().await;
            }
            self.turn();
        }
    }

    /// Ready when there is mail, or something is due. While it may rest, mail does not wake it.
    fn poll_wake(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.crew.has_enough(cx.waker()) && self.shared.clock.now() < self.rests_until {
            self.arm(Some(self.rests_until));
        } else if self.shared.shards[self.number].poll_take(cx, &mut self.mail).is_ready() {
            return Poll::Ready(());
        }
        if self.sleeps_until < Moment(u64::MAX) && self.sleep.as_mut().poll(cx).is_ready() {
            self.sleeps_until = Moment(u64::MAX);
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn turn(&mut self) {
        let mut starts = 0;
        loop {
            let now = self.shared.clock.now();
            self.rests_until = now.after(REST);
            self.read_mail(now);
            self.shard.wake(now);
            self.end_overdue(now);
            starts += self.start_some(now);
            let has_more = self.shard.ready() > 0 && !self.waits_at_gate;
            // Mail that is taken is read: the next turn takes its own.
            if starts >= TURN_STARTS || !(self.shared.shards[self.number].take(&mut self.mail) || has_more) {
                break;
            }
        }
        self.send_reports();
    }

    fn read_mail(&mut self, now: Moment) {
        let mut mail = std::mem::take(&mut self.mail);
        for arrival in mail.arrivals.drain(..).flatten() {
            self.shard.arrive(arrival, now);
        }
        let mut ended = 0;
        for word in mail.words.drain(..) {
            ended += usize::from(self.hear(word, now));
        }
        self.give(ended);
        for order in mail.orders.drain(..) {
            self.obey(order, now);
        }
        mail.is_nudged = false;
        self.mail = mail;
    }

    /// Takes the word of a completion. `true` if its start is over.
    fn hear(&mut self, word: Word, now: Moment) -> bool {
        let ticket = word.ticket;
        match &word.outcome {
            Outcome::KeyReleased => {}
            Outcome::Done => self.tell_after(ticket, Ok(())),
            Outcome::Failed(failure) => self.tell_after(ticket, Err(failure)),
        }
        let is_over = self.shard.resolve(word, now);
        if is_over {
            self.running[ticket.flight as usize] = None;
        }
        is_over
    }

    /// An attempt is over.
    fn tell_after(&self, ticket: Ticket, result: Result<(), &Failure>) {
        if self.shared.interceptors.is_empty() {
            return;
        }
        let Some((record, is_overdue)) = self.shard.attempt(ticket) else { return };
        let overdue = (is_overdue && result.is_err()).then(|| self.shard.overdue_failure());
        let result = overdue.as_ref().map_or(result, Err);
        for interceptor in &self.shared.interceptors {
            panic::contain(|| interceptor.after(record, result));
        }
    }

    fn obey(&mut self, order: Order, now: Moment) {
        match order {
            Order::Leave(lane, epoch) => self.shard.leave(lane, epoch),
            Order::LeaveBehind(lane, epoch, last) => self.shard.leave_behind(lane, epoch, last),
            Order::Abandon(lane, epoch) => self.abandon(lane, epoch),
            Order::Unpark(key) => self.shard.unpark(key.as_deref(), now),
            Order::End => self.is_over = true,
        }
    }

    fn abandon(&mut self, lane: Lane, epoch: Epoch) {
        let tickets = self.shard.running_of(lane, epoch);
        let failure = Failure::of(Cause::Abandoned, "its lane was given back");
        for ticket in &tickets {
            let aloft = self.running[ticket.flight as usize].take();
            aloft.iter().for_each(Aloft::give_up);
            self.tell_after(*ticket, Err(&failure));
            self.shard.abandon(*ticket);
        }
        self.give(tickets.len());
    }

    /// `true` if nothing of it runs any more.
    fn abort(&self, ticket: Ticket) -> bool {
        self.running[ticket.flight as usize].as_ref().is_none_or(Aloft::abort)
    }

    fn end_overdue(&mut self, now: Moment) {
        for ticket in self.shard.overdue(now) {
            if self.abort(ticket) {
                self.running[ticket.flight as usize] = None;
                self.tell_after(ticket, Err(&self.shard.overdue_failure()));
                self.shard.expire(ticket, now);
                self.give(1);
            } else {
                self.shard.expect_end(ticket);
            }
        }
    }

    /// Starts what may start, and sees to being woken when more may.
    fn start_some(&mut self, now: Moment) -> usize {
        let want = self.shard.ready().min(GRANT);
        let grant = if want > 0 { self.shared.gate.take(self.number, want, now) } else { Grant::default() };
        if want == 0 && self.waits_at_gate {
            self.shared.gate.leave(self.number, |shard| self.shared.nudge(shard));
        }
        self.waits_at_gate = want > 0 && grant.count == 0;
        let started = (0..grant.count).map_while(|_| self.start_one(now)).count();
        self.crew.hand_over();
        if started < grant.count {
            self.shared.gate.give_unused(grant.count - started, |shard| self.shared.nudge(shard));
        }
        let again_at = grant.again_at.filter(|_| self.waits_at_gate);
        self.arm(self.shard.due_at().into_iter().chain(again_at).min());
        started
    }

    fn start_one(&mut self, now: Moment) -> Option<()> {
        let start = self.shard.start(now)?;
        let place = start.ticket.flight as usize;
        let aloft = self.launch(start);
        if self.running.len() <= place {
            self.running.resize_with(place + 1, || None);
        }
        self.running[place] = aloft;
        Some(())
    }

    fn launch(&mut self, start: Start) -> Option<Aloft<C::Running>> {
        let Start { ticket, records, attempt, bury } = start;
        let completion = Completion::new(self.shared.shards[self.number].clone(), ticket);
        let span = AttemptSpan::open(&self.shared.policy.subscription, records.first(), attempt);
        if let Some(failure) = bury {
            return self.bury(records.first().clone(), failure, attempt, completion, span);
        }
        for interceptor in &self.shared.interceptors {
            panic::contain(|| interceptor.before(records.first(), attempt));
        }
        self.crew.run(Work { records, completion, attempt, span }).map(Aloft::Handler)
    }

    fn bury(
        &self,
        record: Record,
        failure: Failure,
        attempts: u32,
        completion: Completion,
        span: AttemptSpan,
    ) -> Option<Aloft<C::Running>> {
        let subscription = Arc::clone(&self.shared.policy.subscription);
        let letter = Letter { record, failure, attempts, subscription };
        // Without a dead-letter the completion is dropped, which leaves the record open; the builder does not let it happen.
        let dead_letter = self.shared.dead_letter.clone()?;
        let burial = async move {
            match dead_letter.send(letter).await {
                Ok(()) => completion.finish(),
                Err(error) => completion.fail(Failure::new(error)),
            }
        };
        Some(Aloft::Burial(Task(self.shared.home(self.number).spawn(Guarded::new(burial, span)).abort_handle())))
    }

    fn give(&self, permits: usize) {
        if permits > 0 {
            self.shared.gate.give(permits, |shard| self.shared.nudge(shard));
        }
    }

    /// The timer may ring too early, which costs a turn, so it is only ever moved forward.
    fn arm(&mut self, due: Option<Moment>) {
        if let Some(due) = due.filter(|due| *due < self.sleeps_until) {
            self.sleep.as_mut().reset(self.shared.clock.instant(due));
            self.sleeps_until = due;
        }
    }

    fn send_reports(&mut self) {
        self.shard.take_reports(&mut self.reports);
        let (alarms, begun) = (self.shard.take_alarms(), self.shard.take_begun());
        let standing = self.shard.standing();
        let is_news = standing.is_news(&self.told, self.shared.pace.low());
        self.shared.board.write_shard(self.number, self.shard.tally());
        self.turns = self.turns.wrapping_add(1);
        if self.turns % HOT_TURNS == 1 {
            let (keys, now) = (self.shard.hot_keys(), self.shared.clock.now());
            self.shared.board.write_hot(self.number, keys, self.shard.arrived(), now);
        }
        if self.reports.is_empty() && alarms.is_empty() && begun.is_empty() && !is_news {
            return;
        }
        self.told = standing;
        let (number, reports) = (self.number, &mut self.reports);
        self.shared.intake.post(|mail| {
            mail.reports.append(reports);
            mail.alarms.extend(alarms);
            mail.begun.extend(begun);
            mail.standings.push((number, standing));
        });
    }
}

/// Nothing that was started outlives the subscription, unless it cannot be made to end.
impl<C: Crew> Drop for Worker<C> {
    fn drop(&mut self) {
        self.running.iter().flatten().for_each(Aloft::give_up);
    }
}
