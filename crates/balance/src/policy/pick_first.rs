//! Pick first: one endpoint, until it fails.

use std::error::Error;

use super::pick_table::{Candidates, ConnectStrategy, PickState, PickTable, Policy, PolicyMember};
use crate::endpoint::EndpointId;

/// Picks the first ready endpoint. It keeps that endpoint while it is ready, even if an earlier one becomes ready or the order
/// changes.
#[derive(Clone, Copy, Debug, Default)]
pub struct PickFirst {
    /// Each balancer shuffles the endpoints, so that many clients do not all use the same one.
    pub shuffle: bool,
}

impl Policy for PickFirst {
    fn name(&self) -> &'static str {
        "pick_first"
    }

    fn table(
        &self,
        members: &[PolicyMember],
        previous: Option<&dyn PickTable>,
    ) -> Result<Box<dyn PickTable>, Box<dyn Error + Send + Sync>> {
        let mut order: Vec<usize> = (0..members.len()).collect();
        order.sort_by_key(|&index| members[index].rank);
        let current = previous.and_then(PickTable::next_endpoint);
        if let Some(position) = order.iter().position(|&index| Some(members[index].id) == current) {
            order[..=position].rotate_right(1);
        }
        let first = order.first().map(|&index| members[index].id);
        Ok(Box::new(PickFirstTable { order: order.into(), first }))
    }

    fn connect_strategy(&self) -> ConnectStrategy {
        ConnectStrategy::First
    }

    fn shuffles(&self) -> bool {
        self.shuffle
    }
}

struct PickFirstTable {
    order: Box<[usize]>,
    first: Option<EndpointId>,
}

impl PickTable for PickFirstTable {
    fn pick(&self, candidates: &Candidates<'_>, _: &mut PickState) -> Option<usize> {
        self.order.iter().copied().find(|&index| candidates.allows(index))
    }

    fn next_endpoint(&self) -> Option<EndpointId> {
        self.first
    }
}
