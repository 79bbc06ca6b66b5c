//! A pick: compare a version, ask the table, done.

use std::fmt;
use std::sync::Arc;

use crate::balancer::{Balancer, Shared};
use crate::endpoint::Endpoint;
use crate::error::PickError;
use crate::lease::Lease;
use crate::pick::Pick;
use crate::policy::Local;
use crate::snapshot::{Endpoints, Snapshot};

/// One thread's way to pick: its copy of the snapshot, and its place in it.
///
/// For event loops that keep their state themselves; a task on any thread picks through the
/// [`crate::Balancer`], which keeps one of these for each thread.
pub struct Picker<T: Send + Sync + 'static> {
    balancer: Balancer<T>,
    held: Held<T>,
}

impl<T: Send + Sync + 'static> Picker<T> {
    pub(crate) fn new(balancer: Balancer<T>, seed: u64) -> Self {
        let held = Held::new(balancer.shared(), seed);
        Self { balancer, held }
    }

    /// Chooses an endpoint and calls `f` with it: no lock, no write to shared memory, no reference count. Nothing is
    /// counted in flight.
    ///
    /// # Errors
    ///
    /// When there is nothing to choose; see [`PickError`].
    #[inline]
    pub fn pick_with<R>(&mut self, pick: &Pick<'_, T>, f: impl FnOnce(&Endpoint<T>) -> R) -> Result<R, PickError> {
        self.held.follow(self.balancer.shared());
        if let Some(endpoint) = self.held.turn(pick) {
            return Ok(f(endpoint));
        }
        match self.held.ask(pick) {
            Ok(endpoint) => Ok(f(endpoint)),
            Err(error) => Err(error),
        }
    }

    /// Chooses an endpoint, and owns it until the lease ends.
    ///
    /// # Errors
    ///
    /// When there is nothing to choose; see [`PickError`].
    #[inline]
    pub fn pick(&mut self, pick: &Pick<'_, T>) -> Result<Lease<T>, PickError> {
        self.held.lease(self.balancer.shared(), pick)
    }

    /// The balancer it picks from.
    pub fn balancer(&self) -> &Balancer<T> {
        &self.balancer
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Picker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Picker").field("version", &self.held.version).finish_non_exhaustive()
    }
}

/// What a thread keeps of a balancer.
pub(crate) struct Held<T> {
    version: u64,
    /// Those of the snapshot who take turns by the cursor alone; nobody, if its table has to be asked.
    turning: Endpoints<T>,
    snapshot: Arc<Snapshot<T>>,
    local: Local,
}

impl<T: Send + Sync + 'static> Held<T> {
    pub(crate) fn new(shared: &Shared<T>, seed: u64) -> Self {
        let (version, snapshot) = shared.published.read();
        let mut local = Local::new(seed);
        local.cursor = start(&snapshot, &mut local);
        Self { version, turning: snapshot.turning.clone(), snapshot, local }
    }

    /// Takes the current snapshot over, if there is a new one.
    #[inline]
    pub(crate) fn follow(&mut self, shared: &Shared<T>) {
        if self.version != shared.published.version() {
            self.refresh(shared);
        }
    }

    #[cold]
    #[inline(never)]
    fn refresh(&mut self, shared: &Shared<T>) {
        let (version, snapshot) = shared.published.read();
        let carried = snapshot.carry(&self.snapshot, self.local.cursor);
        self.local.cursor = carried.unwrap_or_else(|| start(&snapshot, &mut self.local));
        self.turning = snapshot.turning.clone();
        (self.version, self.snapshot) = (version, snapshot);
    }

    /// What most picks are, without a call: what a table needs to be told costs more than the turn. `None`: the table
    /// has to be [asked](Self::ask).
    #[inline]
    pub(crate) fn turn(&mut self, pick: &Pick<'_, T>) -> Option<&Arc<Endpoint<T>>> {
        if pick.is_restricted() { None } else { self.local.turn(&self.turning) }
    }

    #[inline]
    pub(crate) fn ask(&mut self, pick: &Pick<'_, T>) -> Result<&Arc<Endpoint<T>>, PickError> {
        self.snapshot.choose(pick, &mut self.local)
    }

    #[inline]
    pub(crate) fn choose(&mut self, pick: &Pick<'_, T>) -> Result<&Arc<Endpoint<T>>, PickError> {
        if !pick.is_restricted()
            && let Some(endpoint) = self.local.turn(&self.turning)
        {
            return Ok(endpoint);
        }
        self.snapshot.choose(pick, &mut self.local)
    }

    /// A chosen endpoint may begin to drain before it is entered; then choose again. Whoever drains it has published
    /// a snapshot without it first, so one more look is enough, unless the next one goes as well.
    pub(crate) fn lease(&mut self, shared: &Shared<T>, pick: &Pick<'_, T>) -> Result<Lease<T>, PickError> {
        const LOOKS: usize = 64;
        for _ in 0..LOOKS {
            self.follow(shared);
            if let Some(lease) = Lease::enter(self.choose(pick)?, pick.wants.now) {
                return Ok(lease);
            }
        }
        // Only if a policy that fails keeps a snapshot in use of which most have gone.
        self.any_open(pick)
    }

    #[cold]
    fn any_open(&self, pick: &Pick<'_, T>) -> Result<Lease<T>, PickError> {
        let mut open = self.snapshot.all().filter(|endpoint| pick.retry().allows(endpoint));
        let lease = open.find_map(|endpoint| Lease::enter(endpoint, pick.wants.now));
        lease.ok_or_else(|| PickError::NotReady { known: self.snapshot.known, cause: self.snapshot.cause.clone() })
    }
}

/// A new thread begins anywhere: if all began at the first, short-lived threads would use no other.
fn start<T>(snapshot: &Snapshot<T>, local: &mut Local) -> usize {
    local.random.usize(..snapshot.ready.len().max(1))
}
