//! The contract of a policy: it builds a table when the set changes, and each pick uses the table.
//!
//! A table is immutable and shared by all threads; [`PickState`] is the only state that a pick changes, and each thread has
//! its own. So a pick writes to no cache line that another thread reads, unless the policy shares one on purpose.

use std::error::Error;
use std::fmt;
use std::time::Instant;

use crate::endpoint::{EndpointId, EndpointKey};
use crate::load::EndpointLoad;
use crate::pick::PickHints;

/// Full share of an endpoint: it is not in its slow start.
pub const RAMP_FULL: u32 = 256;

/// An endpoint as a policy sees it when it builds a table.
#[derive(Clone, Debug)]
pub struct PolicyMember {
    /// Number within the balancer.
    pub id: EndpointId,
    /// Identity.
    pub key: EndpointKey,
    /// Weight, as set by the caller.
    pub weight: u32,
    /// Share during the slow start, from 1 to [`RAMP_FULL`].
    pub ramp: u32,
    /// Position in the last update.
    pub rank: usize,
}

/// The endpoints that a driver keeps connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectStrategy {
    /// All of them.
    All,
    /// The first that connects, tried in order with a head start for each.
    First,
}

/// A load-balancing policy.
///
/// ```
/// use tidegate_balance::{Candidates, PickState, PickTable, Policy, PolicyMember};
///
/// /// Picks the newest endpoint.
/// #[derive(Debug)]
/// struct Newest;
///
/// impl Policy for Newest {
///     fn name(&self) -> &'static str { "newest" }
///     fn table(
///         &self,
///         _: &[PolicyMember],
///         _: Option<&dyn PickTable>,
///     ) -> Result<Box<dyn PickTable>, Box<dyn std::error::Error + Send + Sync>> {
///         Ok(Box::new(Newest))
///     }
/// }
///
/// impl PickTable for Newest {
///     fn pick(&self, candidates: &Candidates<'_>, _: &mut PickState) -> Option<usize> {
///         (0..candidates.len()).rev().find(|&index| candidates.allows(index))
///     }
/// }
/// ```
pub trait Policy: fmt::Debug + Send + Sync + 'static {
    /// Name for logs.
    fn name(&self) -> &'static str;

    /// Builds the table over the ready endpoints of one [tier](crate::EndpointSpec::tier), in the order of their ids.
    /// `previous` is the table in use, of any policy.
    ///
    /// # Errors
    ///
    /// The policy's own. The table in use then stays, and the failure is counted. A panic is treated the same way.
    fn table(
        &self,
        members: &[PolicyMember],
        previous: Option<&dyn PickTable>,
    ) -> Result<Box<dyn PickTable>, Box<dyn Error + Send + Sync>>;

    /// The endpoints that a driver keeps connected. Default: all.
    fn connect_strategy(&self) -> ConnectStrategy {
        ConnectStrategy::All
    }

    /// Returns whether each balancer puts the endpoints into a random order of its own. Default: false.
    fn shuffles(&self) -> bool {
        false
    }
}

/// The table of a policy for one set of endpoints.
pub trait PickTable: Send + Sync + 'static {
    /// Returns an index into the members of the table, or `None` if none is allowed. Called by every pick: it must not block,
    /// should not allocate, and must not panic.
    fn pick(&self, candidates: &Candidates<'_>, state: &mut PickState) -> Option<usize>;

    /// Returns whether an unrestricted pick takes the endpoint at [`PickState::cursor`] (the first one, if the cursor is past
    /// the end) and increments the cursor. Such picks then skip the call to the table, which halves their cost.
    fn is_round_robin(&self) -> bool {
        false
    }

    /// The endpoint of the next pick, if it is the same for all threads. The next table starts with it.
    fn next_endpoint(&self) -> Option<EndpointId> {
        None
    }
}

/// State that a thread keeps between picks. Each [`Picker`](crate::Picker) has one; each thread has one per balancer.
#[derive(Debug)]
pub struct PickState {
    /// Index of the next endpoint in turn. An update moves it to the same endpoint, or to the next remaining one.
    pub cursor: usize,
    /// Turn among the endpoints that a restricted pick allows.
    pub restricted_cursor: usize,
    /// Position in a cycle of [`cycle_len`](Self::cycle_len) units; a table with another cycle scales it.
    pub position: u64,
    /// Length of the cycle of `position`; zero before the first pick.
    pub cycle_len: u64,
    /// Random numbers of this thread.
    pub random: fastrand::Rng,
}

impl PickState {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            cursor: random.usize(..),
            restricted_cursor: random.usize(..),
            position: random.u64(..),
            cycle_len: 0,
            random,
        }
    }

    /// The next endpoint in turn, by the [`cursor`](Self::cursor).
    #[inline]
    pub(crate) fn next<'a, E>(&mut self, endpoints: &'a [E]) -> Option<&'a E> {
        // Wraps by the bounds check: no division, and no bias at an overflow.
        if let Some(next) = endpoints.get(self.cursor) {
            self.cursor += 1;
            return Some(next);
        }
        let first = endpoints.first()?;
        self.cursor = 1;
        Some(first)
    }
}

/// The endpoints of a pick: the members of the table, in their current state.
#[derive(Clone, Copy)]
pub struct Candidates<'a> {
    pub(crate) len: usize,
    pub(crate) restricted: bool,
    pub(crate) hints: &'a PickHints,
    pub(crate) source: &'a dyn CandidateSource,
}

/// Access to the endpoints of a pick, without their value type.
pub(crate) trait CandidateSource {
    fn load(&self, index: usize) -> &EndpointLoad;
    fn allows(&self, index: usize) -> bool;
}

impl Candidates<'_> {
    /// Number of endpoints.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is no endpoint.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether [`allows`](Self::allows) can be false.
    #[inline]
    pub fn is_restricted(&self) -> bool {
        self.restricted
    }

    /// Returns whether an endpoint may serve the call.
    pub fn allows(&self, index: usize) -> bool {
        !self.restricted || self.source.allows(index)
    }

    /// Counters of an endpoint.
    pub fn load(&self, index: usize) -> &EndpointLoad {
        self.source.load(index)
    }

    /// The hash of the call.
    pub fn hash(&self) -> Option<u64> {
        self.hints.hash
    }

    /// The time of the call.
    pub fn now(&self) -> Option<Instant> {
        self.hints.now
    }

    /// Indexes of the endpoints that may serve the call.
    pub fn allowed(&self) -> impl Iterator<Item = usize> {
        (0..self.len).filter(|&index| self.allows(index))
    }

    /// The next endpoint in turn among those that may serve the call. Only allowed endpoints are counted: moving on from a
    /// refused endpoint to its neighbour would give the neighbour a double share.
    pub fn next_allowed(&self, state: &mut PickState) -> Option<usize> {
        let allowed = self.allowed().count();
        state.restricted_cursor = state.restricted_cursor.wrapping_add(1);
        let turn = state.restricted_cursor.checked_rem(allowed)?;
        self.allowed().nth(turn)
    }
}

impl fmt::Debug for Candidates<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Candidates")
            .field("len", &self.len)
            .field("restricted", &self.restricted)
            .finish_non_exhaustive()
    }
}

/// The best of `choices` random endpoints, by `better`. The best of all endpoints, if the pick is restricted or the drawn ones
/// have weight zero.
pub(super) fn best_of(
    candidates: &Candidates<'_>,
    state: &mut PickState,
    choices: usize,
    weights: &[u64],
    better: impl Fn(usize, usize) -> bool,
) -> Option<usize> {
    let best = |best: usize, next: usize| if better(next, best) { next } else { best };
    // Starts at a random endpoint, because the first one of equals wins.
    let of_all =
        |start: usize| (start..candidates.len).chain(0..start).filter(|&index| candidates.allows(index)).reduce(best);
    if candidates.restricted || candidates.len <= choices {
        return of_all(state.random.usize(..candidates.len.max(1)));
    }
    let first = state.random.usize(..candidates.len);
    // The second one differs from the first: with two endpoints, half of the picks would otherwise have no choice.
    let other = state.random.usize(..candidates.len - 1);
    let second = other + usize::from(other >= first);
    let more = (2..choices).map(|_| state.random.usize(..candidates.len));
    let chosen = more.fold(best(first, second), best);
    if weights.get(chosen) == Some(&0) { of_all(first) } else { Some(chosen) }
}

/// Weights, reduced during slow starts. If all are zero, all count as equal.
pub(super) fn ramped_weights(members: &[PolicyMember]) -> Box<[u64]> {
    let all_zero = members.iter().all(|member| member.weight == 0);
    let weight = |member: &PolicyMember| if all_zero { 1 } else { u64::from(member.weight) };
    members.iter().map(|member| weight(member) * u64::from(member.ramp)).collect()
}
