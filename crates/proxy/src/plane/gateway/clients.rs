//! Clients: their number, their limits and the state of logins.

use std::{
    collections::HashMap,
    io,
    net::IpAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use tidegate_config::{AuthConfig, SharedLimits};
use tidegate_login_throttle::{FailedLogins, salt_secret};
use tidegate_pg_client::ConnectionIds;
use tidegate_wire::auth::scram::Verifier;

use super::{
    lock,
    outcomes::ClientOutcomes,
    quota::{ClientQuotas, CountGuard, QuotaExceeded, QuotaGuard},
};

/// Concurrent password checks by PAM or LDAP. Each occupies a thread for its duration.
const PASSWORD_CHECKS_MAX: usize = 16;

/// The clients of one gateway.
pub struct Clients {
    /// Clients per thread, for placement and for the limit.
    pub per_thread: Vec<AtomicUsize>,
    ids: ConnectionIds,
    quotas: ClientQuotas,
    /// Verifiers computed from configured passwords: by user, with the password.
    verifiers: Mutex<HashMap<String, (String, Verifier)>>,
    /// Source of the salts of users without a verifier.
    salt_secret: [u8; 32],
    /// Delays after failed logins.
    pub failed_logins: FailedLogins,
    /// Disconnects and refused logins by reason.
    pub outcomes: ClientOutcomes,
    /// Permits for password checks by PAM or LDAP.
    pub password_checks: Arc<tokio::sync::Semaphore>,
}

impl Clients {
    /// # Errors
    /// If the system has no random numbers.
    pub(super) fn new(threads: usize, auth: &AuthConfig, ids: ConnectionIds) -> io::Result<Self> {
        Ok(Self {
            per_thread: (0..threads).map(|_| AtomicUsize::new(0)).collect(),
            ids,
            quotas: ClientQuotas::default(),
            verifiers: Mutex::default(),
            salt_secret: salt_secret(&auth.salt_secret)?,
            failed_logins: FailedLogins::default(),
            outcomes: ClientOutcomes::default(),
            password_checks: Arc::new(tokio::sync::Semaphore::new(PASSWORD_CHECKS_MAX)),
        })
    }

    /// Number of threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.per_thread.len()
    }

    /// Number of connected clients.
    #[must_use]
    pub fn count(&self) -> usize {
        self.per_thread.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The id of a new client, unique among the clients and servers of this process.
    pub fn next_id(&self) -> u64 {
        self.ids.assign()
    }

    /// Counts a client of a database and a user.
    ///
    /// # Errors
    /// The limit that is reached.
    pub fn admit(&self, database: &str, user: &str, limits: &SharedLimits) -> Result<QuotaGuard, QuotaExceeded> {
        self.quotas.admit(database, user, limits)
    }

    /// Counts a client of an address; `None` if there are `max` already.
    pub fn admit_address(&self, address: IpAddr, max: u32) -> Option<CountGuard> {
        self.quotas.admit_address(address, max)
    }

    /// Counts a connection of an address before its login; `None` if there are `max` already.
    pub fn admit_arrival(&self, address: IpAddr, max: u32) -> Option<CountGuard> {
        self.quotas.admit_arrival(address, max)
    }

    /// The cached verifier of a user with this configured password. Computing one takes milliseconds.
    #[must_use]
    pub fn known_verifier(&self, user: &str, password: &str, iterations: u32) -> Option<Verifier> {
        let known = lock(&self.verifiers);
        let matches = |known: &&(String, Verifier)| known.0 == password && known.1.iterations() == iterations;
        known.get(user).filter(matches).map(|(_, verifier)| verifier.clone())
    }

    /// Caches a verifier for the next login of the user.
    pub fn keep_verifier(&self, user: &str, password: &str, verifier: Verifier) {
        lock(&self.verifiers).insert(user.to_owned(), (password.to_owned(), verifier));
    }

    /// A verifier that no password matches, with the salt of a user without a verifier.
    #[must_use]
    pub fn mock_verifier(&self, user: &str, iterations: u32) -> Verifier {
        Verifier::fake(user.as_bytes(), &self.salt_secret, iterations)
    }

    pub(super) fn salt_secret(&self) -> &[u8; 32] {
        &self.salt_secret
    }
}
