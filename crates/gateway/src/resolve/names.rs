//! What is known of names, for how long, and which of them have come to mean other addresses. Pure: the time is an argument.
//!
//! An address that an answer leaves out is gone: whoever moves a database by its name wants connections to follow. But there
//! are name servers that give a part of the addresses in each answer, in turn; there, connections would be replaced at every
//! look-up. So a name of which an address comes back that was gone, or left out, is held to rotate for [`ROTATION_MEMORY`];
//! its addresses are gone only when they were left out for [`ROTATION_GRACE`].

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

/// What a look-up came to; the ports mean nothing.
pub(super) type Found = Result<Vec<SocketAddr>, String>;

/// A name as it is known now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownName {
    /// The name.
    pub name: String,
    /// How long this holds still.
    pub left: Duration,
    /// Its addresses; none if it has none.
    pub addresses: Vec<IpAddr>,
}

/// A name that means other addresses than before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedName {
    /// The name.
    pub name: String,
    /// Its addresses now.
    pub addresses: Vec<IpAddr>,
}

#[derive(Debug)]
struct Known {
    found: Found,
    until: Instant,
    addresses: Addresses,
}

/// The addresses of a name, as answers have named them.
#[derive(Debug, Default)]
struct Addresses {
    /// Those it has, and when an answer last named each.
    current: BTreeMap<IpAddr, Instant>,
    /// Those it had, and when they were given up.
    gone: BTreeMap<IpAddr, Instant>,
    /// The last answer.
    answered_at: Option<Instant>,
    /// When an address last came back.
    came_back_at: Option<Instant>,
}

/// How long a name is held to rotate after an address has come back.
const ROTATION_MEMORY: Duration = Duration::from_secs(3600);
/// How long an address of such a name may be left out; four look-ups, if that is longer.
const ROTATION_GRACE: Duration = Duration::from_secs(300);
/// Addresses that a name had and that are remembered; beyond that it is no rotation that could be followed.
const GONE_MAX: usize = 256;

impl Addresses {
    /// Takes an answer in. Whether an address is gone that the name had before.
    fn learn(&mut self, answer: &[IpAddr], ttl: Duration, now: Instant) -> bool {
        let before = self.answered_at.replace(now);
        self.gone.retain(|_, at| now.saturating_duration_since(*at) < ROTATION_MEMORY);
        for ip in answer {
            let named_at = self.current.insert(*ip, now);
            let was_left_out = named_at.is_some_and(|at| before.is_some_and(|before| at < before));
            if self.gone.remove(ip).is_some() || was_left_out {
                self.came_back_at = Some(now);
            }
        }
        let grace = match self.came_back_at {
            Some(at) if now.saturating_duration_since(at) < ROTATION_MEMORY => ROTATION_GRACE.max(ttl * 4),
            _ => Duration::ZERO,
        };
        let count = self.current.len();
        let gone = &mut self.gone;
        self.current.retain(|ip, named_at| {
            let kept = !grace.is_zero() && now.saturating_duration_since(*named_at) <= grace;
            let stays = kept || answer.contains(ip);
            if !stays && gone.len() < GONE_MAX {
                gone.insert(*ip, now);
            }
            stays
        });
        self.current.len() < count
    }
}

/// The names that were looked up.
#[derive(Debug, Default)]
pub(super) struct Names {
    ttl: Duration,
    failure_ttl: Duration,
    known: BTreeMap<String, Known>,
    changed: Vec<ChangedName>,
}

/// Names come from the configuration, except where a client's words become one: there may be no more than so many.
const NAMES_MAX: usize = 10_000;

impl Names {
    /// For how long look-ups hold, and those that found nothing.
    pub(super) fn set_ttl(&mut self, ttl: Duration, failure_ttl: Duration) {
        (self.ttl, self.failure_ttl) = (ttl, failure_ttl);
    }

    /// What a name means, if that is known still.
    pub(super) fn get(&self, name: &str, now: Instant) -> Option<Found> {
        self.known.get(name).filter(|known| now < known.until).map(|known| known.found.clone())
    }

    /// Takes in what a look-up came to.
    pub(super) fn learn(&mut self, name: &str, found: &Found, now: Instant) {
        let ttl = if found.is_ok() { self.ttl } else { self.failure_ttl };
        let known = self.known.remove(name);
        if ttl.is_zero() && self.ttl.is_zero() {
            return;
        }
        let mut addresses = known.map(|known| known.addresses).unwrap_or_default();
        // A name server that is away for a while has moved nobody.
        if let Ok(answer) = found
            && addresses.learn(&sorted(answer), self.ttl, now)
        {
            let left = addresses.current.keys().copied().collect();
            self.changed.push(ChangedName { name: name.to_owned(), addresses: left });
        }
        if self.known.len() < NAMES_MAX {
            self.known.insert(name.to_owned(), Known { found: found.clone(), until: now + ttl, addresses });
        }
    }

    /// The names that have changed since this was asked last.
    pub(super) fn take_changed(&mut self) -> Vec<ChangedName> {
        std::mem::take(&mut self.changed)
    }

    /// All of them, in order.
    pub(super) fn known(&self, now: Instant) -> Vec<KnownName> {
        let one = |(name, known): (&String, &Known)| KnownName {
            name: name.clone(),
            left: known.until.saturating_duration_since(now),
            addresses: known.found.as_ref().map(|found| sorted(found)).unwrap_or_default(),
        };
        self.known.iter().map(one).collect()
    }
}

fn sorted(addresses: &[SocketAddr]) -> Vec<IpAddr> {
    let mut all: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(15);

    fn found(addresses: &[&str]) -> Found {
        Ok(addresses.iter().map(|ip| SocketAddr::new(ip.parse().expect("an address"), 0)).collect())
    }

    fn names() -> (Names, Instant) {
        let mut names = Names::default();
        names.set_ttl(TTL, TTL / 3);
        (names, Instant::now())
    }

    #[test]
    fn a_look_up_holds_for_its_time() {
        let (mut names, now) = names();
        assert_eq!(names.get("db", now), None);
        names.learn("db", &found(&["10.0.0.1"]), now);
        assert_eq!(names.get("db", now + TTL - Duration::from_nanos(1)), Some(found(&["10.0.0.1"])));
        assert_eq!(names.get("db", now + TTL), None);
        names.learn("gone", &Err("no such host".to_owned()), now);
        assert!(names.get("gone", now).is_some_and(|found| found.is_err()));
        assert_eq!(names.get("gone", now + TTL / 3), None);
        let known = names.known(now + TTL / 3);
        assert_eq!((known[0].name.as_str(), known[0].left, known[1].addresses.len()), ("db", TTL / 3 * 2, 0));
    }

    #[test]
    fn a_name_that_moves_is_told_once() {
        let (mut names, now) = names();
        names.learn("db", &found(&["10.0.0.1", "10.0.0.2"]), now);
        names.learn("db", &found(&["10.0.0.2", "10.0.0.1"]), now);
        names.learn("db", &Err("the name server is away".to_owned()), now);
        assert_eq!(names.take_changed(), [], "neither another order nor a failure is a move");
        names.learn("db", &found(&["10.0.0.2"]), now);
        let moved = ChangedName { name: "db".to_owned(), addresses: vec!["10.0.0.2".parse().expect("an address")] };
        assert_eq!(names.take_changed(), [moved]);
        assert_eq!(names.take_changed(), []);
    }

    #[test]
    fn a_name_whose_answers_take_turns_moves_once() {
        let (mut names, start) = names();
        let mut now = start;
        let mut answer = |names: &mut Names, addresses: &[&str]| {
            now += TTL;
            names.learn("db", &found(addresses), now);
            let left = |changed: ChangedName| changed.addresses.len();
            names.take_changed().into_iter().map(left).collect::<Vec<_>>()
        };
        let turns = [["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.3"], ["10.0.0.3", "10.0.0.1"]];
        assert_eq!(answer(&mut names, &turns[0]), [0; 0]);
        assert_eq!(answer(&mut names, &turns[1]), [2], "that the first is back later cannot be known");
        for round in 0..1000 {
            assert_eq!(answer(&mut names, &turns[(round + 2) % 3]), [0; 0], "round {round}");
        }
        // One of them is taken out for good.
        let grace = (ROTATION_GRACE.as_secs() / TTL.as_secs()) as usize;
        let rest = ["10.0.0.2", "10.0.0.3"];
        for _ in 0..grace {
            assert_eq!(answer(&mut names, &rest), [0; 0]);
        }
        let told: Vec<_> = (0..3).flat_map(|_| answer(&mut names, &rest)).collect();
        assert_eq!(told, [2], "it is gone, once");
        // After a long time without a turn it is a name like others.
        for _ in 0..ROTATION_MEMORY.as_secs() / TTL.as_secs() {
            assert_eq!(answer(&mut names, &rest), [0; 0]);
        }
        assert_eq!(answer(&mut names, &["10.0.0.9"]), [1]);
    }

    #[test]
    fn nothing_is_kept_without_a_time() {
        let mut names = Names::default();
        let now = Instant::now();
        names.learn("db", &found(&["10.0.0.1"]), now);
        assert!(names.known(now).is_empty() && names.get("db", now).is_none());
    }
}
