//! The allocator of the binary: mimalloc, which is fast for small, short-lived objects such as one per I/O operation.
//!
//! mimalloc 3 keeps freed pages for a second before it returns them to the system, version 2 for 10 ms. A stream of 200,000
//! changes per second frees tens of MB in a second: a transaction of a million rows peaked at 71 to 78 MiB, and at 48 to 52
//! with the delay of version 2, which [`return_memory_soon`] sets.
//!
//! # Example
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: tidegate_allocator::MiMalloc = tidegate_allocator::MiMalloc;
//!
//! tidegate_allocator::return_memory_soon();
//! ```

use std::ffi::{c_int, c_long};

use libmimalloc_sys::mi_option_set;
pub use mimalloc::MiMalloc;

/// `mi_option_purge_delay` of `mimalloc.h`: milliseconds between the release of a page and its return to the system.
const PURGE_DELAY: c_int = 15;
const PURGE_DELAY_MS: c_long = 10;
/// Sets the same option from outside, and wins.
const PURGE_DELAY_VARIABLE: &str = "MIMALLOC_PURGE_DELAY";

/// Returns freed memory to the system after 10 ms. The variable `MIMALLOC_PURGE_DELAY` of the environment overrides it.
pub fn return_memory_soon() {
    if std::env::var_os(PURGE_DELAY_VARIABLE).is_none() {
        set_option(PURGE_DELAY, PURGE_DELAY_MS);
    }
}

#[expect(unsafe_code, reason = "the option has no safe wrapper")]
fn set_option(option: c_int, value: c_long) {
    // SAFETY: the function stores a number in a static array, at an index that it checks.
    unsafe { mi_option_set(option, value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(unsafe_code, reason = "the option has no safe wrapper")]
    fn option(option: c_int) -> c_long {
        // SAFETY: the function reads a number of a static array, at an index that it checks.
        unsafe { libmimalloc_sys::mi_option_get(option) }
    }

    /// The number of the option is that of the linked version: its default is known.
    #[test]
    fn freed_memory_is_returned_sooner_than_by_default() {
        let delay = option(PURGE_DELAY);
        assert_eq!(delay, 1_000, "the default of mimalloc 3");
        return_memory_soon();
        assert_eq!(option(PURGE_DELAY), PURGE_DELAY_MS);
    }
}
