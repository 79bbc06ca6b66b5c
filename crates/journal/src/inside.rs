//! Whether this thread is in the journal's own code, so that what is logged there does not come back to it.

use std::cell::Cell;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` as a part of the journal.
pub(crate) fn enter<T>(f: impl FnOnce() -> T) -> T {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _leave = Leave(INSIDE.replace(true));
    f()
}

/// Whether this thread is.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}
