//! Names whose answers rotate through a part of the addresses. Pure: the time is an argument.
//!
//! An address that is missing from an answer is normally removed, so that connections follow a database that moves to another
//! address. Some name servers answer with a part of the addresses in turn; removing the missing ones would replace connections at
//! every look-up. A name therefore counts as rotating for [`MEMORY`] after an address has come back. Addresses of a rotating name
//! are removed when they were missing for the grace period.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// The addresses of a name across answers.
#[derive(Clone, Debug)]
pub struct AddressRotation<A> {
    /// Current addresses, with the time of the last answer that contained each.
    current: BTreeMap<A, Instant>,
    /// Removed addresses, with the time of their removal.
    gone: BTreeMap<A, Instant>,
    /// Time of the last answer.
    answered_at: Option<Instant>,
    /// Time when an address last came back.
    came_back_at: Option<Instant>,
}

/// How long a name counts as rotating after an address has come back.
pub(super) const MEMORY: Duration = Duration::from_secs(3600);
/// Limit of remembered removed addresses.
const GONE_MAX: usize = 256;

impl<A> Default for AddressRotation<A> {
    fn default() -> Self {
        Self { current: BTreeMap::new(), gone: BTreeMap::new(), answered_at: None, came_back_at: None }
    }
}

impl<A: Ord + Copy> AddressRotation<A> {
    /// The current addresses.
    pub fn current(&self) -> impl Iterator<Item = &A> {
        self.current.keys()
    }

    /// Whether `address` is a current one.
    #[must_use]
    pub fn has(&self, address: &A) -> bool {
        self.current.contains_key(address)
    }

    /// Records an answer. A missing address of a rotating name stays for `grace`; zero removes it immediately. Returns whether an
    /// address was removed.
    pub fn record(&mut self, answer: &[A], grace: Duration, now: Instant) -> bool {
        let before = self.answered_at.replace(now);
        self.gone.retain(|_, at| now.saturating_duration_since(*at) < MEMORY);
        for address in answer {
            let seen_at = self.current.insert(*address, now);
            let was_left_out = seen_at.is_some_and(|at| before.is_some_and(|before| at < before));
            if self.gone.remove(address).is_some() || was_left_out {
                self.came_back_at = Some(now);
            }
        }
        let rotates = self.came_back_at.is_some_and(|at| now.saturating_duration_since(at) < MEMORY);
        let grace = if rotates { grace } else { Duration::ZERO };
        let count = self.current.len();
        let gone = &mut self.gone;
        self.current.retain(|address, seen_at| {
            let is_kept = !grace.is_zero() && now.saturating_duration_since(*seen_at) <= grace;
            let stays = is_kept || answer.contains(address);
            if !stays && gone.len() < GONE_MAX {
                gone.insert(*address, now);
            }
            stays
        });
        self.current.len() < count
    }
}
