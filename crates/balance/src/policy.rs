//! How to choose: a policy builds a table whenever the set changes, and each pick asks the table.
//!
//! A table is immutable and shared by all threads; what changes from pick to pick is the asking thread's [`Local`]. So a
//! pick writes to no line that another thread reads, unless a policy wants it so.

mod least_request;
mod peak_ewma;
mod pick_first;
mod ring_hash;
mod round_robin;
mod weighted;

use std::error::Error;
use std::fmt;
use std::time::Instant;

use crate::endpoint::{EndpointId, Key};
use crate::load::Load;
use crate::pick::Wants;

pub use self::{
    least_request::LeastRequest,
    peak_ewma::PeakEwma,
    pick_first::PickFirst,
    ring_hash::{RingHash, hash_of},
    round_robin::{Exact, RoundRobin},
    weighted::WeightedRoundRobin,
};

/// Full share of an endpoint that is not in its slow start.
pub const RAMP_FULL: u32 = 256;

/// An endpoint, as a policy sees it when it builds a table.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its name within the balancer.
    pub id: EndpointId,
    /// Its identity.
    pub key: Key,
    /// Its weight as the caller set it.
    pub weight: u32,
    /// Its share while it starts slowly: 1 to [`RAMP_FULL`].
    pub ramp: u32,
    /// Its place in the order of the last update.
    pub rank: usize,
}

/// Which endpoints a driver should keep connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dials {
    /// All of them.
    All,
    /// The first that answers, tried in order with a head start for each.
    First,
}

/// A way to choose.
///
/// ```
/// use tidegate_balance::{Local, Member, Policy, Table, View};
///
/// /// Everything to the newest.
/// #[derive(Debug)]
/// struct Newest;
///
/// impl Policy for Newest {
///     fn name(&self) -> &'static str { "newest" }
///     fn table(&self, _: &[Member], _: Option<&dyn Table>) -> Result<Box<dyn Table>, Box<dyn std::error::Error + Send + Sync>> {
///         Ok(Box::new(Newest))
///     }
/// }
///
/// impl Table for Newest {
///     fn pick(&self, view: &View<'_>, _: &mut Local) -> Option<usize> {
///         (0..view.len()).rev().find(|&index| view.allows(index))
///     }
/// }
/// ```
pub trait Policy: fmt::Debug + Send + Sync + 'static {
    /// Its name, for people.
    fn name(&self) -> &'static str;

    /// Builds the table over those of one [tier](crate::Spec::tier) who are ready, in the order of their ids. `before` is
    /// the table in use, of whatever policy.
    ///
    /// # Errors
    ///
    /// Its own. The table in use stays then, and the failure is counted; so does a panic.
    fn table(
        &self,
        members: &[Member],
        before: Option<&dyn Table>,
    ) -> Result<Box<dyn Table>, Box<dyn Error + Send + Sync>>;

    /// Which endpoints a driver should keep connected: all by default.
    fn dials(&self) -> Dials {
        Dials::All
    }

    /// Should every balancer put the endpoints into an order of its own? Not by default.
    fn shuffles(&self) -> bool {
        false
    }
}

/// What a policy built for one set of endpoints.
pub trait Table: Send + Sync + 'static {
    /// An index into the members that the table was built of, or `None` if none is allowed. Called on every pick: it
    /// must not wait, should not allocate, and must not panic.
    fn pick(&self, view: &View<'_>, local: &mut Local) -> Option<usize>;

    /// Does a pick that may go to any endpoint take the one at [`Local::cursor`], or the first if the cursor is beyond the
    /// last, and set the cursor to the one after it? Then the table is not asked for such picks, which saves half of what
    /// they cost.
    fn takes_turns(&self) -> bool {
        false
    }

    /// Whom it chooses next, if that is the same for all threads. The next table begins there.
    fn next(&self) -> Option<EndpointId> {
        None
    }
}

/// What a thread keeps between picks. Each [`Picker`](crate::Picker) has one, and each thread one for each balancer.
#[derive(Debug)]
pub struct Local {
    /// Index of the next in turn. After an update it names the same endpoint as before, or the next that is left.
    pub cursor: usize,
    /// The turn among those that a restricted pick allows.
    pub detour: usize,
    /// Position in a cycle of [`span`](Self::span) steps; a table with another cycle scales it.
    pub position: u64,
    /// Length of the cycle that `position` is in; zero before the first.
    pub span: u64,
    /// Random numbers of this thread's own.
    pub random: fastrand::Rng,
}

impl Local {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self { cursor: random.usize(..), detour: random.usize(..), position: random.u64(..), span: 0, random }
    }

    /// The next in turn, one after the other by the [`cursor`](Self::cursor).
    #[inline]
    pub(crate) fn turn<'a, E>(&mut self, turning: &'a [E]) -> Option<&'a E> {
        // Wrapped by the check of the bound: no division, and no bias when a number overflows.
        if let Some(next) = turning.get(self.cursor) {
            self.cursor += 1;
            return Some(next);
        }
        let first = turning.first()?;
        self.cursor = 1;
        Some(first)
    }
}

/// The endpoints of a pick: those the table was built of, as they are now.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub(crate) len: usize,
    pub(crate) restricted: bool,
    pub(crate) wants: &'a Wants,
    pub(crate) source: &'a dyn Source,
}

/// Where a view looks.
pub(crate) trait Source {
    fn load(&self, index: usize) -> &Load;
    fn allows(&self, index: usize) -> bool;
}

impl View<'_> {
    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is there none?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Could [`allows`](Self::allows) refuse any?
    #[inline]
    pub fn is_restricted(&self) -> bool {
        self.restricted
    }

    /// May this one serve the call?
    pub fn allows(&self, index: usize) -> bool {
        !self.restricted || self.source.allows(index)
    }

    /// Its counters.
    pub fn load(&self, index: usize) -> &Load {
        self.source.load(index)
    }

    /// The hash of the call, if it has one.
    pub fn hash(&self) -> Option<u64> {
        self.wants.hash
    }

    /// The time of the call, if it was given.
    pub fn now(&self) -> Option<Instant> {
        self.wants.now
    }

    /// All that may serve the call.
    pub fn allowed(&self) -> impl Iterator<Item = usize> {
        (0..self.len).filter(|&index| self.allows(index))
    }

    /// The next in turn among those that may serve the call. Counting the allowed ones, instead of passing on to the
    /// neighbour of a refused one, keeps that neighbour from a double share.
    pub fn detour(&self, local: &mut Local) -> Option<usize> {
        let allowed = self.allowed().count();
        local.detour = local.detour.wrapping_add(1);
        let turn = local.detour.checked_rem(allowed)?;
        self.allowed().nth(turn)
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("len", &self.len).field("restricted", &self.restricted).finish_non_exhaustive()
    }
}

/// Of `choices` at random, the one that is worth most by `better`; of all, if the pick is restricted, or if the weights of
/// those that were drawn are all zero.
fn best_of(
    view: &View<'_>,
    local: &mut Local,
    choices: usize,
    weights: &[u64],
    better: impl Fn(usize, usize) -> bool,
) -> Option<usize> {
    let best = |best: usize, next: usize| if better(next, best) { next } else { best };
    // From a random place on, because the first of equals wins.
    let of_all = |start: usize| (start..view.len).chain(0..start).filter(|&index| view.allows(index)).reduce(best);
    if view.restricted || view.len <= choices {
        return of_all(local.random.usize(..view.len.max(1)));
    }
    let first = local.random.usize(..view.len);
    // The second is another one: of two, half the picks would otherwise have no choice.
    let other = local.random.usize(..view.len - 1);
    let second = other + usize::from(other >= first);
    let more = (2..choices).map(|_| local.random.usize(..view.len));
    let chosen = more.fold(best(first, second), best);
    if weights.get(chosen) == Some(&0) { of_all(first) } else { Some(chosen) }
}
