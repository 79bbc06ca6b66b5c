//! Applies outcomes: finished, failed, late, or overdue.

use std::cmp::Reverse;

use super::executions::{Execution, ExecutionKind, ExecutionPart};
use super::keys::KeyState;
use super::state::{Shard, TimerKind};
use crate::failure::{ExhaustedAction, FailureCause, OverdueAction, RecordFailure};
use crate::messages::{ExecutionId, FailureAction, HandlerOutcome, OutcomeMessage};
use crate::monotonic_time::MonotonicTime;
use crate::slab::NONE;

impl Shard {
    /// Applies the message of a completion. `true` if its execution has ended. A late message has no effect.
    pub(crate) fn apply_outcome(&mut self, message: OutcomeMessage, now: MonotonicTime) -> bool {
        let OutcomeMessage { id, outcome } = message;
        if self.executions.get_mut(id).is_none() {
            self.counters.late += u64::from(!matches!(outcome, HandlerOutcome::KeyReleased));
            return false;
        }
        match outcome {
            HandlerOutcome::KeyReleased => self.release_key(id),
            HandlerOutcome::Done => self.done(id, now),
            HandlerOutcome::Failed(failure) => self.failed(id, *failure, now),
        }
        self.executions.get_mut(id).is_none()
    }

    fn release_key(&mut self, id: ExecutionId) {
        let released = self.executions.get_mut(id).map(Execution::release_keys);
        for part in released.into_iter().flatten() {
            // While the key has nothing to run, no record holds its name.
            self.free_key(part.key, part.head);
        }
    }

    fn done(&mut self, id: ExecutionId, now: MonotonicTime) {
        let execution = self.executions.end(id);
        self.counters.run.record(now.since(execution.began));
        execution.parts().for_each(|part| self.free_key(part.key, part.head));
        let ended = self.remove_records(&execution, true);
        let counter = if execution.kind == ExecutionKind::DeadLetter {
            &mut self.counters.dead_lettered
        } else {
            &mut self.counters.done
        };
        *counter += ended;
    }

    /// Removes the records of an execution and returns their number.
    fn remove_records(&mut self, execution: &Execution, is_done: bool) -> u64 {
        let mut count = 0;
        for part in execution.parts() {
            let mut next = part.head;
            while next != NONE {
                if execution.kind == ExecutionKind::DeadLetter {
                    self.dead_letters.remove(&next);
                }
                let item = self.items.remove(next);
                self.report(&item, is_done);
                (next, count) = (item.next, count + 1);
            }
        }
        count
    }

    /// Unblocks the key after its running record.
    pub(super) fn free_key(&mut self, key: u32, head: u32) {
        if key != NONE {
            self.keep_idle_record(key, head);
            self.resume_key(key);
        }
    }

    fn failed(&mut self, id: ExecutionId, failure: RecordFailure, now: MonotonicTime) {
        let execution = self.executions.end(id);
        self.count_failure(&execution, &failure);
        if execution.is_draining {
            self.give_up(&execution);
        } else if execution.kind == ExecutionKind::DeadLetter {
            self.dead_letter_failed(&execution, &failure, now);
        } else {
            let failure = if execution.is_overdue { self.overdue_failure() } else { failure };
            self.retry(&execution, &failure, now);
        }
    }

    fn count_failure(&mut self, execution: &Execution, failure: &RecordFailure) {
        let counters = &mut self.counters;
        counters.failed += u64::from(execution.kind == ExecutionKind::Handler);
        counters.panicked += u64::from(failure.cause() == FailureCause::Panic);
        counters.dropped += u64::from(failure.cause() == FailureCause::Dropped && !execution.is_overdue);
    }

    pub(super) fn give_up(&mut self, execution: &Execution) {
        for part in execution.parts() {
            self.drop_followers(part.key, part.head);
            self.free_key(part.key, part.head);
        }
        self.remove_records(execution, false);
    }

    fn dead_letter_failed(&mut self, execution: &Execution, failure: &RecordFailure, now: MonotonicTime) {
        self.counters.dead_letter_failures += 1;
        let attempts = self.dead_letters.get_mut(&execution.first.head).map_or(1, |pending| {
            pending.attempts += 1;
            pending.attempts
        });
        let wait = failure.wait().unwrap_or_else(|| self.policy.retry.wait(attempts, self.random.f64()));
        let key = self.requeue(execution.first);
        if failure.is_permanent() {
            // The dead letter is sent again after `unpark`.
            self.failure_event(FailureAction::ParkDeadLetter, execution.first.head, failure.clone());
            return self.park(key);
        }
        self.failure_event(FailureAction::RetryDeadLetter, execution.first.head, failure.clone());
        self.wait_for_retry(key, now.after(wait));
    }

    /// Schedules another attempt, or applies the exhausted action. A batch that failed because of one of its records is split:
    /// its records run one by one. Any other batch is repeated as it is, or is exhausted as a whole.
    fn retry(&mut self, execution: &Execution, failure: &RecordFailure, now: MonotonicTime) {
        let item = &self.items[execution.first.head];
        let is_batch = item.next != NONE || !execution.others.is_empty();
        let is_split = is_batch && !failure.keeps_batch();
        let (attempts, age) = (u32::from(item.attempts), now.since(item.arrived.into()));
        let overdue_action = self.overdue_action(failure);
        let wait = failure.wait().unwrap_or_else(|| self.policy.retry.wait(attempts, self.random.f64()));
        let is_exhausted = failure.is_permanent() || self.policy.retry.is_exhausted(attempts, age.saturating_add(wait));
        let exhausted = overdue_action.or(is_exhausted.then_some(self.policy.exhausted)).filter(|_| !is_split);
        self.counters.retried += u64::from(exhausted.is_none());
        self.batches = self.batches.wrapping_add(1);
        for part in execution.parts() {
            let records = self.chain(part.head).len() as u32;
            let key = self.requeue(part);
            if let Some(exhausted) = exhausted {
                self.exhaust(key, records, failure.clone(), exhausted);
                continue;
            }
            if is_batch && !is_split {
                let key = self.keys.get(key);
                (key.retry_len, key.retry_batch) = (records, self.batches);
            }
            self.wait_for_retry(key, now.after(wait));
        }
    }

    /// The action that the deadline policy selects for an overdue record.
    fn overdue_action(&self, failure: &RecordFailure) -> Option<ExhaustedAction> {
        match self.policy.overdue {
            _ if failure.cause() != FailureCause::Overdue => None,
            OverdueAction::DeadLetter => Some(ExhaustedAction::DeadLetter),
            OverdueAction::HaltLane => Some(ExhaustedAction::HaltLane),
            OverdueAction::Retry | OverdueAction::Extend => None,
        }
    }

    /// Puts records of an execution back at the head of their key, or of a new anonymous key.
    fn requeue(&mut self, part: ExecutionPart) -> u32 {
        let chain = self.chain(part.head);
        let slot = if part.key == NONE { self.keys.insert_anonymous() } else { part.key };
        let key = self.keys.get(slot);
        key.running = NONE;
        key.len += chain.len() as u32;
        let behind = std::mem::replace(&mut key.head, part.head);
        let last = chain.last().copied().unwrap_or(part.head);
        if behind == NONE {
            key.tail = last;
        }
        self.items[last].next = behind;
        // A record that was in a failed batch joins no other one.
        for item in &chain[1..] {
            self.items[*item].attempts = self.items[part.head].attempts;
        }
        slot
    }

    pub(super) fn wait_for_retry(&mut self, key: u32, until: MonotonicTime) {
        self.keys.get(key).state = KeyState::Waiting;
        self.keys.add_timer(key);
        self.timers.push(Reverse((until, key, TimerKind::Retry)));
    }

    /// Executions past their deadline that need an action: the worker aborts a running handler and calls
    /// [`mark_overdue`](Self::mark_overdue), or [`expire`](Self::expire) if the handler has returned.
    pub(crate) fn take_overdue(&mut self, now: MonotonicTime) -> Vec<ExecutionId> {
        let mut ids = Vec::new();
        while let Some((id, from)) = self.executions.oldest()
            && from.after(self.policy.deadline) <= now
        {
            self.counters.overdue += 1;
            self.executions.extend(id, now);
            if self.policy.overdue != OverdueAction::Extend {
                ids.push(id);
            }
        }
        ids
    }

    /// The handler was aborted. When it ends, the execution fails as overdue.
    pub(crate) fn mark_overdue(&mut self, id: ExecutionId) {
        self.executions.get_mut(id).into_iter().for_each(|execution| execution.is_overdue = true);
    }

    /// The handler has returned and its completion is elsewhere: the execution fails now.
    pub(crate) fn expire(&mut self, id: ExecutionId, now: MonotonicTime) {
        if self.executions.get_mut(id).is_some() {
            let failure = self.overdue_failure();
            self.failed(id, failure, now);
        }
    }

    pub(crate) fn overdue_failure(&self) -> RecordFailure {
        RecordFailure::of(FailureCause::Overdue, format!("not finished within {:?}", self.policy.deadline))
    }
}
