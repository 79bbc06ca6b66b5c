//! What threads share, under loom: the mailbox, the gate and the queue of the threads, compiled once more with loom's locks.
//!
//! Nothing else is shared: the ready list and the frontier have one owner each.

use std::future::poll_fn;
use std::task::{Context, Poll};

use loom::future::block_on;
use loom::thread;

use gate::Gate;
use mailbox::{Mail, Mailbox};
use queue::Queue;

use crate::moment::Moment;

mod sync {
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("no test panics while it holds a lock")
    }

    pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condvar.wait(guard).expect("no test panics while it holds a lock")
    }
}

#[path = "gate.rs"]
#[allow(clippy::duplicate_mod, reason = "once more, with loom's locks")]
#[expect(dead_code, reason = "what a test does not need")]
mod gate;

#[path = "mailbox.rs"]
#[allow(clippy::duplicate_mod, reason = "once more, with loom's locks")]
mod mailbox;

#[path = "crew/queue.rs"]
#[allow(clippy::duplicate_mod, reason = "once more, with loom's locks")]
mod queue;

#[derive(Default)]
struct Nudge(bool);

impl Mail for Nudge {
    fn is_empty(&self) -> bool {
        !self.0
    }
}

/// Three preemptions show what can go wrong here; without that bound a run takes many times as long.
fn bounded() -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder
}

#[test]
fn la_08_no_letter_and_no_wake_is_lost() {
    bounded().check(|| {
        let mailbox: Mailbox<Vec<u32>> = Mailbox::new();
        let senders = [0, 1].map(|letter| {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.post(|mail| mail.push(letter)))
        });
        let mut got = Vec::new();
        while got.len() < 2 {
            let mut mail = Vec::new();
            if !mailbox.take(&mut mail) {
                block_on(poll_fn(|cx: &mut Context<'_>| mailbox.poll_take(cx, &mut mail)));
            }
            got.extend(mail);
        }
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
        senders.into_iter().for_each(|sender| sender.join().expect("it does not panic"));
    });
}

/// A shard: waits for a permit, uses it, gives it back.
fn shard(number: usize, gate: &Gate, nudges: &[Mailbox<Nudge>; 2]) {
    let wake = |shard: usize| nudges[shard].post(|nudge: &mut Nudge| nudge.0 = true);
    block_on(poll_fn(|cx| {
        if gate.take(number, 1, Moment::default()).count == 1 {
            return Poll::Ready(());
        }
        // As a worker does: refused, it waits for a nudge and asks again.
        while nudges[number].poll_take(cx, &mut Nudge::default()).is_ready() {
            if gate.take(number, 1, Moment::default()).count == 1 {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }));
    gate.give(1, wake);
}

#[test]
fn la_08_a_shard_that_was_refused_a_permit_gets_one() {
    loom::model(|| {
        let shared = sync::Arc::new((Gate::new(1, None), [Mailbox::new(), Mailbox::new()]));
        let other = sync::Arc::clone(&shared);
        let thread = thread::spawn(move || shard(1, &other.0, &other.1));
        shard(0, &shared.0, &shared.1);
        thread.join().expect("it does not panic");
        assert_eq!(shared.0.used(), 0);
    });
}

/// Threads that take one job each, while shards append them in such parts.
fn jobs_are_taken<const PARTS: usize>(parts: [&'static [u32]; PARTS]) {
    bounded().check(move || {
        let queue = sync::Arc::new(Queue::new(0));
        let threads = [0, 1].map(|_| {
            let queue = sync::Arc::clone(&queue);
            thread::spawn(move || queue.next().expect("it is not closed"))
        });
        parts.iter().for_each(|part| queue.append(&mut part.to_vec()));
        let mut taken = threads.map(|thread| thread.join().expect("it does not panic"));
        taken.sort_unstable();
        assert_eq!(taken, [0, 1]);
    });
}

#[test]
fn la_08_every_job_finds_a_thread_though_threads_are_woken_one_after_the_other() {
    jobs_are_taken([&[0, 1]]);
    jobs_are_taken([&[0], &[1]]);
}

#[test]
fn la_08_a_shard_that_rests_is_woken_when_few_jobs_are_left() {
    bounded().check(|| {
        let queue = sync::Arc::new(Queue::new(0));
        queue.append(&mut vec![0, 1]);
        let threads = [0, 1].map(|_| {
            let queue = sync::Arc::clone(&queue);
            thread::spawn(move || queue.next().expect("it is not closed"))
        });
        block_on(poll_fn(|cx| if queue.has_enough(cx.waker()) { Poll::Pending } else { Poll::Ready(()) }));
        let taken: u32 = threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum();
        assert_eq!(taken, 1);
    });
}

#[test]
fn la_08_all_threads_hear_of_the_end_and_no_job_is_both_begun_and_returned() {
    bounded().check(|| {
        let queue = sync::Arc::new(Queue::new(0));
        let threads = [0, 1].map(|_| {
            let queue = sync::Arc::clone(&queue);
            thread::spawn(move || std::iter::from_fn(|| queue.next()).count())
        });
        queue.append(&mut vec![0, 1]);
        let unbegun = queue.close().len();
        let begun: usize = threads.into_iter().map(|thread| thread.join().expect("it does not panic")).sum();
        assert_eq!(begun + unbegun, 2);
    });
}
