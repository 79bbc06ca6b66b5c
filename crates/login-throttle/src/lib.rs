//! Throttling of failed logins: delayed error messages, and delayed attempts from addresses with many failures.
//!
//! Each address and each user has a count of failures that halves every minute. The error of a failed login is delayed
//! by the larger of the two delays; a successful login is not delayed. From an address above ten failures, attempts
//! begin one after the other, [`Rules::delay`] apart; an attempt that would wait longer than [`Rules::delay_max`] is refused.
//! Other addresses are not affected, even for the same user.
//!
//! [`MockSecrets`] makes the login of an unknown user look like a failed login of a known one.
//!
//! Cost: one check per connection while any failure is recorded; none per query.
//!
//! ```
//! use std::{net::{IpAddr, Ipv4Addr}, time::Instant};
//! use tidegate_config::AuthConfig;
//! use tidegate_login_throttle::{FailedLogins, Rules};
//!
//! let (logins, rules) = (FailedLogins::default(), Rules::of(&AuthConfig::default()));
//! let (address, now) = (IpAddr::V4(Ipv4Addr::LOCALHOST), Instant::now());
//! assert!(logins.begin(address, rules, now).is_some_and(|wait| wait.is_zero()));
//! let delay = logins.fail(Some(address), "app", rules, now);
//! assert_eq!(delay, rules.delay);
//! ```

mod mock_secrets;

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tidegate_config::AuthConfig;

pub use mock_secrets::{MockSecrets, salt_secret};

/// Ignores poisoning: every critical section replaces whole values, so the data is consistent after a panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Half-life of a count of failures.
const HALF_LIFE: Duration = Duration::from_secs(60);

/// Failures with the shortest delay: passwords are mistyped, and applications start with old ones.
const FREE_FAILURES: u32 = 10;

/// Maximum number of addresses and of users with a record. Beyond it, records with few failures are evicted.
const RECORDS_MAX: usize = 4096;

/// Length of a user name in a record: NAMEDATALEN of Postgres.
const NAME_BYTES_MAX: usize = 63;

/// Sample size of the eviction.
const SAMPLE: usize = 16;

/// The configured limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Shortest delay; zero disables throttling.
    pub delay: Duration,
    /// Longest delay.
    pub delay_max: Duration,
}

impl Rules {
    /// The limits of a configuration.
    #[must_use]
    pub fn of(auth: &AuthConfig) -> Self {
        Self { delay: auth.failed_login_delay, delay_max: auth.failed_login_delay_max.max(auth.failed_login_delay) }
    }

    /// Delay after that many failures.
    fn after(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(FREE_FAILURES).min(16);
        self.delay.saturating_mul(1 << doublings).min(self.delay_max)
    }
}

/// The unit of counting addresses: an IPv4 address or an IPv6 /64 network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network(IpAddr);

impl Network {
    /// The network of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let bits = u128::from(address) & (u128::MAX << 64);
                Self(Ipv6Addr::from(bits).into())
            }
            address => Self(address),
        }
    }
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            IpAddr::V4(address) => address.fmt(f),
            IpAddr::V6(address) => write!(f, "{address}/64"),
        }
    }
}

/// Failures of one address or user.
#[derive(Clone, Copy, Debug)]
struct Record {
    failures: u32,
    /// Time of the last update of the count.
    at: Instant,
    /// Earliest start of the next attempt.
    next: Instant,
}

impl Record {
    fn new(now: Instant) -> Self {
        Self { failures: 0, at: now, next: now }
    }

    /// The count, decayed to `now`.
    fn failures(&self, now: Instant) -> u32 {
        let halvings = now.saturating_duration_since(self.at).as_secs() / HALF_LIFE.as_secs();
        self.failures.checked_shr(u32::try_from(halvings).unwrap_or(u32::MAX)).unwrap_or(0)
    }

    /// Adds a failure.
    fn fail(&mut self, now: Instant) -> u32 {
        self.failures = self.failures(now).saturating_add(1);
        self.at = now;
        self.failures
    }
}

/// Records by address or by user, bounded in number.
#[derive(Debug)]
struct Records<K>(HashMap<K, Record>);

impl<K> Default for Records<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Clone + Eq + Hash> Records<K> {
    fn fail(&mut self, key: &K, now: Instant) -> u32 {
        if let Some(record) = self.0.get_mut(key) {
            return record.fail(now);
        }
        if self.0.len() >= RECORDS_MAX {
            self.make_room(now);
        }
        self.0.entry(key.clone()).or_insert_with(|| Record::new(now)).fail(now)
    }

    /// Evicts the record with the fewest failures of a sample: scanning all would cost more than a login.
    fn make_room(&mut self, now: Instant) {
        let fewest = self.0.iter().take(SAMPLE).min_by_key(|(_, record)| record.failures(now));
        if let Some(key) = fewest.map(|(key, _)| key.clone()) {
            self.0.remove(&key);
        }
    }

    /// Removes records that have decayed.
    fn sweep(&mut self, now: Instant) {
        self.0.retain(|_, record| record.failures(now) > 0 || record.next > now);
    }
}

#[derive(Debug, Default)]
struct Tables {
    addresses: Records<Network>,
    users: Records<Arc<str>>,
}

/// Counters of failed logins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailedLoginCounts {
    /// Failed logins.
    pub failed: u64,
    /// Attempts that were delayed.
    pub delayed: u64,
    /// Attempts refused because too many from the same address were waiting.
    pub refused: u64,
}

/// An address or user with failures.
#[derive(Clone, Debug)]
pub struct FailedLoginSource {
    /// The address or user name.
    pub name: String,
    /// Failures, decayed.
    pub failures: u32,
    /// Delay of the next error message.
    pub delay: Duration,
}

/// Failed logins by address and by user.
#[derive(Debug, Default)]
pub struct FailedLogins {
    tables: Mutex<Tables>,
    /// Whether any record exists. Without one, connections skip the lock.
    any: AtomicBool,
    failed: AtomicU64,
    delayed: AtomicU64,
    refused: AtomicU64,
}

impl FailedLogins {
    /// Delay of a new attempt from this address; `None` if it is refused.
    pub fn begin(&self, address: IpAddr, rules: Rules, now: Instant) -> Option<Duration> {
        if !self.any.load(Ordering::Relaxed) || rules.delay.is_zero() {
            return Some(Duration::ZERO);
        }
        let mut tables = lock(&self.tables);
        let Some(record) = tables.addresses.0.get_mut(&Network::of(address)) else { return Some(Duration::ZERO) };
        if record.failures(now) <= FREE_FAILURES {
            return Some(Duration::ZERO);
        }
        let start = record.next.max(now);
        let wait = start - now;
        if wait > rules.delay_max {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        record.next = start + rules.delay;
        if !wait.is_zero() {
            self.delayed.fetch_add(1, Ordering::Relaxed);
        }
        Some(wait)
    }

    /// Records a failed login; the address is `None` for a unix socket. Returns the delay of its error message.
    pub fn fail(&self, address: Option<IpAddr>, user: &str, rules: Rules, now: Instant) -> Duration {
        self.failed.fetch_add(1, Ordering::Relaxed);
        if rules.delay.is_zero() {
            return Duration::ZERO;
        }
        let mut tables = lock(&self.tables);
        self.any.store(true, Ordering::Relaxed);
        let of_user = tables.users.fail(&user[..user.floor_char_boundary(NAME_BYTES_MAX)].into(), now);
        let of_address = address.map_or(0, |address| tables.addresses.fail(&Network::of(address), now));
        rules.after(of_user.max(of_address))
    }

    /// Removes decayed records. Called periodically.
    pub fn sweep(&self, now: Instant) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut tables = lock(&self.tables);
        tables.addresses.sweep(now);
        tables.users.sweep(now);
        self.any.store(!tables.addresses.0.is_empty() || !tables.users.0.is_empty(), Ordering::Relaxed);
    }

    /// Counters since the start.
    #[must_use]
    pub fn counts(&self) -> FailedLoginCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        FailedLoginCounts { failed: of(&self.failed), delayed: of(&self.delayed), refused: of(&self.refused) }
    }

    /// Addresses and users with failures, most failures first.
    #[must_use]
    pub fn offenders(&self, rules: Rules, now: Instant) -> (Vec<FailedLoginSource>, Vec<FailedLoginSource>) {
        fn listed<K: ToString>(records: &Records<K>, rules: Rules, now: Instant) -> Vec<FailedLoginSource> {
            let offender = |(key, record): (&K, &Record)| {
                let failures = record.failures(now);
                FailedLoginSource { name: key.to_string(), failures, delay: rules.after(failures.saturating_add(1)) }
            };
            let mut all: Vec<_> = records.0.iter().map(offender).filter(|offender| offender.failures > 0).collect();
            all.sort_by(|a, b| b.failures.cmp(&a.failures).then_with(|| a.name.cmp(&b.name)));
            all
        }
        let tables = lock(&self.tables);
        (listed(&tables.addresses, rules, now), listed(&tables.users, rules, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { delay: Duration::from_millis(100), delay_max: Duration::from_secs(5) };

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn delays_grow_with_failures_and_end() {
        let (logins, now) = (FailedLogins::default(), Instant::now());
        let delays: Vec<_> = (0..20).map(|_| logins.fail(Some(ip("10.0.0.1")), "app", RULES, now)).collect();
        assert!(delays[..10].iter().all(|delay| *delay == RULES.delay));
        assert_eq!(delays[10], RULES.delay * 2);
        assert_eq!(delays[19], RULES.delay_max);
        // The user's count applies to another address, and the address's count to another user.
        assert_eq!(logins.fail(Some(ip("10.0.0.2")), "app", RULES, now), RULES.delay_max);
        assert_eq!(logins.fail(Some(ip("10.0.0.1")), "other", RULES, now), RULES.delay_max);
        assert_eq!(logins.fail(Some(ip("10.0.0.2")), "other", RULES, now), RULES.delay);
        let later = now + HALF_LIFE * 6;
        assert_eq!(logins.fail(Some(ip("10.0.0.1")), "app", RULES, later), RULES.delay);
        logins.sweep(now + HALF_LIFE * 40);
        assert!(!logins.any.load(Ordering::Relaxed));
    }

    #[test]
    fn only_an_address_with_many_failures_waits() {
        let (logins, now) = (FailedLogins::default(), Instant::now());
        let (bad, good) = (ip("10.0.0.1"), ip("10.0.0.2"));
        for _ in 0..FREE_FAILURES {
            logins.fail(Some(bad), "app", RULES, now);
        }
        assert_eq!(logins.begin(bad, RULES, now), Some(Duration::ZERO));
        logins.fail(Some(bad), "app", RULES, now);
        let waits: Vec<_> = (0..60).map(|_| logins.begin(bad, RULES, now)).collect();
        assert_eq!(waits[..3], [Some(Duration::ZERO), Some(RULES.delay), Some(RULES.delay * 2)]);
        assert_eq!(waits.iter().filter(|wait| wait.is_none()).count(), 9, "what would wait too long is refused");
        assert_eq!(logins.begin(good, RULES, now), Some(Duration::ZERO));
        assert_eq!(logins.begin(bad, RULES, now + HALF_LIFE), Some(Duration::ZERO));
        assert_eq!(logins.counts(), FailedLoginCounts { failed: 11, delayed: 50, refused: 9 });
        let off = Rules { delay: Duration::ZERO, ..RULES };
        assert_eq!(
            (logins.begin(bad, off, now), logins.fail(Some(bad), "app", off, now)),
            (Some(off.delay), off.delay)
        );
    }

    #[test]
    fn the_memory_for_failures_is_bounded() {
        let (logins, now) = (FailedLogins::default(), Instant::now());
        for _ in 0..20 {
            logins.fail(Some(ip("192.0.2.1")), "victim", RULES, now);
        }
        for number in 0..20_000_u32 {
            logins.fail(Some(std::net::Ipv4Addr::from(number).into()), &number.to_string(), RULES, now);
        }
        let (addresses, users) = logins.offenders(RULES, now);
        assert_eq!((addresses.len(), users.len()), (RECORDS_MAX, RECORDS_MAX));
        assert_eq!((addresses[0].name.as_str(), users[0].name.as_str()), ("192.0.2.1", "victim"));
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address() {
        assert_eq!(Network::of(ip("2001:db8::1")), Network::of(ip("2001:db8::2:3")));
        assert_ne!(Network::of(ip("2001:db8::1")), Network::of(ip("2001:db8:0:1::1")));
        assert_eq!(Network::of(ip("::ffff:10.0.0.1")), Network::of(ip("10.0.0.1")));
        assert_eq!(Network::of(ip("2001:db8::1")).to_string(), "2001:db8::/64");
    }
}
