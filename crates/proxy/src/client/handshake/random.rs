//! Random bytes for keys and nonces.

use std::{cell::RefCell, io};

/// Bytes per call of the system's generator: sixty-four keys of protocol 3.0.
const FILL_BYTES: usize = 256;

/// Returns random bytes of the system.
///
/// # Errors
/// Fails if the system's generator fails.
pub(in crate::client) fn random<const N: usize>() -> io::Result<[u8; N]> {
    thread_local!(static STORE: RefCell<Store> = const { RefCell::new(Store { bytes: [0; FILL_BYTES], left: 0 }) });
    STORE.with_borrow_mut(Store::take)
}

struct Store {
    bytes: [u8; FILL_BYTES],
    /// Number of unused bytes.
    left: usize,
}

impl Store {
    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        const { assert!(N <= FILL_BYTES) };
        if self.left < N {
            getrandom::fill(&mut self.bytes).map_err(io::Error::other)?;
            self.left = FILL_BYTES;
        }
        self.left -= N;
        let mut taken = [0; N];
        // Used bytes are erased here.
        taken.swap_with_slice(&mut self.bytes[self.left..self.left + N]);
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn bytes_are_used_once_and_erased() {
        let mut store = Store { bytes: [0; FILL_BYTES], left: 0 };
        let keys: HashSet<[u8; 8]> = (0..1000).map(|_| store.take().unwrap()).collect();
        assert_eq!(keys.len(), 1000);
        let whole: [u8; FILL_BYTES] = store.take().unwrap();
        assert_ne!(whole, [0; FILL_BYTES]);
        assert_eq!((store.left, store.bytes), (0, [0; FILL_BYTES]));
    }
}
