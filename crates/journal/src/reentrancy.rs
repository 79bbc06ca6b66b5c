//! A flag for threads inside the journal's own code, so that log events from there are not appended to the journal.

use std::cell::Cell;

thread_local! {
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `f` with the flag set.
pub(crate) fn enter<T>(f: impl FnOnce() -> T) -> T {
    struct Leave(bool);
    impl Drop for Leave {
        fn drop(&mut self) {
            ACTIVE.set(self.0);
        }
    }
    let _leave = Leave(ACTIVE.replace(true));
    f()
}

/// Whether the flag is set on this thread.
pub(crate) fn is_active() -> bool {
    ACTIVE.get()
}
