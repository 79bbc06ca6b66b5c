//! What is known of names, for how long, and which of them have come to mean other addresses. Pure: the time is an argument.
//!
//! An address that an answer leaves out is gone, unless answers [take turns](super::rotation).

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use super::rotation::Rotation;

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
    addresses: Rotation<IpAddr>,
}

/// The names that were looked up.
#[derive(Debug, Default)]
pub(super) struct Names {
    ttl: Duration,
    failure_ttl: Duration,
    rotation_grace: Duration,
    known: BTreeMap<String, Known>,
    changed: Vec<ChangedName>,
}

/// Names come from the configuration, except where a client's words become one: there may be no more than so many.
const NAMES_MAX: usize = 10_000;

impl Names {
    /// For how long look-ups hold, and those that found nothing; and for how long addresses may be left out by turns.
    pub(super) fn set_times(&mut self, ttl: Duration, failure_ttl: Duration, rotation_grace: Duration) {
        (self.ttl, self.failure_ttl, self.rotation_grace) = (ttl, failure_ttl, rotation_grace);
    }

    pub(super) fn rotation_grace(&self) -> Duration {
        self.rotation_grace
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
        let grace = if self.rotation_grace.is_zero() { Duration::ZERO } else { self.rotation_grace.max(self.ttl * 4) };
        if let Ok(answer) = found
            && addresses.learn(&sorted(answer), grace, now)
        {
            let left = addresses.current().copied().collect();
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
    use super::super::rotation::MEMORY;
    use super::*;

    const GRACE: Duration = Duration::from_secs(300);
    const TTL: Duration = Duration::from_secs(15);

    fn found(addresses: &[&str]) -> Found {
        Ok(addresses.iter().map(|ip| SocketAddr::new(ip.parse().expect("an address"), 0)).collect())
    }

    fn names() -> (Names, Instant) {
        let mut names = Names::default();
        names.set_times(TTL, TTL / 3, GRACE);
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
        let grace = (GRACE.as_secs() / TTL.as_secs()) as usize;
        let rest = ["10.0.0.2", "10.0.0.3"];
        for _ in 0..grace {
            assert_eq!(answer(&mut names, &rest), [0; 0]);
        }
        let told: Vec<_> = (0..3).flat_map(|_| answer(&mut names, &rest)).collect();
        assert_eq!(told, [2], "it is gone, once");
        // After a long time without a turn it is a name like others.
        for _ in 0..MEMORY.as_secs() / TTL.as_secs() {
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
