//! An immutable snapshot: the usable endpoints, and the tables that pick among them. Updates replace it as a whole.

use std::sync::Arc;

use crate::endpoint::{Endpoint, SharedError};
use crate::error::PickError;
use crate::load::EndpointLoad;
use crate::pick::Pick;
use crate::policy::{CandidateSource, Candidates, PickState, PickTable};

pub(crate) type EndpointList<T> = Arc<[Arc<Endpoint<T>>]>;

pub(crate) struct Snapshot<T> {
    /// The ready endpoints of the serving tier, in the order of their ids: kept endpoints keep their order, new ones follow.
    pub(crate) ready: EndpointList<T>,
    pub(crate) table: Box<dyn PickTable>,
    /// Used by picks that no endpoint of the serving tier may serve.
    pub(crate) lower_tiers: Box<[SnapshotTier<T>]>,
    /// Equal to `ready` if the table [is round robin](PickTable::is_round_robin), else empty.
    pub(crate) round_robin: EndpointList<T>,
    /// Number of endpoints in the set, ready or not.
    pub(crate) known: usize,
    /// Last error of an endpoint that is not ready.
    pub(crate) cause: Option<SharedError>,
    pub(crate) closed: bool,
}

/// A tier, with its table.
pub(crate) struct SnapshotTier<T> {
    pub(crate) ready: EndpointList<T>,
    pub(crate) table: Box<dyn PickTable>,
}

impl<T> Snapshot<T> {
    /// Picks an endpoint. An endpoint that the call has tried is picked only if no other endpoint of any tier is left.
    #[inline]
    pub(crate) fn pick(&self, pick: &Pick<'_, T>, state: &mut PickState) -> Result<&Arc<Endpoint<T>>, PickError> {
        match self.pick_serving_tier(pick, state) {
            Some(endpoint) => Ok(endpoint),
            None => self.pick_again(pick, state),
        }
    }

    #[inline]
    fn pick_serving_tier(&self, pick: &Pick<'_, T>, state: &mut PickState) -> Option<&Arc<Endpoint<T>>> {
        pick_from(&self.ready, &*self.table, pick, state)
    }

    fn pick_lower_tiers(&self, pick: &Pick<'_, T>, state: &mut PickState) -> Option<&Arc<Endpoint<T>>> {
        self.lower_tiers.iter().find_map(|tier| pick_from(&tier.ready, &*tier.table, pick, state))
    }

    #[cold]
    #[inline(never)]
    fn pick_again(&self, pick: &Pick<'_, T>, state: &mut PickState) -> Result<&Arc<Endpoint<T>>, PickError> {
        let other = self.pick_lower_tiers(pick, state);
        if other.is_some() || pick.tried.is_empty() {
            return other.ok_or_else(|| self.error());
        }
        let any = pick.without_tried();
        self.pick_serving_tier(&any, state).or_else(|| self.pick_lower_tiers(&any, state)).ok_or_else(|| self.error())
    }

    fn error(&self) -> PickError {
        match (self.known, self.all().count(), &self.cause) {
            _ if self.closed => PickError::Closed,
            (0, 0, None) => PickError::Empty,
            (known, 0, cause) => PickError::NotReady { known, cause: cause.clone() },
            (_, ready, _) => PickError::NoMatch { ready },
        }
    }

    /// The ready endpoints of all tiers.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Endpoint<T>>> {
        self.ready.iter().chain(self.lower_tiers.iter().flat_map(|tier| tier.ready.iter()))
    }

    /// The cursor in this snapshot for a thread whose cursor in `previous` was `cursor`: the same endpoint, or the next remaining
    /// one.
    pub(crate) fn carry_cursor(&self, previous: &Self, cursor: usize) -> Option<usize> {
        let count = previous.ready.len();
        let start = if cursor < count { cursor } else { 0 };
        let mut round = previous.ready[start..].iter().chain(&previous.ready[..start]);
        round.find_map(|old| self.ready.binary_search_by_key(&old.id, |endpoint| endpoint.id).ok())
    }
}

#[inline]
fn pick_from<'a, T>(
    ready: &'a EndpointList<T>,
    table: &dyn PickTable,
    pick: &Pick<'_, T>,
    state: &mut PickState,
) -> Option<&'a Arc<Endpoint<T>>> {
    let source = ReadySource { ready, pick };
    let candidates =
        Candidates { len: ready.len(), restricted: pick.is_restricted(), hints: &pick.hints, source: &source };
    ready.get(table.pick(&candidates, state)?)
}

struct ReadySource<'a, T> {
    ready: &'a EndpointList<T>,
    pick: &'a Pick<'a, T>,
}

impl<T> CandidateSource for ReadySource<'_, T> {
    fn load(&self, index: usize) -> &EndpointLoad {
        &self.ready[index].load
    }

    fn allows(&self, index: usize) -> bool {
        self.pick.allows(&self.ready[index])
    }
}
