//! Names of which each answer gives a part of the addresses, in turn. Pure: the time is an argument.
//!
//! An address that an answer leaves out is gone: whoever moves a database by its name wants connections to follow. But there
//! are name servers that give a part of the addresses in each answer, in turn; there, connections would be replaced at every
//! look-up. So a name of which an address comes back that was gone, or left out, is held to rotate for [`MEMORY`]; its
//! addresses are gone only when they were left out for a grace.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// The addresses of a name, as answers have named them.
#[derive(Clone, Debug)]
pub struct Rotation<A> {
    /// Those it has, and when an answer last named each.
    current: BTreeMap<A, Instant>,
    /// Those it had, and when they were given up.
    gone: BTreeMap<A, Instant>,
    /// The last answer.
    answered_at: Option<Instant>,
    /// When an address last came back.
    came_back_at: Option<Instant>,
}

/// How long a name is held to rotate after an address has come back.
pub(super) const MEMORY: Duration = Duration::from_secs(3600);
/// Addresses that a name had and that are remembered; beyond that it is no rotation that could be followed.
const GONE_MAX: usize = 256;

impl<A> Default for Rotation<A> {
    fn default() -> Self {
        Self { current: BTreeMap::new(), gone: BTreeMap::new(), answered_at: None, came_back_at: None }
    }
}

impl<A: Ord + Copy> Rotation<A> {
    /// Those it has now.
    pub fn current(&self) -> impl Iterator<Item = &A> {
        self.current.keys()
    }

    /// Whether it has this one now.
    #[must_use]
    pub fn has(&self, address: &A) -> bool {
        self.current.contains_key(address)
    }

    /// Takes an answer in. While answers take turns, who is left out stays for the grace; zero is not at all. Whether an
    /// address is gone that the name had before.
    pub fn learn(&mut self, answer: &[A], grace: Duration, now: Instant) -> bool {
        let before = self.answered_at.replace(now);
        self.gone.retain(|_, at| now.saturating_duration_since(*at) < MEMORY);
        for address in answer {
            let named_at = self.current.insert(*address, now);
            let was_left_out = named_at.is_some_and(|at| before.is_some_and(|before| at < before));
            if self.gone.remove(address).is_some() || was_left_out {
                self.came_back_at = Some(now);
            }
        }
        let rotates = self.came_back_at.is_some_and(|at| now.saturating_duration_since(at) < MEMORY);
        let grace = if rotates { grace } else { Duration::ZERO };
        let count = self.current.len();
        let gone = &mut self.gone;
        self.current.retain(|address, named_at| {
            let is_kept = !grace.is_zero() && now.saturating_duration_since(*named_at) <= grace;
            let stays = is_kept || answer.contains(address);
            if !stays && gone.len() < GONE_MAX {
                gone.insert(*address, now);
            }
            stays
        });
        self.current.len() < count
    }
}
