//! To the one with the least to do, of a few drawn at random.

use std::error::Error;

use super::{Local, Member, Policy, Table, View, best_of};

/// To the endpoint with the fewest outstanding requests for its weight, of `choices` drawn at random.
///
/// Two choices are nearly as good as a look at all (Mitzenmacher, "The Power of Two Choices", 2001), and threads that
/// decide at the same time do not all run to the same one.
#[derive(Clone, Copy, Debug)]
pub struct LeastRequest {
    choices: usize,
}

impl LeastRequest {
    /// So many are compared, 2 at least.
    pub fn new(choices: usize) -> Self {
        Self { choices: choices.max(2) }
    }
}

impl Default for LeastRequest {
    fn default() -> Self {
        Self::new(2)
    }
}

impl Policy for LeastRequest {
    fn name(&self) -> &'static str {
        "least_request"
    }

    fn table(&self, members: &[Member], _: Option<&dyn Table>) -> Result<Box<dyn Table>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(Least { choices: self.choices, weights: weights(members) }))
    }
}

struct Least {
    choices: usize,
    weights: Box<[u64]>,
}

impl Table for Least {
    fn pick(&self, view: &View<'_>, local: &mut Local) -> Option<usize> {
        let cost = |index: usize| u128::from(view.load(index).outstanding()) + 1;
        let weight = |index: usize| u128::from(self.weights.get(index).copied().unwrap_or(1));
        // Fractions are compared crosswise; a weight of zero is an endless cost.
        best_of(view, local, self.choices, &self.weights, |one, other| {
            cost(one) * weight(other) < cost(other) * weight(one)
        })
    }
}

/// Weights, lessened during slow starts. All zero counts as all equal.
pub(super) fn weights(members: &[Member]) -> Box<[u64]> {
    let all_zero = members.iter().all(|member| member.weight == 0);
    let weight = |member: &Member| if all_zero { 1 } else { u64::from(member.weight) };
    members.iter().map(|member| weight(member) * u64::from(member.ramp)).collect()
}
