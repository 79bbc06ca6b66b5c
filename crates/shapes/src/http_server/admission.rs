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
    _permit: Option<OwnedSemaphorePermit>,
}

impl Admission {
    pub(crate) fn new(initial: usize, existing: usize) -> Self {
        Self { initial: Arc::new(Semaphore::new(initial)), existing: Arc::new(Semaphore::new(existing)) }
    }

    /// Admits a request for a known shape; `None` at the limit.
    pub(crate) fn existing(&self) -> Option<Admitted> {
        Arc::clone(&self.existing).try_acquire_owned().ok().map(|permit| Admitted { _permit: Some(permit) })
    }

    /// Waits until a request that may create a shape is admitted.
    pub(crate) async fn initial(&self) -> Admitted {
        Admitted { _permit: Arc::clone(&self.initial).acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::task::{Context, Waker};

    use super::*;

    /// SH-45.
    #[tokio::test]
    async fn place_is_free_after_each_request() {
        let admission = Admission::new(1, 2);
        let first = admission.initial().await;
        let mut context = Context::from_waker(Waker::noop());
        let mut second = std::pin::pin!(admission.initial());
        assert!(second.as_mut().poll(&mut context).is_pending());
        let known = [admission.existing(), admission.existing()];
        assert!(known.iter().all(Option::is_some) && admission.existing().is_none());
        drop(first);
        assert!(second.as_mut().poll(&mut context).is_ready());
        drop(known);
        assert!(admission.existing().is_some());
    }
}
