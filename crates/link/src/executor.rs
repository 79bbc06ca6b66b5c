//! Tasks of one thread: those that were woken run in turn.
//!
//! A wake from the own thread is a push to a list that nobody contends for; one from elsewhere also rings the alarm.

use std::{
    cell::RefCell,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use crate::alarm::Alarm;

/// The tasks of one thread.
pub(crate) struct Executor {
    tasks: RefCell<Tasks>,
    woken: Arc<Woken>,
    /// Those at hand: what was woken before this tick.
    turn: RefCell<Vec<u32>>,
}

#[derive(Default)]
struct Tasks {
    slots: Vec<Option<Task>>,
    free: Vec<u32>,
}

struct Task {
    future: Pin<Box<dyn Job>>,
    handle: Arc<Handle>,
    /// Of that handle.
    waker: Waker,
}

/// A future whose outcome nobody asks for. As a trait, so that no wrapper makes the future larger.
trait Job {
    /// Ready when it has ended.
    fn go_on(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()>;
}

impl<F: Future> Job for F {
    fn go_on(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll(cx).map(drop)
    }
}

/// Who is to run next.
struct Woken {
    list: Mutex<Vec<u32>>,
    alarm: Arc<Alarm>,
    /// The thread that runs them.
    home: usize,
}

/// What wakers of a task share.
struct Handle {
    slot: u32,
    /// It stands in the list, or has ended.
    listed: AtomicBool,
    woken: Arc<Woken>,
}

/// Tells the calling thread from all others that live.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl Wake for Handle {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.listed.swap(true, Ordering::AcqRel) {
            return;
        }
        let woken = &self.woken;
        woken.list.lock().unwrap_or_else(PoisonError::into_inner).push(self.slot);
        if woken.home != this_thread() {
            woken.alarm.wake_by_ref();
        }
    }
}

impl Executor {
    /// Of the calling thread, whose waits `alarm` ends.
    pub(crate) fn new(alarm: Arc<Alarm>) -> Self {
        let woken = Arc::new(Woken { list: Mutex::default(), alarm, home: this_thread() });
        Self { tasks: RefCell::default(), woken, turn: RefCell::default() }
    }

    /// Adds a task, which runs for the first time in the next tick.
    pub(crate) fn spawn(&self, future: impl Future + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        let slot = tasks.free.pop().unwrap_or_else(|| {
            tasks.slots.push(None);
            u32::try_from(tasks.slots.len() - 1).expect("fewer than 4 billion tasks")
        });
        let handle = Arc::new(Handle { slot, listed: AtomicBool::new(false), woken: Arc::clone(&self.woken) });
        let waker = Waker::from(Arc::clone(&handle));
        waker.wake_by_ref();
        tasks.slots[slot as usize] = Some(Task { future: Box::pin(future), handle, waker });
    }

    /// Runs each task that was woken, once. True if some have been woken since.
    pub(crate) fn tick(&self) -> bool {
        let mut turn = self.turn.take();
        std::mem::swap(&mut turn, &mut *self.woken.list.lock().unwrap_or_else(PoisonError::into_inner));
        turn.drain(..).for_each(|slot| self.run(slot));
        self.turn.replace(turn);
        !self.woken.list.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn run(&self, slot: u32) {
        // It may have ended since it was woken, and another may have its place: that one is polled in vain.
        let Some(mut task) = self.tasks.borrow_mut().slots.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        task.handle.listed.store(false, Ordering::Release);
        let mut cx = Context::from_waker(&task.waker);
        // A task that panics ends alone.
        let polled = catch_unwind(AssertUnwindSafe(|| task.future.as_mut().go_on(&mut cx)));
        if matches!(polled, Ok(Poll::Pending)) {
            self.tasks.borrow_mut().slots[slot as usize] = Some(task);
            return;
        }
        // Nobody wakes it any more.
        task.handle.listed.store(true, Ordering::Release);
        // Dropped before its place is free, for what it drops may spawn.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(task)));
        self.tasks.borrow_mut().free.push(slot);
    }

    /// Drops all tasks, also those that are spawned meanwhile.
    pub(crate) fn clear(&self) {
        loop {
            let slots = std::mem::take(&mut *self.tasks.borrow_mut()).slots;
            if slots.is_empty() {
                return;
            }
            for task in slots.into_iter().flatten() {
                task.handle.listed.store(true, Ordering::Release);
                let _ = catch_unwind(AssertUnwindSafe(move || drop(task)));
            }
            self.woken.list.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;

    fn executor() -> Rc<Executor> {
        Rc::new(Executor::new(Alarm::new().expect("a descriptor")))
    }

    /// Counts its polls, and leaves its waker.
    fn counting(executor: &Executor) -> (Rc<Cell<u32>>, Rc<RefCell<Option<Waker>>>) {
        let (polls, waker) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(None)));
        let (count, left) = (Rc::clone(&polls), Rc::clone(&waker));
        executor.spawn(std::future::poll_fn(move |cx| {
            count.set(count.get() + 1);
            left.replace(Some(cx.waker().clone()));
            Poll::Pending
        }));
        (polls, waker)
    }

    #[test]
    fn a_task_runs_once_however_often_it_is_woken() {
        let executor = executor();
        let (polls, waker) = counting(&executor);
        assert!(!executor.tick());
        let waker = waker.take().expect("it was polled");
        (0..3).for_each(|_| waker.wake_by_ref());
        assert!(!executor.tick());
        assert!(!executor.tick());
        assert_eq!(polls.get(), 2);
    }

    #[test]
    fn a_wake_from_another_thread_rings() {
        let executor = executor();
        let (polls, waker) = counting(&executor);
        executor.tick();
        let waker = waker.take().expect("it was polled");
        let alarm = Arc::clone(&executor.woken.alarm);
        assert!(!alarm.is_rung());
        std::thread::spawn(move || waker.wake()).join().expect("a thread that wakes");
        assert!(alarm.is_rung());
        executor.tick();
        assert_eq!(polls.get(), 2);
    }

    #[test]
    fn one_that_panics_ends_alone_and_its_place_is_free() {
        let executor = executor();
        executor.spawn(async { panic!("on purpose") });
        let (polls, _waker) = counting(&executor);
        executor.tick();
        assert_eq!(polls.get(), 1);
        assert_eq!(executor.tasks.borrow().free, [0]);
    }

    #[test]
    fn one_that_has_ended_is_not_woken() {
        let executor = executor();
        let waker = Rc::new(RefCell::new(None));
        let left = Rc::clone(&waker);
        executor.spawn(std::future::poll_fn(move |cx| {
            left.replace(Some(cx.waker().clone()));
            Poll::Ready(())
        }));
        executor.tick();
        waker.take().expect("it was polled").wake();
        assert!(!executor.tick());
    }

    #[test]
    fn what_a_dropped_task_spawns_is_dropped_too() {
        struct Spawns(Rc<Executor>, Rc<Cell<u32>>);
        impl Drop for Spawns {
            fn drop(&mut self) {
                self.1.set(self.1.get() + 1);
                if self.1.get() < 3 {
                    let again = Spawns(Rc::clone(&self.0), Rc::clone(&self.1));
                    self.0.spawn(async move {
                        let _held = again;
                        std::future::pending::<()>().await;
                    });
                }
            }
        }
        let executor = executor();
        let drops = Rc::new(Cell::new(0));
        let first = Spawns(Rc::clone(&executor), Rc::clone(&drops));
        executor.spawn(async move {
            let _held = first;
            std::future::pending::<()>().await;
        });
        executor.tick();
        executor.clear();
        assert_eq!(drops.get(), 3);
        assert!(executor.tasks.borrow().slots.is_empty());
    }
}
