//! A future that is polled only after it was woken.
//!
//! A task polls all of its futures whenever it is woken for one of them. The time limits and the displacement of a connection
//! are rarely ready, and each of their polls takes a lock and reads memory that nothing else of a request reads.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// Polls a future once, and then whenever its waker was called. The future is in a box, so that the memory of the task is what
/// each poll needs.
#[derive(Debug)]
pub(crate) struct OnWake<F> {
    future: Pin<Box<F>>,
    /// The waker of the task: a copy of the one in `flag`, which is compared without a lock.
    task: Option<Waker>,
    flag: Arc<WakeFlag>,
}

/// The waker of the future.
#[derive(Debug)]
struct WakeFlag {
    is_woken: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl WakeFlag {
    /// A holder cannot panic: the sections copy a waker.
    fn lock(&self) -> MutexGuard<'_, Option<Waker>> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Before the lock: a poll that has stored its waker by then is woken, and a later one sees the flag.
        self.is_woken.store(true, Ordering::Release);
        let task = self.lock().clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<F> OnWake<F> {
    pub(crate) fn new(future: F) -> Self {
        let flag = WakeFlag { is_woken: AtomicBool::new(true), task: Mutex::default() };
        Self { future: Box::pin(future), task: None, flag: Arc::new(flag) }
    }
}

impl<F: Future> Future for OnWake<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        let is_known = this.task.as_ref().is_some_and(|task| task.will_wake(cx.waker()));
        if !is_known {
            this.task = Some(cx.waker().clone());
            let before = std::mem::replace(&mut *this.flag.lock(), this.task.clone());
            drop(before);
        }
        // Most polls write nothing. The exchange orders this poll after what was done before the wake.
        if !this.flag.is_woken.load(Ordering::Acquire) || !this.flag.is_woken.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(&this.flag));
        this.future.as_mut().poll(&mut Context::from_waker(&waker))
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, sync::atomic::AtomicUsize};

    use super::*;

    /// Counts its wakes.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Task {
        fn wakes(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn future_is_polled_only_after_a_wake() {
        let polls = AtomicUsize::new(0);
        let inner = Mutex::new(None);
        let mut gate = OnWake::new(poll_fn(|cx| {
            *inner.lock().unwrap() = Some(cx.waker().clone());
            if polls.fetch_add(1, Ordering::SeqCst) == 0 { Poll::Pending } else { Poll::Ready(()) }
        }));
        let (one, other) = (Arc::new(Task::default()), Arc::new(Task::default()));
        let mut poll = |task: &Arc<Task>| {
            let waker = Waker::from(Arc::clone(task));
            Pin::new(&mut gate).poll(&mut Context::from_waker(&waker))
        };
        assert!((0..3).all(|_| poll(&one).is_pending()));
        // Moved to another task: the waker of the future is the flag, which wakes that task.
        assert!((0..3).all(|_| poll(&other).is_pending()));
        assert_eq!(polls.load(Ordering::SeqCst), 1);
        let waker = inner.lock().unwrap().take().expect("the future was polled");
        waker.wake_by_ref();
        assert_eq!((one.wakes(), other.wakes()), (0, 1));
        assert!(poll(&other).is_ready());
    }

    #[test]
    fn wake_during_a_poll_is_not_lost() {
        let mut polls = 0;
        let mut gate = OnWake::new(poll_fn(|cx| {
            polls += 1;
            if polls == 1 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Poll::Ready(())
        }));
        let task = Arc::new(Task::default());
        let waker = Waker::from(Arc::clone(&task));
        let mut cx = Context::from_waker(&waker);
        assert!(Pin::new(&mut gate).poll(&mut cx).is_pending());
        assert_eq!(task.wakes(), 1);
        assert!(Pin::new(&mut gate).poll(&mut cx).is_ready());
    }
}
