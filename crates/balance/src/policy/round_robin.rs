//! Round robin.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::pick_table::{Candidates, PickState, PickTable, Policy, PolicyMember, RAMP_FULL};
use super::weighted::WeightedCycle;
use crate::endpoint::EndpointId;
use crate::sync::CacheAligned;

/// Picks the endpoints in turn and ignores weights.
///
/// Each thread has its own cursor with a random start. Nothing is shared, and the picks of two endpoints differ by at most
/// the number of threads. [`ExactRoundRobin`] shares one cursor.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin;

/// Picks the endpoints in turn over all threads: the picks of two endpoints differ by at most one. Each pick writes to a cache
/// line that all threads share, which limits all threads together to about ten million picks a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExactRoundRobin;

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round_robin"
    }

    fn table(
        &self,
        members: &[PolicyMember],
        _: Option<&dyn PickTable>,
    ) -> Result<Box<dyn PickTable>, Box<dyn Error + Send + Sync>> {
        if members.iter().all(|member| member.ramp == RAMP_FULL) {
            return Ok(Box::new(RoundRobinTable));
        }
        Ok(Box::new(WeightedCycle::new(members.iter().map(|member| u64::from(member.ramp)))))
    }
}

struct RoundRobinTable;

impl PickTable for RoundRobinTable {
    #[inline]
    fn pick(&self, candidates: &Candidates<'_>, state: &mut PickState) -> Option<usize> {
        if candidates.restricted || candidates.len == 0 {
            return candidates.next_allowed(state);
        }
        // Wraps by comparison: no division, and no bias at an overflow.
        let turn = if state.cursor < candidates.len { state.cursor } else { 0 };
        state.cursor = turn + 1;
        Some(turn)
    }

    fn is_round_robin(&self) -> bool {
        true
    }
}

impl Policy for ExactRoundRobin {
    fn name(&self) -> &'static str {
        "round_robin_exact"
    }

    fn table(
        &self,
        members: &[PolicyMember],
        previous: Option<&dyn PickTable>,
    ) -> Result<Box<dyn PickTable>, Box<dyn Error + Send + Sync>> {
        let ids: Box<[EndpointId]> = members.iter().map(|member| member.id).collect();
        // Continues with the endpoint that was next, or with the one after it if that one is gone.
        let next = previous.and_then(PickTable::next_endpoint);
        let start = next.map_or(0, |next| ids.partition_point(|&id| id < next));
        Ok(Box::new(ExactTable { ids, turns: Arc::new(CacheAligned(AtomicU64::new(start as u64))) }))
    }
}

struct ExactTable {
    ids: Box<[EndpointId]>,
    /// Apart from the list, which every pick reads.
    turns: Arc<CacheAligned<AtomicU64>>,
}

impl PickTable for ExactTable {
    fn pick(&self, candidates: &Candidates<'_>, state: &mut PickState) -> Option<usize> {
        if candidates.restricted || candidates.len == 0 {
            return candidates.next_allowed(state);
        }
        // Ten million picks a second overflow 64 bits after 58,000 years.
        Some((self.turns.0.fetch_add(1, Ordering::Relaxed) % candidates.len as u64) as usize)
    }

    fn next_endpoint(&self) -> Option<EndpointId> {
        let turn = self.turns.0.load(Ordering::Relaxed).checked_rem(self.ids.len() as u64)?;
        self.ids.get(turn as usize).copied()
    }
}
