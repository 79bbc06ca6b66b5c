//! What each thread keeps of a balancer, so that a pick from any thread needs no handle.
//!
//! It is kept by the balancer, in a place for each thread, and ends with it. Places of threads that have ended are used
//! again: so a balancer keeps as many snapshots as threads that picked lived at the same time, and what an idle thread
//! keeps holds memory only: what an endpoint's value has open is closed by its owner, after the drain.

use std::cell::{Cell, RefCell, RefMut};
use std::ops::{Deref, DerefMut};

use thread_local::ThreadLocal;

use crate::balancer::Shared;
use crate::picker::Held;

pub(crate) type Places<T> = ThreadLocal<RefCell<Held<T>>>;

/// What a thread picks with.
pub(crate) enum Lent<'a, T> {
    Kept(RefMut<'a, Held<T>>),
    /// For one pick: inside of another one, or in the thread's last moments.
    New(Box<Held<T>>),
}

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

/// Up to date.
///
/// Lent, and not passed to a closure: a result that passes through closures is copied through memory, which costs more
/// than the pick.
#[inline]
pub(crate) fn held<'a, T: Send + Sync + 'static>(shared: &Shared<T>, places: &'a Places<T>) -> Lent<'a, T> {
    if LIFE.get() == Life::Running
        && let Some(place) = places.get()
        && let Ok(mut held) = place.try_borrow_mut()
    {
        held.follow(shared);
        return Lent::Kept(held);
    }
    begin(shared, places)
}

#[cold]
fn begin<'a, T: Send + Sync + 'static>(shared: &Shared<T>, places: &'a Places<T>) -> Lent<'a, T> {
    let new = || Held::new(shared, fastrand::u64(..));
    if LIFE.get() == Life::New && END.try_with(|_| ()).is_ok() {
        LIFE.set(Life::Running);
    }
    if LIFE.get() == Life::Running
        && let Ok(mut held) = places.get_or(|| RefCell::new(new())).try_borrow_mut()
    {
        held.follow(shared);
        return Lent::Kept(held);
    }
    Lent::New(Box::new(new()))
}

impl<T> Deref for Lent<'_, T> {
    type Target = Held<T>;

    #[inline]
    fn deref(&self) -> &Held<T> {
        match self {
            Self::Kept(held) => held,
            Self::New(held) => held,
        }
    }
}

impl<T> DerefMut for Lent<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Held<T> {
        match self {
            Self::Kept(held) => held,
            Self::New(held) => held,
        }
    }
}
