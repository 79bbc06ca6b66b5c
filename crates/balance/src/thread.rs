//! What each thread keeps of each balancer, so that a pick from any thread needs no handle.
//!
//! A balancer has a small number, its seat, that is used again when it is gone: so a thread keeps as many snapshots as
//! balancers lived at the same time, however many came and went. A snapshot that an idle thread keeps holds memory
//! only: what an endpoint's value has open is closed by its owner, after the drain.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::balancer::Shared;
use crate::picker::Held;

thread_local! {
    static SEATS: RefCell<Vec<Option<Box<dyn Any>>>> = const { RefCell::new(Vec::new()) };
}

/// The seats that are free below the highest that was ever taken.
static FREE: Mutex<(usize, BTreeSet<usize>)> = Mutex::new((0, BTreeSet::new()));

/// The lowest free seat.
pub(crate) fn take_seat() -> usize {
    let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
    free.1.pop_first().unwrap_or_else(|| {
        free.0 += 1;
        free.0 - 1
    })
}

/// Gives a seat back, and clears what this thread keeps in it.
pub(crate) fn leave_seat(seat: usize) {
    // The thread may be ending: then it keeps nothing any more.
    let kept = SEATS.try_with(|seats| seats.borrow_mut().get_mut(seat)?.take());
    FREE.lock().unwrap_or_else(PoisonError::into_inner).1.insert(seat);
    // Its end may run the destructors of values, which may come here again.
    drop(kept);
}

/// Takes what this thread keeps of a balancer. To be [put back](put); a pick in between, and one in the destructors of
/// the thread's last moments, finds nothing and begins anew.
///
/// Taken, and not lent to a closure: a result that passes through closures is copied through memory, which costs more
/// than the pick.
#[inline]
pub(crate) fn take<T: Send + Sync + 'static>(shared: &Shared<T>) -> Box<Held<T>> {
    let kept = SEATS.try_with(|seats| seats.borrow_mut().get_mut(shared.seat)?.take());
    match kept.ok().flatten().map(<Box<dyn Any>>::downcast::<Held<T>>) {
        // No two snapshots have the same version: it tells that the seat is this balancer's, too.
        Some(Ok(held)) if held.version() == shared.published.version() => held,
        Some(Ok(held)) => follow(shared, held),
        _ => begin(shared),
    }
}

#[inline]
pub(crate) fn put<T: Send + Sync + 'static>(shared: &Shared<T>, held: Box<Held<T>>) {
    let held: Box<dyn Any> = held;
    let mut held = Some(held);
    let put = SEATS.try_with(|seats| match seats.borrow_mut().get_mut(shared.seat) {
        Some(seat) => std::mem::replace(seat, held.take()),
        None => None,
    });
    // A destructor of values may come here again, so nothing is dropped while the seats are borrowed.
    drop(put);
    if held.is_some() {
        make_room(shared.seat, held);
    }
}

/// Takes the current snapshot over, or begins anew if another balancer had the seat before.
#[cold]
fn follow<T: Send + Sync + 'static>(shared: &Shared<T>, mut held: Box<Held<T>>) -> Box<Held<T>> {
    if held.owner() != shared.name {
        return begin(shared);
    }
    held.follow(shared);
    held
}

#[cold]
fn begin<T: Send + Sync + 'static>(shared: &Shared<T>) -> Box<Held<T>> {
    Box::new(Held::new(shared, fastrand::u64(..)))
}

#[cold]
fn make_room(seat: usize, held: Option<Box<dyn Any>>) {
    // Fails in the thread's last moments only, and then nothing need be kept.
    let _ = SEATS.try_with(|seats| {
        let mut seats = seats.borrow_mut();
        let room = seats.len().max(seat + 1);
        seats.resize_with(room, || None);
        seats[seat] = held;
    });
}
