//! Limits of concurrent requests.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Two limits: requests that may create a shape, and requests for a known one. A storm of the former cannot keep the latter
/// out (SH-45, SH-61).
pub(crate) struct Admission {
    initial: Arc<Semaphore>,
    existing: Arc<Semaphore>,
}

/// A request that was admitted; the place is free when it is dropped.
pub(crate) struct Admitted {
    _permit: OwnedSemaphorePermit,
}

impl Admission {
    pub(crate) fn new(initial: usize, existing: usize) -> Self {
        Self { initial: Arc::new(Semaphore::new(initial)), existing: Arc::new(Semaphore::new(existing)) }
    }

    /// `None` at the limit.
    pub(crate) fn admit(&self, is_known: bool) -> Option<Admitted> {
        let limit = if is_known { &self.existing } else { &self.initial };
        Arc::clone(limit).try_acquire_owned().ok().map(|permit| Admitted { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SH-45.
    #[test]
    fn place_is_free_after_each_request() {
        let admission = Admission::new(1, 2);
        let first = admission.admit(false).unwrap();
        assert!(admission.admit(false).is_none());
        let known = [admission.admit(true), admission.admit(true)];
        assert!(known.iter().all(Option::is_some) && admission.admit(true).is_none());
        drop(first);
        assert!(admission.admit(false).is_some());
    }
}
