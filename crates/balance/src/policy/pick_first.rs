//! All to one, until it fails.

use std::error::Error;

use super::{Dials, Local, Member, Policy, Table, View};
use crate::endpoint::EndpointId;

/// All to the first endpoint that is ready. It stays the one while it is ready, even if one before it comes back or the
/// order changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PickFirst {
    /// Each balancer orders the endpoints at random, so that many clients do not all use the same one.
    pub shuffle: bool,
}

impl Policy for PickFirst {
    fn name(&self) -> &'static str {
        "pick_first"
    }

    fn table(
        &self,
        members: &[Member],
        before: Option<&dyn Table>,
    ) -> Result<Box<dyn Table>, Box<dyn Error + Send + Sync>> {
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_key(|&index| members[index].rank);
        let current = before.and_then(Table::next);
        if let Some(place) = order.iter().position(|&index| Some(members[index].id) == current) {
            order[..=place].rotate_right(1);
        }
        let first = order.first().map(|&index| members[index].id);
        Ok(Box::new(InOrder { order: order.into(), first }))
    }

    fn dials(&self) -> Dials {
        Dials::First
    }

    fn shuffles(&self) -> bool {
        self.shuffle
    }
}

struct InOrder {
    order: Box<[usize]>,
    first: Option<EndpointId>,
}

impl Table for InOrder {
    fn pick(&self, view: &View<'_>, _: &mut Local) -> Option<usize> {
        self.order.iter().copied().find(|&index| view.allows(index))
    }

    fn next(&self) -> Option<EndpointId> {
        self.first
    }
}
