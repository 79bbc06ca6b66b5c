//! Tasks of one thread; woken tasks run in turn.
//!
//! A wake by a task of the same thread is a push to a thread-local list. A wake from another thread takes a lock and
//! writes the eventfd.

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

use crate::eventfd::EventFdWaker;

/// The tasks of one thread.
pub(crate) struct Executor {
    tasks: RefCell<Tasks>,
    queue: Arc<SharedQueue>,
    /// The tasks of this tick: woken before it.
    batch: RefCell<Vec<u32>>,
}

#[derive(Default)]
struct Tasks {
    slots: Vec<Option<Task>>,
    free: Vec<u32>,
}

struct Task {
    future: Pin<Box<dyn ErasedFuture>>,
    state: Arc<TaskState>,
    /// A waker of `state`.
    waker: Waker,
}

/// A future whose output is discarded. As a trait object, without a wrapper that makes the future larger.
trait ErasedFuture {
    /// Ready when the future has completed.
    fn poll_erased(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()>;
}

impl<F: Future> ErasedFuture for F {
    fn poll_erased(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.poll(cx).map(drop)
    }
}

/// Tasks that other threads have woken.
struct SharedQueue {
    list: Mutex<Vec<u32>>,
    eventfd: Arc<EventFdWaker>,
}

/// Tasks that were woken on the thread of their executor.
struct LocalQueue {
    /// The executor that runs on this thread; null when none does.
    owner: Cell<*const SharedQueue>,
    list: RefCell<Vec<u32>>,
}

thread_local! {
    static LOCAL: LocalQueue = const { LocalQueue { owner: Cell::new(std::ptr::null()), list: RefCell::new(Vec::new()) } };
}

impl SharedQueue {
    /// Queues a task if this thread runs its executor.
    fn push_local(self: &Arc<Self>, state: &TaskState) -> bool {
        LOCAL
            .try_with(|local| {
                let is_local = local.owner.get() == Arc::as_ptr(self);
                // Another thread may queue the task at the same moment. The task is then queued twice, and one poll is
                // spurious.
                if is_local && !state.is_queued.load(Ordering::Relaxed) {
                    state.is_queued.store(true, Ordering::Relaxed);
                    local.list.borrow_mut().push(state.slot);
                }
                is_local
            })
            .unwrap_or(false)
    }

    fn push_shared(&self, state: &TaskState) {
        if !state.is_queued.swap(true, Ordering::AcqRel) {
            self.lock().push(state.slot);
            self.eventfd.wake_by_ref();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends wakes on this thread to its local queue while it lives. On drop, the executor that ran on this thread before
/// continues.
pub(crate) struct EnterGuard {
    owner: *const SharedQueue,
    list: Vec<u32>,
}

impl Drop for EnterGuard {
    fn drop(&mut self) {
        LOCAL.with(|local| {
            local.owner.set(self.owner);
            local.list.replace(std::mem::take(&mut self.list));
        });
    }
}

/// State that the wakers of a task share.
struct TaskState {
    slot: u32,
    /// Whether the task is queued, or has completed.
    is_queued: AtomicBool,
    queue: Arc<SharedQueue>,
}

impl Wake for TaskState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queue.push_local(self) {
            self.queue.push_shared(self);
        }
    }
}

impl Executor {
    /// Creates the executor of the calling thread, whose waits `eventfd` ends.
    pub(crate) fn new(eventfd: Arc<EventFdWaker>) -> Self {
        let queue = Arc::new(SharedQueue { list: Mutex::default(), eventfd });
        Self { tasks: RefCell::default(), queue, batch: RefCell::default() }
    }

    /// Makes the calling thread run the tasks.
    pub(crate) fn enter(&self) -> EnterGuard {
        LOCAL.with(|local| EnterGuard { owner: local.owner.replace(Arc::as_ptr(&self.queue)), list: local.list.take() })
    }

    /// Adds a task. Its first poll is in the next tick.
    pub(crate) fn spawn(&self, future: impl Future + 'static) {
        let mut tasks = self.tasks.borrow_mut();
        let slot = tasks.free.pop().unwrap_or_else(|| {
            tasks.slots.push(None);
            u32::try_from(tasks.slots.len() - 1).expect("fewer than 4 billion tasks")
        });
        let state = Arc::new(TaskState { slot, is_queued: AtomicBool::new(false), queue: Arc::clone(&self.queue) });
        let waker = Waker::from(Arc::clone(&state));
        waker.wake_by_ref();
        tasks.slots[slot as usize] = Some(Task { future: Box::pin(future), state, waker });
    }

    /// Polls each woken task once. Returns true if tasks have been woken since.
    pub(crate) fn tick(&self) -> bool {
        let mut batch = self.batch.take();
        LOCAL.with(|local| std::mem::swap(&mut batch, &mut *local.list.borrow_mut()));
        // A task that another thread wakes during this tick has written the eventfd, and runs in the next tick.
        batch.append(&mut self.queue.lock());
        batch.drain(..).for_each(|slot| self.run(slot));
        self.batch.replace(batch);
        LOCAL.with(|local| !local.list.borrow().is_empty())
    }

    fn run(&self, slot: u32) {
        // The task may have completed since the wake, and its slot may have a new task: that poll is spurious.
        let Some(mut task) = self.tasks.borrow_mut().slots.get_mut(slot as usize).and_then(Option::take) else {
            return;
        };
        // Synchronises with wakers that found the task queued: their writes are visible to this poll.
        task.state.is_queued.swap(false, Ordering::AcqRel);
        let mut cx = Context::from_waker(&task.waker);
        // A panic ends its task only.
        let polled = catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll_erased(&mut cx)));
        if matches!(polled, Ok(Poll::Pending)) {
            self.tasks.borrow_mut().slots[slot as usize] = Some(task);
            return;
        }
        // Later wakes have no effect.
        task.state.is_queued.store(true, Ordering::Release);
        // Drops the task before its slot is free, because the drop may spawn.
        let _ = catch_unwind(AssertUnwindSafe(move || drop(task)));
        self.tasks.borrow_mut().free.push(slot);
    }

    /// Drops all tasks, including those that the drops spawn.
    pub(crate) fn clear(&self) {
        loop {
            let slots = std::mem::take(&mut *self.tasks.borrow_mut()).slots;
            if slots.is_empty() {
                return;
            }
            for task in slots.into_iter().flatten() {
                task.state.is_queued.store(true, Ordering::Release);
                let _ = catch_unwind(AssertUnwindSafe(move || drop(task)));
            }
            self.queue.lock().clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;

    fn executor() -> (Rc<Executor>, EnterGuard) {
        let executor = Rc::new(Executor::new(EventFdWaker::new().expect("a descriptor")));
        let running = executor.enter();
        (executor, running)
    }

    /// A task that counts its polls and stores its waker.
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
    fn repeated_wakes_cause_one_poll() {
        let (executor, _running) = executor();
        let (polls, waker) = counting(&executor);
        assert!(!executor.tick());
        let waker = waker.take().expect("a polled task");
        (0..3).for_each(|_| waker.wake_by_ref());
        assert!(!executor.tick());
        assert!(!executor.tick());
        assert_eq!(polls.get(), 2);
    }

    #[test]
    fn wake_from_another_thread_writes_the_eventfd() {
        let (executor, _running) = executor();
        let (polls, waker) = counting(&executor);
        executor.tick();
        let waker = waker.take().expect("a polled task");
        let eventfd = Arc::clone(&executor.queue.eventfd);
        assert!(!eventfd.begin_wait());
        std::thread::spawn(move || waker.wake()).join().expect("the waking thread");
        assert!(eventfd.begin_wait());
        executor.tick();
        assert_eq!(polls.get(), 2);
    }

    #[test]
    fn nested_executors_keep_tasks_separate() {
        let (outer, _running) = executor();
        let (outer_polls, outer_waker) = counting(&outer);
        outer.tick();
        let waker = outer_waker.take().expect("a polled task");
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
    fn panic_ends_its_task_and_frees_the_slot() {
        let (executor, _running) = executor();
        executor.spawn(async { panic!("on purpose") });
        let (polls, _waker) = counting(&executor);
        executor.tick();
        assert_eq!(polls.get(), 1);
        assert_eq!(executor.tasks.borrow().free, [0]);
    }

    #[test]
    fn completed_task_is_not_polled_again() {
        let (executor, _running) = executor();
        let waker = Rc::new(RefCell::new(None));
        let left = Rc::clone(&waker);
        executor.spawn(std::future::poll_fn(move |cx| {
            left.replace(Some(cx.waker().clone()));
            Poll::Ready(())
        }));
        executor.tick();
        waker.take().expect("a polled task").wake();
        assert!(!executor.tick());
    }

    #[test]
    fn tasks_spawned_by_a_drop_are_dropped() {
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
