//! In turn, but some more often.
//!
//! Think of a line as long as all weights together, of which each endpoint owns as much as its weight. A cycle visits
//! every unit of the line once, in steps of about its length divided by the golden ratio: so every endpoint gets its
//! exact share in each cycle, well spread within it (three-distance theorem; Knuth, TAOCP 3, 6.4), for weights of any
//! ratio, with nothing shared between threads and no list as long as the sum of weights. The step is coprime to the
//! length, so no unit is visited twice.

use std::error::Error;

use super::{Local, Member, Policy, Table, View};

/// Each in proportion to its weight. All weights zero counts as all equal.
#[derive(Clone, Copy, Debug, Default)]
pub struct WeightedRoundRobin;

impl Policy for WeightedRoundRobin {
    fn name(&self) -> &'static str {
        "weighted_round_robin"
    }

    fn table(&self, members: &[Member], _: Option<&dyn Table>) -> Result<Box<dyn Table>, Box<dyn Error + Send + Sync>> {
        let all_zero = members.iter().all(|member| member.weight == 0);
        let weight = |member: &Member| if all_zero { 1 } else { u64::from(member.weight) };
        Ok(Box::new(Cycle::new(members.iter().map(|member| weight(member) * u64::from(member.ramp)))))
    }
}

/// Visits units of a line in steps.
pub(super) struct Cycle {
    /// Where the share of each ends.
    ends: Box<[u64]>,
    /// The first whose share reaches into a stretch of `1 << shift` units: a search begins there.
    guide: Box<[u32]>,
    shift: u32,
    step: u64,
}

impl Cycle {
    /// The sum of `weights` must be less than 2^64; 32-bit weights times [`RAMP_FULL`](super::RAMP_FULL) of 16 million
    /// endpoints are.
    pub(super) fn new(weights: impl Iterator<Item = u64> + Clone) -> Self {
        let divisor = weights.clone().fold(0, greatest_common_divisor).max(1);
        let mut end = 0_u64;
        let ends: Box<[u64]> = weights
            .map(|weight| {
                end = end.saturating_add(weight / divisor);
                end
            })
            .collect();
        // So many stretches that each holds about one end.
        let shift = end.checked_div(ends.len() as u64).and_then(u64::checked_ilog2).unwrap_or(0);
        let stretches = if end == 0 { 0 } else { ((end - 1) >> shift) + 1 };
        let first = |stretch: u64| ends.partition_point(|&end| end <= stretch << shift) as u32;
        Self { guide: (0..stretches).map(first).collect(), ends, shift, step: step_for(end) }
    }

    fn span(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Takes a step, from the same relative place if the last one was in another cycle.
    fn advance(&self, local: &mut Local) -> u64 {
        let span = self.span();
        if local.span != span {
            let whole = if local.span == 0 { 1 << 64 } else { u128::from(local.span) };
            local.position = (u128::from(local.position) * u128::from(span) / whole) as u64;
            local.span = span;
        }
        let position = if local.position < span { local.position } else { 0 };
        let left = span - position;
        local.position = if self.step < left { position + self.step } else { self.step - left };
        position
    }

    fn owner(&self, position: u64) -> Option<usize> {
        let start = *self.guide.get((position >> self.shift) as usize)? as usize;
        let beyond = self.ends.get(start..)?.iter().position(|&end| position < end)?;
        Some(start + beyond)
    }
}

impl Table for Cycle {
    fn pick(&self, view: &View<'_>, local: &mut Local) -> Option<usize> {
        let position = self.advance(local);
        let index = self.owner(position)?;
        if view.allows(index) { Some(index) } else { self.detour(view, position) }
    }
}

impl Cycle {
    /// In proportion among those allowed: the position is scaled to their part of the line.
    fn detour(&self, view: &View<'_>, position: u64) -> Option<usize> {
        let share = |index: usize| self.ends[index] - index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let whole: u64 = view.allowed().map(share).sum();
        if whole == 0 {
            // Only some of no weight are left: better one of them than none.
            return view.allowed().next();
        }
        let mut left = (u128::from(position) * u128::from(whole) / u128::from(self.span().max(1))) as u64;
        view.allowed().find(|&index| {
            let mine = left < share(index);
            left = left.saturating_sub(share(index));
            mine
        })
    }
}

fn step_for(span: u64) -> u64 {
    const GOLDEN: u128 = 0x9E37_79B9_7F4A_7C15;
    let near = ((u128::from(span) * GOLDEN) >> 64) as u64;
    (near.max(1)..).find(|&step| greatest_common_divisor(step, span.max(1)) == 1).unwrap_or(1)
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
