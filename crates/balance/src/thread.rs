//! What each thread keeps of a balancer, so that a pick from any thread needs no handle.
//!
//! It is kept by the balancer, in a place for each thread, and ends with it. Places of threads that have ended are used
//! again: so a balancer keeps as many snapshots as threads that picked lived at the same time, and what an idle thread
//! keeps holds memory only: what an endpoint's value has open is closed by its owner, after the drain.

use std::cell::{Cell, RefCell, RefMut};

use thread_local::ThreadLocal;

use crate::balancer::Shared;
use crate::picker::Held;
use crate::sync::Apart;

/// Each on lines of its own: every pick writes to the place of its thread.
pub(crate) type Places<T> = ThreadLocal<Apart<RefCell<Held<T>>>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    New,
    Running,
    /// Destructors of what is local to the thread run, and places are found no more.
    Ending,
}

struct End;

thread_local! {
    static LIFE: Cell<Life> = const { Cell::new(Life::New) };
    static END: End = {
        // What finds the places of this thread is made first, so that it ends last.
        ThreadLocal::new().get_or(|| ());
        End
    };
}

impl Drop for End {
    fn drop(&mut self) {
        LIFE.set(Life::Ending);
    }
}

/// What this thread keeps, if it has picked before and is not picking now.
///
/// Lent, and not passed to a closure: a result that passes through closures is copied through memory, which costs more
/// than the pick.
#[inline]
pub(crate) fn held<T: Send + Sync + 'static>(places: &Places<T>) -> Option<RefMut<'_, Held<T>>> {
    // While destructors of the thread run this finds the place as long as it is the thread's, and then nothing.
    places.get()?.0.try_borrow_mut().ok()
}

/// The first pick of a thread, which makes its place; or one inside of another, or in the thread's last moments, for
/// which something is made for this once.
#[cold]
#[inline(never)]
pub(crate) fn begin<T: Send + Sync + 'static, R>(
    shared: &Shared<T>,
    places: &Places<T>,
    pick: impl FnOnce(&mut Held<T>) -> R,
) -> R {
    let new = || Held::new(shared, fastrand::u64(..));
    if LIFE.get() == Life::New && END.try_with(|_| ()).is_ok() {
        LIFE.set(Life::Running);
    }
    if LIFE.get() == Life::Running
        && let Ok(mut held) = places.get_or(|| Apart(RefCell::new(new()))).0.try_borrow_mut()
    {
        held.follow(shared);
        return pick(&mut held);
    }
    pick(&mut new())
}
