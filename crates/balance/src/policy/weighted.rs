//! Weighted round robin.
//!
//! The weights are laid end to end on a line; each endpoint owns a part as long as its weight. A cycle visits every unit of the
//! line once, in steps of about its length divided by the golden ratio. Each endpoint thus gets its exact share in every
//! cycle, spread evenly within it (three-distance theorem; Knuth, TAOCP 3, 6.4). Weights can have any ratio, threads share
//! nothing, and no list is as long as the sum of the weights. The step is coprime to the length, so no unit is visited
//! twice.

use std::error::Error;

use super::pick_table::{Candidates, PickState, PickTable, Policy, PolicyMember, ramped_weights};

/// Picks each endpoint in proportion to its weight. If all weights are zero, all count as equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct WeightedRoundRobin;

impl Policy for WeightedRoundRobin {
    fn name(&self) -> &'static str {
        "weighted_round_robin"
    }

    fn table(
        &self,
        members: &[PolicyMember],
        _: Option<&dyn PickTable>,
    ) -> Result<Box<dyn PickTable>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(WeightedCycle::new(ramped_weights(members).iter().copied())))
    }
}

/// Visits the units of the line in steps.
pub(super) struct WeightedCycle {
    /// End of each endpoint's part.
    ends: Box<[u64]>,
    /// The first endpoint whose part reaches into each stretch of `1 << shift` units: a search starts there.
    guide: Box<[u32]>,
    shift: u32,
    step: u64,
}

impl WeightedCycle {
    /// The sum of `weights` must be less than 2^64. 32-bit weights times [`RAMP_FULL`](super::RAMP_FULL) of 16 million endpoints
    /// are.
    pub(super) fn new(weights: impl Iterator<Item = u64> + Clone) -> Self {
        let divisor = weights.clone().fold(0, greatest_common_divisor).max(1);
        let mut end = 0_u64;
        let ends: Box<[u64]> = weights
            .map(|weight| {
                end = end.saturating_add(weight / divisor);
                end
            })
            .collect();
        // Each stretch contains about one end.
        let shift = end.checked_div(ends.len() as u64).and_then(u64::checked_ilog2).unwrap_or(0);
        let stretches = if end == 0 { 0 } else { ((end - 1) >> shift) + 1 };
        let first = |stretch: u64| ends.partition_point(|&end| end <= stretch << shift) as u32;
        Self { guide: (0..stretches).map(first).collect(), ends, shift, step: step_for(end) }
    }

    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Takes a step. The position is scaled if the last step was in another cycle.
    fn advance(&self, state: &mut PickState) -> u64 {
        let len = self.len();
        if state.cycle_len != len {
            let before = if state.cycle_len == 0 { 1 << 64 } else { u128::from(state.cycle_len) };
            state.position = (u128::from(state.position) * u128::from(len) / before) as u64;
            state.cycle_len = len;
        }
        let position = if state.position < len { state.position } else { 0 };
        let left = len - position;
        state.position = if self.step < left { position + self.step } else { self.step - left };
        position
    }

    fn owner(&self, position: u64) -> Option<usize> {
        let start = *self.guide.get((position >> self.shift) as usize)? as usize;
        let beyond = self.ends.get(start..)?.iter().position(|&end| position < end)?;
        Some(start + beyond)
    }
}

impl PickTable for WeightedCycle {
    fn pick(&self, candidates: &Candidates<'_>, state: &mut PickState) -> Option<usize> {
        let position = self.advance(state);
        let index = self.owner(position)?;
        if candidates.allows(index) { Some(index) } else { self.pick_allowed(candidates, position) }
    }
}

impl WeightedCycle {
    /// Picks in proportion to the weights of the allowed endpoints: the position is scaled to their part of the line.
    fn pick_allowed(&self, candidates: &Candidates<'_>, position: u64) -> Option<usize> {
        let share = |index: usize| self.ends[index] - index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let whole: u64 = candidates.allowed().map(share).sum();
        if whole == 0 {
            // Only endpoints of weight zero are allowed.
            return candidates.allowed().next();
        }
        let mut left = (u128::from(position) * u128::from(whole) / u128::from(self.len().max(1))) as u64;
        candidates.allowed().find(|&index| {
            let found = left < share(index);
            left = left.saturating_sub(share(index));
            found
        })
    }
}

fn step_for(len: u64) -> u64 {
    const GOLDEN: u128 = 0x9E37_79B9_7F4A_7C15;
    let near = ((u128::from(len) * GOLDEN) >> 64) as u64;
    (near.max(1)..).find(|&step| greatest_common_divisor(step, len.max(1)) == 1).unwrap_or(1)
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
