//! Loom models of the state shared between threads: mailbox, limiter and job queue, compiled a second time with loom's
//! locks.
//!
//! No other state is shared: each ready list and each frontier has one owner.

use std::future::poll_fn;
use std::task::{Context, Poll};

use loom::future::block_on;
use loom::thread;

use job_queue::JobQueue;
use limiter::Limiter;
use mailbox::{MailboxContents, ShardMailbox};

use crate::monotonic_time::MonotonicTime;

mod sync {
    pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("tests do not panic while they hold a lock")
    }

    pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        condvar.wait(guard).expect("tests do not panic while they hold a lock")
    }
}

#[path = "limiter.rs"]
#[allow(clippy::duplicate_mod, reason = "compiled again with loom's locks")]
#[expect(dead_code, reason = "not all functions are modelled")]
mod limiter;

#[path = "mailbox.rs"]
#[allow(clippy::duplicate_mod, reason = "compiled again with loom's locks")]
mod mailbox;

#[path = "job_queue.rs"]
#[allow(clippy::duplicate_mod, reason = "compiled again with loom's locks")]
mod job_queue;

#[derive(Default)]
struct Notification(bool);

impl MailboxContents for Notification {
    fn is_empty(&self) -> bool {
        !self.0
    }
}

/// Three preemptions reach every known race; without the bound a run takes many times as long.
fn bounded() -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder
}

/// LA-08: no message and no wake is lost.
#[test]
fn no_message_and_no_wake_is_lost() {
    bounded().check(|| {
        let mailbox: ShardMailbox<Vec<u32>> = ShardMailbox::new();
        let senders = [0, 1].map(|message| {
            let mailbox = mailbox.clone();
            thread::spawn(move || mailbox.post(|mail| mail.push(message)))
        });
        let mut got = Vec::new();
        while got.len() < 2 {
            let mut mail = Vec::new();
            if !mailbox.try_receive(&mut mail) {
                block_on(poll_fn(|cx: &mut Context<'_>| mailbox.poll_receive(cx, &mut mail)));
            }
            got.extend(mail);
        }
        got.sort_unstable();
        assert_eq!(got, [0, 1]);
        senders.into_iter().for_each(|sender| sender.join().expect("thread panicked"));
    });
}

/// A shard: waits for a permit, uses it, releases it.
fn shard(number: usize, limiter: &Limiter, notifications: &[ShardMailbox<Notification>; 2]) {
    let wake = |shard: usize| notifications[shard].post(|notification: &mut Notification| notification.0 = true);
    block_on(poll_fn(|cx| {
        if limiter.acquire(number, 1, MonotonicTime::default()).count == 1 {
            return Poll::Ready(());
        }
        // Like a worker: a refused shard waits for a notification and acquires again.
        while notifications[number].poll_receive(cx, &mut Notification::default()).is_ready() {
            if limiter.acquire(number, 1, MonotonicTime::default()).count == 1 {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }));
    limiter.release(1, wake);
}

/// LA-08: refused shard eventually gets a permit.
#[test]
fn refused_shard_eventually_gets_a_permit() {
    loom::model(|| {
        let shared = sync::Arc::new((Limiter::new(1, None), [ShardMailbox::new(), ShardMailbox::new()]));
        let other = sync::Arc::clone(&shared);
        let thread = thread::spawn(move || shard(1, &other.0, &other.1));
        shard(0, &shared.0, &shared.1);
        thread.join().expect("thread panicked");
        assert_eq!(shared.0.in_use(), 0);
    });
}

/// Two threads take one job each, while the jobs are appended in the given parts.
fn jobs_are_taken<const PARTS: usize>(parts: [&'static [u32]; PARTS]) {
    bounded().check(move || {
        let queue = sync::Arc::new(JobQueue::new(0));
        let threads = [0, 1].map(|_| {
            let queue = sync::Arc::clone(&queue);
            thread::spawn(move || queue.next().expect("queue is open"))
        });
        parts.iter().for_each(|part| queue.append(&mut part.to_vec()));
        let mut taken = threads.map(|thread| thread.join().expect("thread panicked"));
        taken.sort_unstable();
        assert_eq!(taken, [0, 1]);
    });
}

/// LA-08: every job finds a thread.
#[test]
fn every_job_finds_a_thread() {
    jobs_are_taken([&[0, 1]]);
    jobs_are_taken([&[0], &[1]]);
}

/// LA-08: saturated shard is woken when few jobs are left.
#[test]
fn saturated_shard_is_woken_when_few_jobs_are_left() {
    bounded().check(|| {
        let queue = sync::Arc::new(JobQueue::new(0));
        queue.append(&mut vec![0, 1]);
        let threads = [0, 1].map(|_| {
            let queue = sync::Arc::clone(&queue);
            thread::spawn(move || queue.next().expect("queue is open"))
        });
        block_on(poll_fn(|cx| if queue.is_saturated(cx.waker()) { Poll::Pending } else { Poll::Ready(()) }));
        let taken: u32 = threads.into_iter().map(|thread| thread.join().expect("thread panicked")).sum();
        assert_eq!(taken, 1);
    });
}

/// LA-08: close ends threads and returns unstarted jobs.
#[test]
fn close_ends_threads_and_returns_unstarted_jobs() {
    bounded().check(|| {
        let queue = sync::Arc::new(JobQueue::new(0));
        let threads = [0, 1].map(|_| {
            let queue = sync::Arc::clone(&queue);
            thread::spawn(move || std::iter::from_fn(|| queue.next()).count())
        });
        queue.append(&mut vec![0, 1]);
        let unbegun = queue.close().len();
        let begun: usize = threads.into_iter().map(|thread| thread.join().expect("thread panicked")).sum();
        assert_eq!(begun + unbegun, 2);
    });
}
