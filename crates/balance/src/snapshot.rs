//! Who can be chosen, and how: what a pick looks at. Immutable, replaced whole.

use std::sync::Arc;

use crate::endpoint::{Cause, Endpoint};
use crate::error::PickError;
use crate::load::Load;
use crate::pick::Pick;
use crate::policy::{Local, Source, Table, View};

pub(crate) type Endpoints<T> = Arc<[Arc<Endpoint<T>>]>;

pub(crate) struct Snapshot<T> {
    /// Of the tier that serves, in the order of their ids. Kept endpoints keep their order, new ones follow.
    pub(crate) ready: Endpoints<T>,
    pub(crate) table: Box<dyn Table>,
    /// For picks that nobody of that tier may serve.
    pub(crate) further: Box<[Tier<T>]>,
    /// Those who take turns by the cursor alone: all who are ready, or nobody if the table has to be asked.
    pub(crate) turning: Endpoints<T>,
    /// How many are known, ready or not.
    pub(crate) known: usize,
    /// What happened last to one that is not ready.
    pub(crate) cause: Option<Cause>,
    pub(crate) closed: bool,
}

/// Those that serve when nobody of the tiers before may.
pub(crate) struct Tier<T> {
    pub(crate) ready: Endpoints<T>,
    pub(crate) table: Box<dyn Table>,
}

impl<T> Snapshot<T> {
    /// Chooses. Whom the call tried already is chosen only if there is no other, of any tier.
    #[inline]
    pub(crate) fn choose(&self, pick: &Pick<'_, T>, local: &mut Local) -> Result<&Arc<Endpoint<T>>, PickError> {
        match self.ask(pick, local) {
            Some(endpoint) => Ok(endpoint),
            None => self.choose_again(pick, local),
        }
    }

    #[inline]
    fn ask(&self, pick: &Pick<'_, T>, local: &mut Local) -> Option<&Arc<Endpoint<T>>> {
        ask(&self.ready, &*self.table, pick, local)
    }

    fn ask_further(&self, pick: &Pick<'_, T>, local: &mut Local) -> Option<&Arc<Endpoint<T>>> {
        self.further.iter().find_map(|tier| ask(&tier.ready, &*tier.table, pick, local))
    }

    #[cold]
    #[inline(never)]
    fn choose_again(&self, pick: &Pick<'_, T>, local: &mut Local) -> Result<&Arc<Endpoint<T>>, PickError> {
        let other = self.ask_further(pick, local);
        if other.is_some() || pick.tried.is_empty() {
            return other.ok_or_else(|| self.refusal());
        }
        let again = pick.retry();
        self.ask(&again, local).or_else(|| self.ask_further(&again, local)).ok_or_else(|| self.refusal())
    }

    fn refusal(&self) -> PickError {
        match (self.known, self.all().count(), &self.cause) {
            _ if self.closed => PickError::Closed,
            (0, 0, None) => PickError::Empty,
            (known, 0, cause) => PickError::NotReady { known, cause: cause.clone() },
            (_, ready, _) => PickError::NoMatch { ready },
        }
    }

    /// All who are ready, of whatever tier.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Endpoint<T>>> {
        self.ready.iter().chain(self.further.iter().flat_map(|tier| tier.ready.iter()))
    }

    /// Where to go on in this snapshot, for a thread that would have taken `cursor` of `before` next: the same endpoint,
    /// or the next after it that is still there.
    pub(crate) fn carry(&self, before: &Self, cursor: usize) -> Option<usize> {
        let count = before.ready.len();
        let start = if cursor < count { cursor } else { 0 };
        let mut round = before.ready[start..].iter().chain(&before.ready[..start]);
        round.find_map(|old| self.ready.binary_search_by_key(&old.id, |endpoint| endpoint.id).ok())
    }
}

#[inline]
fn ask<'a, T>(
    ready: &'a Endpoints<T>,
    table: &dyn Table,
    pick: &Pick<'_, T>,
    local: &mut Local,
) -> Option<&'a Arc<Endpoint<T>>> {
    let source = Asked { ready, pick };
    let view = View { len: ready.len(), restricted: pick.is_restricted(), wants: &pick.wants, source: &source };
    ready.get(table.pick(&view, local)?)
}

struct Asked<'a, T> {
    ready: &'a Endpoints<T>,
    pick: &'a Pick<'a, T>,
}

impl<T> Source for Asked<'_, T> {
    fn load(&self, index: usize) -> &Load {
        &self.ready[index].load
    }

    fn allows(&self, index: usize) -> bool {
        self.pick.allows(&self.ready[index])
    }
}
