//! Cache of look-ups, which also detects changed addresses. Pure: the time is an argument.
//!
//! An address that is missing from an answer is removed, unless the name [rotates](super::rotation).

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::{Duration, Instant},
};

use super::rotation::AddressRotation;

/// Result of a look-up; ports are meaningless.
pub(super) type LookupResult = Result<Vec<SocketAddr>, String>;

/// A cached name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedName {
    /// The name.
    pub name: String,
    /// Remaining time of the cache entry.
    pub left: Duration,
    /// The addresses; empty after a failed look-up.
    pub addresses: Vec<IpAddr>,
}

/// A name whose addresses have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedName {
    /// The name.
    pub name: String,
    /// The current addresses.
    pub addresses: Vec<IpAddr>,
}

#[derive(Debug)]
struct CacheEntry {
    found: LookupResult,
    until: Instant,
    addresses: AddressRotation<IpAddr>,
}

/// The cached names.
#[derive(Debug, Default)]
pub(super) struct NameCache {
    ttl: Duration,
    failure_ttl: Duration,
    rotation_grace: Duration,
    known: BTreeMap<String, CacheEntry>,
    changed: Vec<ChangedName>,
}

/// Limit of names. They come from the configuration, but clients may choose a name where `*` is used.
const NAMES_MAX: usize = 10_000;

impl NameCache {
    /// Sets how long successful and failed look-ups are cached, and how long an address of a rotating name may be missing.
    pub(super) fn set_times(&mut self, ttl: Duration, failure_ttl: Duration, rotation_grace: Duration) {
        (self.ttl, self.failure_ttl, self.rotation_grace) = (ttl, failure_ttl, rotation_grace);
    }

    pub(super) fn rotation_grace(&self) -> Duration {
        self.rotation_grace
    }

    /// Returns the cached result if it is still valid.
    pub(super) fn get(&self, name: &str, now: Instant) -> Option<LookupResult> {
        self.known.get(name).filter(|known| now < known.until).map(|known| known.found.clone())
    }

    /// Records the result of a look-up.
    pub(super) fn record(&mut self, name: &str, found: &LookupResult, now: Instant) {
        let ttl = if found.is_ok() { self.ttl } else { self.failure_ttl };
        let known = self.known.remove(name);
        if ttl.is_zero() && self.ttl.is_zero() {
            return;
        }
        let mut addresses = known.map(|known| known.addresses).unwrap_or_default();
        // Failed look-ups change no addresses.
        let grace = if self.rotation_grace.is_zero() { Duration::ZERO } else { self.rotation_grace.max(self.ttl * 4) };
        if let Ok(answer) = found
            && addresses.record(&sorted(answer), grace, now)
        {
            let left = addresses.current().copied().collect();
            self.changed.push(ChangedName { name: name.to_owned(), addresses: left });
        }
        if self.known.len() < NAMES_MAX {
            self.known.insert(name.to_owned(), CacheEntry { found: found.clone(), until: now + ttl, addresses });
        }
    }

    /// Returns the names that have changed since the last call.
    pub(super) fn take_changed(&mut self) -> Vec<ChangedName> {
        std::mem::take(&mut self.changed)
    }

    /// All cached names, in order.
    pub(super) fn known(&self, now: Instant) -> Vec<CachedName> {
        let one = |(name, known): (&String, &CacheEntry)| CachedName {
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

    fn found(addresses: &[&str]) -> LookupResult {
        Ok(addresses.iter().map(|ip| SocketAddr::new(ip.parse().expect("an address"), 0)).collect())
    }

    fn names() -> (NameCache, Instant) {
        let mut names = NameCache::default();
        names.set_times(TTL, TTL / 3, GRACE);
        (names, Instant::now())
    }

    #[test]
    fn look_ups_are_cached_for_their_ttl() {
        let (mut names, now) = names();
        assert_eq!(names.get("db", now), None);
        names.record("db", &found(&["10.0.0.1"]), now);
        assert_eq!(names.get("db", now + TTL - Duration::from_nanos(1)), Some(found(&["10.0.0.1"])));
        assert_eq!(names.get("db", now + TTL), None);
        names.record("gone", &Err("no such host".to_owned()), now);
        assert!(names.get("gone", now).is_some_and(|found| found.is_err()));
        assert_eq!(names.get("gone", now + TTL / 3), None);
        let known = names.known(now + TTL / 3);
        assert_eq!((known[0].name.as_str(), known[0].left, known[1].addresses.len()), ("db", TTL / 3 * 2, 0));
    }

    #[test]
    fn changed_name_is_reported_once() {
        let (mut names, now) = names();
        names.record("db", &found(&["10.0.0.1", "10.0.0.2"]), now);
        names.record("db", &found(&["10.0.0.2", "10.0.0.1"]), now);
        names.record("db", &Err("the name server is away".to_owned()), now);
        assert_eq!(names.take_changed(), [], "neither another order nor a failure is a change");
        names.record("db", &found(&["10.0.0.2"]), now);
        let changed = ChangedName { name: "db".to_owned(), addresses: vec!["10.0.0.2".parse().expect("an address")] };
        assert_eq!(names.take_changed(), [changed]);
        assert_eq!(names.take_changed(), []);
    }

    #[test]
    fn rotating_name_changes_once() {
        let (mut names, start) = names();
        let mut now = start;
        let mut answer = |names: &mut NameCache, addresses: &[&str]| {
            now += TTL;
            names.record("db", &found(addresses), now);
            let left = |changed: ChangedName| changed.addresses.len();
            names.take_changed().into_iter().map(left).collect::<Vec<_>>()
        };
        let turns = [["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.3"], ["10.0.0.3", "10.0.0.1"]];
        assert_eq!(answer(&mut names, &turns[0]), [0; 0]);
        assert_eq!(answer(&mut names, &turns[1]), [2], "the rotation is not detected yet");
        for round in 0..1000 {
            assert_eq!(answer(&mut names, &turns[(round + 2) % 3]), [0; 0], "round {round}");
        }
        // Remove an address for good.
        let grace = (GRACE.as_secs() / TTL.as_secs()) as usize;
        let rest = ["10.0.0.2", "10.0.0.3"];
        for _ in 0..grace {
            assert_eq!(answer(&mut names, &rest), [0; 0]);
        }
        let reported: Vec<_> = (0..3).flat_map(|_| answer(&mut names, &rest)).collect();
        assert_eq!(reported, [2], "removed once");
        // After a long time without rotation the name counts as an ordinary one.
        for _ in 0..MEMORY.as_secs() / TTL.as_secs() {
            assert_eq!(answer(&mut names, &rest), [0; 0]);
        }
        assert_eq!(answer(&mut names, &["10.0.0.9"]), [1]);
    }

    #[test]
    fn nothing_is_cached_without_a_ttl() {
        let mut names = NameCache::default();
        let now = Instant::now();
        names.record("db", &found(&["10.0.0.1"]), now);
        assert!(names.known(now).is_empty() && names.get("db", now).is_none());
    }
}
