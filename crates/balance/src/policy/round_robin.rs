//! One after the other.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::weighted::Cycle;
use super::{Local, Member, Policy, RAMP_FULL, Table, View};
use crate::endpoint::EndpointId;
use crate::sync::Apart;

/// One after the other, ignoring weights.
///
/// By default each thread goes round on its own, beginning at random: nothing is shared, and of any number of picks two
/// endpoints' shares differ by the number of threads at most. [`Exact`] shares one cursor.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

/// One after the other over all threads together: shares differ by one at most. Each pick writes to a line that all
/// threads share, which bounds them all together to some ten million picks a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact;

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round_robin"
    }

    fn table(&self, members: &[Member], _: Option<&dyn Table>) -> Result<Box<dyn Table>, Box<dyn Error + Send + Sync>> {
        if members.iter().all(|member| member.ramp == RAMP_FULL) {
            return Ok(Box::new(Turns));
        }
        Ok(Box::new(Cycle::new(members.iter().map(|member| u64::from(member.ramp)))))
    }
}

struct Turns;

impl Table for Turns {
    #[inline]
    fn pick(&self, view: &View<'_>, local: &mut Local) -> Option<usize> {
        if view.restricted || view.len == 0 {
            return view.detour(local);
        }
        // Wrapped by comparison: no division, and no bias when a number overflows.
        let turn = if local.cursor < view.len { local.cursor } else { 0 };
        local.cursor = turn + 1;
        Some(turn)
    }

    fn takes_turns(&self) -> bool {
        true
    }
}

impl Policy for Exact {
    fn name(&self) -> &'static str {
        "round_robin_exact"
    }

    fn table(
        &self,
        members: &[Member],
        before: Option<&dyn Table>,
    ) -> Result<Box<dyn Table>, Box<dyn Error + Send + Sync>> {
        let ids: Box<[EndpointId]> = members.iter().map(|member| member.id).collect();
        // Who was next is next again; if it is gone, then the one after it.
        let next = before.and_then(Table::next);
        let start = next.map_or(0, |next| ids.partition_point(|&id| id < next));
        Ok(Box::new(SharedTurns { ids, turns: Arc::new(Apart(AtomicU64::new(start as u64))) }))
    }
}

struct SharedTurns {
    ids: Box<[EndpointId]>,
    /// Apart from the list, which every pick reads.
    turns: Arc<Apart<AtomicU64>>,
}

impl Table for SharedTurns {
    fn pick(&self, view: &View<'_>, local: &mut Local) -> Option<usize> {
        if view.restricted || view.len == 0 {
            return view.detour(local);
        }
        // Ten million a second would take 58,000 years to overflow 64 bits.
        Some((self.turns.0.fetch_add(1, Ordering::Relaxed) % view.len as u64) as usize)
    }

    fn next(&self) -> Option<EndpointId> {
        let turn = self.turns.0.load(Ordering::Relaxed).checked_rem(self.ids.len() as u64)?;
        self.ids.get(turn as usize).copied()
    }
}
