//! Secrets that came up when clients logged in, for logins to servers.
//!
//! Each belongs to an entry of `[databases]` and a user: on the servers of two databases, roles of one name may have
//! different passwords, and the same password has a verifier on each.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tidegate_config::{Host, PoolPlan, Secret, UserSecret};
use tidegate_wire::auth::scram::SaltedKeys;

/// An entry of `[databases]`, and a user.
type Whose = (String, String);

/// See the [module](self).
#[derive(Default)]
pub struct Secrets {
    /// What look-ups gave.
    looked_up: Mutex<HashMap<Whose, UserSecret>>,
    /// The iterations of the verifier that was looked up last, by entry; none if it was a password or a hash.
    iterations: Mutex<HashMap<String, Option<u32>>>,
    /// Passwords that somebody else has found right, PAM for one: those of servers, whatever is configured.
    vouched: Mutex<HashMap<Whose, Secret>>,
    /// Keys of clients that have logged in by SCRAM, each with the verifier that it fits.
    of_clients: Mutex<HashMap<Whose, (Secret, SaltedKeys)>>,
    /// Keys derived from configured passwords, so that each is derived once: by user and host, with the password that
    /// they were derived of.
    derived: Mutex<HashMap<(String, Host), (Secret, SaltedKeys)>>,
}

/// A verifier that is configured opens the servers of any entry that have the same one.
const ANY_ENTRY: &str = "";

fn whose(entry: &str, user: &str) -> Whose {
    (entry.to_owned(), user.to_owned())
}

/// A holder that panicked left a sound map: each section does one thing.
fn lock<T>(map: &Mutex<T>) -> MutexGuard<'_, T> {
    map.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Secrets {
    /// What a look-up gave for a client of that entry; nothing for a user who has no password, or no valid one.
    pub fn note_look_up(&self, entry: &str, user: &str, secret: Option<&UserSecret>) {
        if let Some(secret) = secret {
            let iterations = secret.iterations();
            lock(&self.iterations).insert(entry.to_owned(), iterations);
        }
        let mut known = lock(&self.looked_up);
        match secret {
            Some(secret) => drop(known.insert(whose(entry, user), secret.clone())),
            None => drop(known.remove(&whose(entry, user))),
        }
    }

    /// The iterations of the verifier that was looked up last for a client of that entry, or that it was none; nothing if no
    /// user was looked up yet.
    pub fn looked_up_iterations(&self, entry: &str) -> Option<Option<u32>> {
        lock(&self.iterations).get(entry).copied()
    }

    /// A password that somebody else has found right.
    pub fn note_vouched(&self, entry: &str, user: &str, password: Secret) {
        lock(&self.vouched).insert(whose(entry, user), password);
    }

    /// Clients prove themselves in other ways from now on: what is configured holds again.
    pub fn forget_vouched(&self) {
        lock(&self.vouched).clear();
    }

    /// The keys of a client that has proven itself by a verifier: one that was looked up for this entry, or, if there is
    /// no entry, one that is configured.
    pub fn note_keys(&self, entry: Option<&str>, user: &str, verifier: &Secret, keys: SaltedKeys) {
        lock(&self.of_clients).insert(whose(entry.unwrap_or(ANY_ENTRY), user), (verifier.clone(), keys));
    }

    /// The keys that fit a verifier.
    pub(super) fn keys(&self, plan: &PoolPlan, verifier: &Secret) -> Option<SaltedKeys> {
        let known = lock(&self.of_clients);
        let of = |entry| known.get(&whose(entry, &plan.user)).filter(|(of, _)| of == verifier);
        of(ANY_ENTRY).or_else(|| of(&plan.entry)).map(|(_, keys)| keys.clone())
    }

    /// Keys that were derived of a password.
    pub(super) fn derived(&self, user: &str, host: &Host, password: &Secret) -> Option<SaltedKeys> {
        let known = lock(&self.derived);
        // Another database may have another password for the same user.
        known.get(&(user.to_owned(), host.clone())).filter(|(of, _)| of == password).map(|(_, keys)| keys.clone())
    }

    /// Keeps what was derived of a password.
    pub(super) fn note_derived(&self, user: &str, host: &Host, password: &Secret, keys: SaltedKeys) {
        lock(&self.derived).insert((user.to_owned(), host.clone()), (password.clone(), keys));
    }

    /// Passwords may have changed: keys are derived anew.
    pub fn forget_derived(&self) {
        lock(&self.derived).clear();
    }

    /// The secret that was found when a client came: the password that somebody vouched for, or, if none is configured,
    /// what was looked up.
    pub(super) fn found(&self, plan: &PoolPlan) -> Option<UserSecret> {
        let whose = whose(&plan.entry, &plan.user);
        if !plan.forced_user
            && let Some(password) = lock(&self.vouched).get(&whose)
        {
            return Some(UserSecret::Plain(password.clone()));
        }
        if plan.secret.is_some() {
            return None;
        }
        lock(&self.looked_up).get(&whose).cloned()
    }
}
