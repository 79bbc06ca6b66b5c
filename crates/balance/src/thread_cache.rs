//! A copy of the snapshot for each thread that picks through a balancer.
//!
//! The balancer owns the copies, one per thread, and drops them with itself. A copy of a thread that has ended is used again
//! by another thread: the number of copies is the number of picking threads that were alive at the same time. An idle
//! thread's copy holds memory only; the owner of an endpoint closes its value after the drain.

use std::cell::{Cell, RefCell, RefMut};

use thread_local::ThreadLocal;

use crate::cached_snapshot::CachedSnapshot;
use crate::published::Published;
use crate::snapshot::Snapshot;
use crate::sync::CacheAligned;

/// Copies by thread, each on cache lines of its own: every pick writes to the copy of its thread.
pub(crate) type ThreadCaches<T> = ThreadLocal<CacheAligned<RefCell<CachedSnapshot<T>>>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum ThreadPhase {
    New,
    Running,
    /// Destructors of thread-locals run; the copy of the thread is no longer available.
    Ending,
}

struct EndOfThread;

thread_local! {
    static PHASE: Cell<ThreadPhase> = const { Cell::new(ThreadPhase::New) };
    static END: EndOfThread = {
        // Initialises the crate's own thread-local first, so that it is destroyed last.
        ThreadLocal::new().get_or(|| ());
        EndOfThread
    };
}

impl Drop for EndOfThread {
    fn drop(&mut self) {
        PHASE.set(ThreadPhase::Ending);
    }
}

/// The copy of this thread, if the thread has picked before and is not inside a pick.
///
/// Returned and not passed to a closure: a result that passes through closures is copied through memory, which costs more
/// than the pick.
#[inline]
pub(crate) fn of_this_thread<T: Send + Sync + 'static>(
    caches: &ThreadCaches<T>,
) -> Option<RefMut<'_, CachedSnapshot<T>>> {
    // While destructors of the thread run, `get` returns the copy as long as the thread owns it, and then `None`.
    caches.get()?.0.try_borrow_mut().ok()
}

/// The first pick of a thread, which creates its copy. A pick inside a pick, or during the end of the thread, uses a temporary
/// copy.
#[cold]
#[inline(never)]
pub(crate) fn create_or_temporary<T: Send + Sync + 'static, R>(
    published: &Published<Snapshot<T>>,
    caches: &ThreadCaches<T>,
    pick: impl FnOnce(&mut CachedSnapshot<T>) -> R,
) -> R {
    let new = || CachedSnapshot::new(published, fastrand::u64(..));
    if PHASE.get() == ThreadPhase::New && END.try_with(|_| ()).is_ok() {
        PHASE.set(ThreadPhase::Running);
    }
    if PHASE.get() == ThreadPhase::Running
        && let Ok(mut cached) = caches.get_or(|| CacheAligned(RefCell::new(new()))).0.try_borrow_mut()
    {
        cached.refresh(published);
        return pick(&mut cached);
    }
    pick(&mut new())
}
