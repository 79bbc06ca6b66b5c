//! The driver of a shard: delivers messages to it, runs the executions that it dispatches, and sends reports.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Sleep;

use crate::backpressure::ReadyLimit;
use crate::clock::Clock;
use crate::completion::Completion;
use crate::dead_letter::{DeadLetter, DeadLetterQueue};
use crate::executor::{ContainPanics, HandlerCall, HandlerExecutor, RunningHandler};
use crate::failure::{FailureCause, RecordFailure};
use crate::interceptor::Interceptor;
use crate::limiter::{Limiter, Permits};
use crate::mailbox::ShardMailbox;
use crate::messages::{
    ExecutionId, HandlerOutcome, IntakeMessages, OutcomeMessage, RecordReport, ShardCommand, ShardMessages, ShardStatus,
};
use crate::metrics::MetricsStore;
use crate::monotonic_time::MonotonicTime;
use crate::panic;
use crate::policy::SubscriptionPolicy;
use crate::record::{Epoch, Lane, Record};
use crate::shard::{Dispatch, Shard};
use crate::span::AttemptSpan;
use crate::task_executor::AbortableTask;

/// The state that the components of a subscription share.
pub(crate) struct SubscriptionContext {
    pub(crate) policy: Arc<SubscriptionPolicy>,
    pub(crate) limiter: Limiter,
    /// The number of pool threads, if handlers block.
    pub(crate) threads: Option<usize>,
    pub(crate) ready_limit: ReadyLimit,
    pub(crate) shards: Vec<ShardMailbox<ShardMessages>>,
    pub(crate) intake: ShardMailbox<IntakeMessages>,
    pub(crate) metrics: Arc<MetricsStore>,
    pub(crate) clock: Clock,
    pub(crate) dead_letter_queue: Option<Arc<dyn DeadLetterQueue>>,
    pub(crate) interceptors: Vec<Arc<dyn Interceptor>>,
    /// The runtime on which the subscription was built.
    pub(crate) tokio: Handle,
    /// The runtimes of the shards, with [`own_threads`](crate::SubscriptionBuilder::own_threads).
    pub(crate) shard_runtimes: Vec<Handle>,
}

impl SubscriptionContext {
    /// The runtime of a shard and its handlers.
    pub(crate) fn runtime_of(&self, shard: usize) -> &Handle {
        self.shard_runtimes.get(shard).unwrap_or(&self.tokio)
    }

    /// Wakes a shard so that it acquires permits again.
    pub(crate) fn notify_shard(&self, shard: usize) {
        self.shards[shard].post(|messages| messages.has_permits = true);
    }
}

/// Executions started per turn, after which the task yields.
const TURN_STARTS: usize = 256;
/// Permits acquired per call.
const PERMITS_PER_REQUEST: usize = 64;
/// The longest time for which completions accumulate while the executor is saturated.
const COALESCE_MAX: Duration = Duration::from_millis(1);
/// Hot keys are published once per this many turns.
const HOT_KEY_TURNS: u32 = 64;

pub(crate) struct LaneWorker<C: HandlerExecutor> {
    number: usize,
    shard: Shard,
    executor: C,
    context: Arc<SubscriptionContext>,
    /// Running handlers and dead-letter deliveries, by slot.
    running: Vec<Option<InFlight<C::Running>>>,
    messages: ShardMessages,
    reports: Vec<RecordReport>,
    sleep: Pin<Box<Sleep>>,
    sleep_until: MonotonicTime,
    /// Completions accumulate until then, while the executor is saturated.
    coalesce_until: MonotonicTime,
    /// The status that the intake received last.
    last_status: ShardStatus,
    waits_for_permits: bool,
    is_over: bool,
    turns: u32,
}

enum InFlight<R> {
    Handler(R),
    DeadLetter(AbortableTask),
}

impl<R: RunningHandler> InFlight<R> {
    fn abort(&self) -> bool {
        match self {
            Self::Handler(handler) => handler.abort(),
            Self::DeadLetter(task) => task.abort(),
        }
    }

    fn cancel(&self) {
        match self {
            Self::Handler(handler) => handler.cancel(),
            Self::DeadLetter(task) => task.cancel(),
        }
    }
}

impl<C: HandlerExecutor> LaneWorker<C> {
    pub(crate) fn new(number: usize, executor: C, context: Arc<SubscriptionContext>) -> Self {
        let seed = fastrand::u64(..);
        let sleep = {
            // The timer belongs to the runtime on which it is created.
            let _inside = context.runtime_of(number).enter();
            Box::pin(tokio::time::sleep_until(context.clock.instant(MonotonicTime(u64::MAX))))
        };
        Self {
            number,
            shard: Shard::new(Arc::clone(&context.policy), seed),
            executor,
            context,
            running: Vec::new(),
            messages: ShardMessages::default(),
            reports: Vec::new(),
            sleep,
            sleep_until: MonotonicTime(u64::MAX),
            coalesce_until: MonotonicTime::default(),
            last_status: ShardStatus::default(),
            waits_for_permits: false,
            is_over: false,
            turns: 0,
        }
    }

    /// Runs until [`ShardCommand::Shutdown`].
    ///
    /// # Cancel safety
    /// Dropping the future aborts all running handlers.
    pub(crate) async fn run(mut self) {
        while !self.is_over {
            if self.shard.ready() == 0 || self.waits_for_permits {
                poll_fn(|cx| self.poll_wake(cx)).await;
            } else {
                tokio::task::yield_now().await;
            }
            self.turn();
        }
    }

    /// Ready on a message or a timer. While completions accumulate, messages do not wake it.
    fn poll_wake(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.executor.is_saturated(cx.waker()) && self.context.clock.now() < self.coalesce_until {
            self.arm_timer(Some(self.coalesce_until));
        } else if self.context.shards[self.number].poll_receive(cx, &mut self.messages).is_ready() {
            return Poll::Ready(());
        }
        if self.sleep_until < MonotonicTime(u64::MAX) && self.sleep.as_mut().poll(cx).is_ready() {
            self.sleep_until = MonotonicTime(u64::MAX);
            return Poll::Ready(());
        }
        Poll::Pending
    }

    fn turn(&mut self) {
        let mut starts = 0;
        loop {
            let now = self.context.clock.now();
            self.coalesce_until = now.after(COALESCE_MAX);
            self.read_messages(now);
            self.shard.fire_timers(now);
            self.end_overdue(now);
            starts += self.start_ready(now);
            let has_more = self.shard.ready() > 0 && !self.waits_for_permits;
            // Received messages must be processed before the next turn receives more.
            if starts >= TURN_STARTS || !(self.context.shards[self.number].try_receive(&mut self.messages) || has_more)
            {
                break;
            }
        }
        self.send_reports();
    }

    fn read_messages(&mut self, now: MonotonicTime) {
        let mut messages = std::mem::take(&mut self.messages);
        for arrival in messages.arrivals.drain(..).flatten() {
            self.shard.enqueue(arrival, now);
        }
        let mut ended = 0;
        for message in messages.outcomes.drain(..) {
            ended += usize::from(self.on_outcome(message, now));
        }
        self.release_permits(ended);
        for command in messages.commands.drain(..) {
            self.apply_command(command, now);
        }
        messages.has_permits = false;
        self.messages = messages;
    }

    /// Applies the outcome of an execution. `true` if the execution has ended.
    fn on_outcome(&mut self, message: OutcomeMessage, now: MonotonicTime) -> bool {
        let id = message.id;
        match &message.outcome {
            HandlerOutcome::KeyReleased => {}
            HandlerOutcome::Done => self.notify_interceptors(id, Ok(())),
            HandlerOutcome::Failed(failure) => {
                self.notify_interceptors(id, Err(failure));
                self.notify_refused_dead_letter(id, failure);
            }
        }
        let is_over = self.shard.apply_outcome(message, now);
        if is_over {
            self.running[id.slot as usize] = None;
        }
        is_over
    }

    /// Calls the interceptors after an attempt.
    fn notify_interceptors(&self, id: ExecutionId, result: Result<(), &RecordFailure>) {
        if self.context.interceptors.is_empty() {
            return;
        }
        let Some((record, is_overdue)) = self.shard.attempt_record(id) else { return };
        let overdue = (is_overdue && result.is_err()).then(|| self.shard.overdue_failure());
        let result = overdue.as_ref().map_or(result, Err);
        for interceptor in &self.context.interceptors {
            panic::contain(|| interceptor.after(record, result));
        }
    }

    fn notify_refused_dead_letter(&self, id: ExecutionId, failure: &RecordFailure) {
        let Some(record) = self.shard.dead_letter_record(id) else { return };
        for interceptor in &self.context.interceptors {
            panic::contain(|| interceptor.dead_letter_refused(record, failure));
        }
    }

    fn apply_command(&mut self, command: ShardCommand, now: MonotonicTime) {
        match command {
            ShardCommand::BeginDrain(lane, epoch) => self.shard.begin_drain(lane, epoch),
            ShardCommand::DropAfter(lane, epoch, last) => self.shard.drop_after(lane, epoch, last),
            ShardCommand::Abandon(lane, epoch) => self.abandon(lane, epoch),
            ShardCommand::Unpark(key) => self.shard.unpark(key.as_deref(), now),
            ShardCommand::Shutdown => self.is_over = true,
        }
    }

    fn abandon(&mut self, lane: Lane, epoch: Epoch) {
        let ids = self.shard.executions_of(lane, epoch);
        let failure = RecordFailure::of(FailureCause::Abandoned, "lane revoked");
        for id in &ids {
            let in_flight = self.running[id.slot as usize].take();
            in_flight.iter().for_each(InFlight::cancel);
            self.notify_interceptors(*id, Err(&failure));
            self.shard.abandon(*id);
        }
        self.release_permits(ids.len());
    }

    /// Aborts the execution. `true` if nothing of it runs any more.
    fn abort(&self, id: ExecutionId) -> bool {
        self.running[id.slot as usize].as_ref().is_none_or(InFlight::abort)
    }

    fn end_overdue(&mut self, now: MonotonicTime) {
        for id in self.shard.take_overdue(now) {
            if self.abort(id) {
                self.running[id.slot as usize] = None;
                self.notify_interceptors(id, Err(&self.shard.overdue_failure()));
                self.shard.expire(id, now);
                self.release_permits(1);
            } else {
                self.shard.mark_overdue(id);
            }
        }
    }

    /// Starts ready executions and arms the timer for the next ones.
    fn start_ready(&mut self, now: MonotonicTime) -> usize {
        let requested = self.shard.ready().min(PERMITS_PER_REQUEST);
        let permits =
            if requested > 0 { self.context.limiter.acquire(self.number, requested, now) } else { Permits::default() };
        if requested == 0 && self.waits_for_permits {
            self.context.limiter.cancel_wait(self.number, |shard| self.context.notify_shard(shard));
        }
        self.waits_for_permits = requested > 0 && permits.count == 0;
        let started = (0..permits.count).map_while(|_| self.start_one(now)).count();
        self.executor.flush();
        if started < permits.count {
            self.context.limiter.release_unused(permits.count - started, |shard| self.context.notify_shard(shard));
        }
        let retry_at = permits.retry_at.filter(|_| self.waits_for_permits);
        self.arm_timer(self.shard.due_at().into_iter().chain(retry_at).min());
        started
    }

    fn start_one(&mut self, now: MonotonicTime) -> Option<()> {
        let dispatch = self.shard.dispatch(now)?;
        let slot = dispatch.id.slot as usize;
        let in_flight = self.start_execution(dispatch);
        if self.running.len() <= slot {
            self.running.resize_with(slot + 1, || None);
        }
        self.running[slot] = in_flight;
        Some(())
    }

    fn start_execution(&mut self, dispatch: Dispatch) -> Option<InFlight<C::Running>> {
        let Dispatch { id, records, attempt, dead_letter } = dispatch;
        let completion = Completion::new(self.context.shards[self.number].clone(), id);
        let span = AttemptSpan::open(&self.context.policy.subscription, records.first(), attempt);
        if let Some(failure) = dead_letter {
            return self.send_to_dead_letter_queue(records.first().clone(), failure, attempt, completion, span);
        }
        for interceptor in &self.context.interceptors {
            panic::contain(|| interceptor.before(records.first(), attempt));
        }
        self.executor.run(HandlerCall { records, completion, attempt, span }).map(InFlight::Handler)
    }

    fn send_to_dead_letter_queue(
        &self,
        record: Record,
        failure: RecordFailure,
        attempts: u32,
        completion: Completion,
        span: AttemptSpan,
    ) -> Option<InFlight<C::Running>> {
        let subscription = Arc::clone(&self.context.policy.subscription);
        let dead_letter = DeadLetter { record, failure, attempts, subscription };
        // The builder guarantees a dead-letter queue. Without one, the dropped completion leaves the record open.
        let dead_letter_queue = self.context.dead_letter_queue.clone()?;
        let delivery = async move {
            match dead_letter_queue.send(dead_letter).await {
                Ok(()) => completion.finish(),
                Err(error) => completion.fail(RecordFailure::returned(error)),
            }
        };
        Some(InFlight::DeadLetter(AbortableTask(
            self.context.runtime_of(self.number).spawn(ContainPanics::new(delivery, span)).abort_handle(),
        )))
    }

    fn release_permits(&self, permits: usize) {
        if permits > 0 {
            self.context.limiter.release(permits, |shard| self.context.notify_shard(shard));
        }
    }

    /// Arms the timer, only ever for an earlier time: a timer that fires too early costs one turn.
    fn arm_timer(&mut self, due: Option<MonotonicTime>) {
        if let Some(due) = due.filter(|due| *due < self.sleep_until) {
            self.sleep.as_mut().reset(self.context.clock.instant(due));
            self.sleep_until = due;
        }
    }

    fn send_reports(&mut self) {
        self.shard.take_reports(&mut self.reports);
        let (failure_events, last_started) = (self.shard.take_failure_events(), self.shard.take_last_started());
        let status = self.shard.status();
        let needs_report = status.needs_report(&self.last_status, self.context.ready_limit.low_watermark());
        self.context.metrics.store_shard(self.number, self.shard.counters());
        self.turns = self.turns.wrapping_add(1);
        if self.turns % HOT_KEY_TURNS == 1 {
            let (keys, now) = (self.shard.hot_keys(), self.context.clock.now());
            self.context.metrics.store_hot_keys(self.number, keys, self.shard.arrived(), now);
        }
        if self.reports.is_empty() && failure_events.is_empty() && last_started.is_empty() && !needs_report {
            return;
        }
        self.last_status = status;
        let (number, reports) = (self.number, &mut self.reports);
        self.context.intake.post(|messages| {
            messages.reports.append(reports);
            messages.failure_events.extend(failure_events);
            messages.last_started.extend(last_started);
            messages.statuses.push((number, status));
        });
    }
}

/// Cancels running executions.
impl<C: HandlerExecutor> Drop for LaneWorker<C> {
    fn drop(&mut self) {
        self.running.iter().flatten().for_each(InFlight::cancel);
    }
}
