//! Secrets obtained when clients logged in, for logins to servers.
//!
//! Each secret belongs to an entry of `[databases]` and a user: roles of the same name may have different passwords on the
//! servers of two databases, and a password has a different verifier on each server.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tidegate_config::{Host, PoolPlan, Secret, UserSecret};
use tidegate_wire::auth::scram::SaltedKeys;

/// Entry of `[databases]`, and user.
type UserKey = (String, String);

/// Secrets for logins to servers. See the [module](self).
#[derive(Default)]
pub struct Secrets {
    /// Results of auth_query.
    looked_up: Mutex<HashMap<UserKey, UserSecret>>,
    /// Iterations of the last looked-up verifier, by entry. `None` if it was a password or an md5 hash.
    iterations: Mutex<HashMap<String, Option<u32>>>,
    /// Passwords verified by an external method such as PAM; they take precedence over configured ones.
    external: Mutex<HashMap<UserKey, Secret>>,
    /// Keys of clients that logged in by SCRAM, with the verifier that they match.
    client_keys: Mutex<HashMap<UserKey, (Secret, SaltedKeys)>>,
    /// Keys derived from configured passwords, each derived once: by user and host, with the password.
    derived: Mutex<HashMap<(String, Host), (Secret, SaltedKeys)>>,
}

/// Secrets of one user of a pool, for a process that takes its clients over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoginSecrets {
    /// Result of auth_query.
    pub looked_up: Option<UserSecret>,
    /// Password verified by an external method.
    pub external: Option<Secret>,
    /// Keys of a client that logged in by SCRAM with a configured verifier.
    pub configured_keys: Option<(Secret, SaltedKeys)>,
    /// Keys of a client that logged in by SCRAM with a looked-up verifier.
    pub looked_up_keys: Option<(Secret, SaltedKeys)>,
}

impl LoginSecrets {
    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A configured verifier is valid for the servers of every entry that have the same one.
const ANY_ENTRY: &str = "";

fn user_key(entry: &str, user: &str) -> UserKey {
    (entry.to_owned(), user.to_owned())
}

/// A holder that panicked left a consistent map: each section makes one change.
fn lock<T>(map: &Mutex<T>) -> MutexGuard<'_, T> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Secrets {
    /// Records the result of auth_query for a client of `entry`; `None` if the user has no valid password.
    pub fn record_lookup(&self, entry: &str, user: &str, secret: Option<&UserSecret>) {
        if let Some(secret) = secret {
            let iterations = secret.iterations();
            lock(&self.iterations).insert(entry.to_owned(), iterations);
        }
        let mut known = lock(&self.looked_up);
        match secret {
            Some(secret) => drop(known.insert(user_key(entry, user), secret.clone())),
            None => drop(known.remove(&user_key(entry, user))),
        }
    }

    /// Returns the iterations of the last looked-up verifier of `entry`: `Some(None)` for a password or an md5 hash, `None` if no
    /// user was looked up.
    pub fn lookup_iterations(&self, entry: &str) -> Option<Option<u32>> {
        lock(&self.iterations).get(entry).copied()
    }

    /// Records a password that an external method has verified.
    pub fn record_external_password(&self, entry: &str, user: &str, password: Secret) {
        lock(&self.external).insert(user_key(entry, user), password);
    }

    /// Removes externally verified passwords, because the authentication method has changed.
    pub fn clear_external_passwords(&self) {
        lock(&self.external).clear();
    }

    /// Records the keys of a client that has proven itself by a verifier: looked up for `entry`, or configured if there is no
    /// entry.
    pub fn record_client_keys(&self, entry: Option<&str>, user: &str, verifier: &Secret, keys: SaltedKeys) {
        lock(&self.client_keys).insert(user_key(entry.unwrap_or(ANY_ENTRY), user), (verifier.clone(), keys));
    }

    /// Returns the keys that match a verifier.
    pub(super) fn keys(&self, plan: &PoolPlan, verifier: &Secret) -> Option<SaltedKeys> {
        let known = lock(&self.client_keys);
        let of = |entry| known.get(&user_key(entry, &plan.user)).filter(|(of, _)| of == verifier);
        of(ANY_ENTRY).or_else(|| of(&plan.entry)).map(|(_, keys)| keys.clone())
    }

    /// Returns the keys derived from a password.
    pub(super) fn derived(&self, user: &str, host: &Host, password: &Secret) -> Option<SaltedKeys> {
        let known = lock(&self.derived);
        // Another database may have another password for the same user.
        known.get(&(user.to_owned(), host.clone())).filter(|(of, _)| of == password).map(|(_, keys)| keys.clone())
    }

    /// Records keys derived from a password.
    pub(super) fn record_derived(&self, user: &str, host: &Host, password: &Secret, keys: SaltedKeys) {
        lock(&self.derived).insert((user.to_owned(), host.clone()), (password.clone(), keys));
    }

    /// Removes derived keys, because passwords may have changed.
    pub fn clear_derived(&self) {
        lock(&self.derived).clear();
    }

    /// Returns all secrets of the user of a pool, except those that follow from the configuration.
    #[must_use]
    pub fn export(&self, plan: &PoolPlan) -> LoginSecrets {
        let own = user_key(&plan.entry, &plan.user);
        let client_keys = lock(&self.client_keys);
        LoginSecrets {
            looked_up: lock(&self.looked_up).get(&own).cloned(),
            external: lock(&self.external).get(&own).cloned(),
            configured_keys: client_keys.get(&user_key(ANY_ENTRY, &plan.user)).cloned(),
            looked_up_keys: client_keys.get(&own).cloned(),
        }
    }

    /// Adopts secrets of [`Self::export`] where nothing is known. What this process has obtained is more recent.
    pub fn adopt(&self, plan: &PoolPlan, secrets: LoginSecrets) {
        let LoginSecrets { looked_up, external, configured_keys, looked_up_keys } = secrets;
        let own = user_key(&plan.entry, &plan.user);
        if let Some(secret) = looked_up.filter(|_| !lock(&self.looked_up).contains_key(&own)) {
            self.record_lookup(&plan.entry, &plan.user, Some(&secret));
        }
        if let Some(password) = external {
            lock(&self.external).entry(own.clone()).or_insert(password);
        }
        let mut known = lock(&self.client_keys);
        for (key, keys) in [(user_key(ANY_ENTRY, &plan.user), configured_keys), (own, looked_up_keys)] {
            if let Some(keys) = keys {
                known.entry(key).or_insert(keys);
            }
        }
    }

    /// Returns the secret obtained at login: the externally verified password, or the looked-up secret if none is configured.
    pub(super) fn login_secret(&self, plan: &PoolPlan) -> Option<UserSecret> {
        let user_key = user_key(&plan.entry, &plan.user);
        if !plan.forced_user
            && let Some(password) = lock(&self.external).get(&user_key)
        {
            return Some(UserSecret::Plain(password.clone()));
        }
        if plan.secret.is_some() {
            return None;
        }
        lock(&self.looked_up).get(&user_key).cloned()
    }
}
