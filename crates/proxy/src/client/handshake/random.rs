//! Random bytes for keys and nonces.

use std::{cell::RefCell, io};

/// What a thread asks the system for at once: sixty-four keys of protocol 3.0.
const AT_ONCE: usize = 256;

/// Fresh random bytes of the system.
///
/// # Errors
/// If the system has none.
pub(in crate::client) fn random<const N: usize>() -> io::Result<[u8; N]> {
    thread_local!(static STORE: RefCell<Store> = const { RefCell::new(Store { bytes: [0; AT_ONCE], left: 0 }) });
    STORE.with_borrow_mut(Store::take)
}

struct Store {
    bytes: [u8; AT_ONCE],
    /// How many have not been given out.
    left: usize,
}

impl Store {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        const { assert!(N <= AT_ONCE) };
        if self.left < N {
            getrandom::fill(&mut self.bytes).map_err(io::Error::other)?;
            self.left = AT_ONCE;
        }
        self.left -= N;
        let mut taken = [0; N];
        // Nothing that was given out stays here.
        taken.swap_with_slice(&mut self.bytes[self.left..self.left + N]);
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_bytes_are_given_out_twice_or_kept() {
        let mut store = Store { bytes: [0; AT_ONCE], left: 0 };
        let keys: HashSet<[u8; 8]> = (0..1000).map(|_| store.take().unwrap()).collect();
        assert_eq!(keys.len(), 1000);
        let whole: [u8; AT_ONCE] = store.take().unwrap();
        assert_ne!(whole, [0; AT_ONCE]);
        assert_eq!((store.left, store.bytes), (0, [0; AT_ONCE]));
    }
}
