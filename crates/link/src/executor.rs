//! Tasks of one thread: those that were woken run in turn.
//!
//! A wake by a task of the same thread is a push to a list of that thread; one from elsewhere takes a lock, and rings the
//! alarm.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
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

/// Who is to run next, of those woken from elsewhere.
struct Woken {
    list: Mutex<Vec<u32>>,
    alarm: Arc<Alarm>,
}

/// Those woken on the thread of the executor that runs here.
struct Here {
    /// Whose they are; null when none runs.
    owner: Cell<*const Woken>,
    list: RefCell<Vec<u32>>,
}

thread_local! {
    static HERE: Here = const { Here { owner: Cell::new(std::ptr::null()), list: RefCell::new(Vec::new()) } };
}

impl Woken {
    /// Lists a task, if this is the thread that runs it.
    fn list_here(self: &Arc<Self>, handle: &Handle) -> bool {
        HERE.try_with(|here| {
            let is_here = here.owner.get() == Arc::as_ptr(self);
            // Another thread may do the same at this moment: then it is listed twice, and polled once in vain.
            if is_here && !handle.listed.load(Ordering::Relaxed) {
                handle.listed.store(true, Ordering::Relaxed);
                here.list.borrow_mut().push(handle.slot);
            }
            is_here
        })
        .unwrap_or(false)
    }

    fn list_from_elsewhere(&self, handle: &Handle) {
        if !handle.listed.swap(true, Ordering::AcqRel) {
            self.lock().push(handle.slot);
            self.alarm.wake_by_ref();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As long as it lives, wakes on this thread go to the list of the thread. The executor that ran here before goes on after
/// it.
pub(crate) struct Running {
    owner: *const Woken,
    list: Vec<u32>,
}

impl Drop for Running {
    fn drop(&mut self) {
        HERE.with(|here| {
            here.owner.set(self.owner);
            here.list.replace(std::mem::take(&mut self.list));
        });
    }
}

/// What wakers of a task share.
struct Handle {
    slot: u32,
    /// It stands in the list, or has ended.
    listed: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for Handle {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.woken.list_here(self) {
            self.woken.list_from_elsewhere(self);
        }
    }
}

impl Executor {
    /// Of the calling thread, whose waits `alarm` ends.
    pub(crate) fn new(alarm: Arc<Alarm>) -> Self {
        let woken = Arc::new(Woken { list: Mutex::default(), alarm });
        Self { tasks: RefCell::default(), woken, turn: RefCell::default() }
    }

    /// This thread runs its tasks now.
    pub(crate) fn run_here(&self) -> Running {
        HERE.with(|here| Running { owner: here.owner.replace(Arc::as_ptr(&self.woken)), list: here.list.take() })
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
        HERE.with(|here| std::mem::swap(&mut turn, &mut *here.list.borrow_mut()));
        // Who is listed while these run has rung the alarm, and is seen in the next tick.
        turn.append(&mut self.woken.lock());
        turn.drain(..).for_each(|slot| self.run(slot));
        self.turn.replace(turn);
        HERE.with(|here| !here.list.borrow().is_empty())
    }

    fn run(&self, slot: u32) {
        // It may have ended since it was woken, and another may have its place: that one is polled in vain.
        let Some(mut task) = self.tasks.borrow_mut().slots.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        // Who finds it listed before this has written what the task shall see.
        task.handle.listed.swap(false, Ordering::AcqRel);
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
            self.woken.lock().clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;

    fn executor() -> (Rc<Executor>, Running) {
        let executor = Rc::new(Executor::new(Alarm::new().expect("a descriptor")));
        let running = executor.run_here();
        (executor, running)
    }

    /// Counts its polls, and leaves its waker.
    fn counting(executor: &Executor) -> (Rc<Cell<u32>>, Rc<RefCell<Option<Waker>>>) {
        let (polls, waker) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(None)));
        let (count, left) = (Rc::clone(&polls), Rc::clone(&waker));
        executor.spawn(std::future::poll_fn(move |cx| {
            count.set(count.get() + 1);
            left.replace(Some(cx.waker().clone()));
            Poll::<()>::Pending
        }));
        (polls, waker)
    }

    #[test]
    fn a_task_runs_once_however_often_it_is_woken() {
        let (executor, _running) = executor();
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
        let (executor, _running) = executor();
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
    fn an_executor_within_another_keeps_its_tasks_apart() {
        let (outer, _running) = executor();
        let (outer_polls, outer_waker) = counting(&outer);
        outer.tick();
        let waker = outer_waker.take().expect("it was polled");
        waker.wake_by_ref();
        {
            let (inner, _running) = executor();
            let (polls, _waker) = counting(&inner);
            waker.wake_by_ref();
            inner.tick();
            assert_eq!((polls.get(), outer_polls.get()), (1, 1));
        }
        outer.tick();
        assert_eq!(outer_polls.get(), 2);
    }

    #[test]
    fn one_that_panics_ends_alone_and_its_place_is_free() {
        let (executor, _running) = executor();
        executor.spawn(async { panic!("on purpose") });
        let (polls, _waker) = counting(&executor);
        executor.tick();
        assert_eq!(polls.get(), 1);
        assert_eq!(executor.tasks.borrow().free, [0]);
    }

    #[test]
    fn one_that_has_ended_is_not_woken() {
        let (executor, _running) = executor();
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
                    let again = Self(Rc::clone(&self.0), Rc::clone(&self.1));
                    self.0.spawn(async move {
                        let _held = again;
                        std::future::pending::<()>().await;
                    });
                }
            }
        }
        let (executor, _running) = executor();
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
