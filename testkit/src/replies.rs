//! The guarantee that no reply ever reaches the wrong client, as a checker.
//!
//! Every query carries a tag that no other query has. [`Replies`] knows whose each is, and whether it was answered. A
//! client reports what it received; a tag of someone else, a tag twice, or a tag out of order is a violation.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

/// The tags of all clients of a test. Shared between their threads: a mutex suffices, a query costs far more.
#[derive(Default)]
pub struct Replies {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    open: HashMap<u64, usize>,
    answered: u64,
    abandoned: u64,
    violations: Vec<String>,
}

impl Replies {
    /// Nothing asked yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A fresh tag for a query of this client.
    pub fn ask(&self, client: usize) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        let tag = state.next;
        state.open.insert(tag, client);
        tag
    }

    /// This client received the reply with this text, and expected that of `tag`.
    pub fn received(&self, client: usize, tag: u64, text: &str) {
        let mut state = self.lock();
        let owner = state.open.get(&tag).copied();
        if text == tag.to_string() && owner == Some(client) {
            state.open.remove(&tag);
            state.answered += 1;
            return;
        }
        let whose = text.parse().ok().and_then(|other: u64| state.open.get(&other).copied());
        let violation =
            format!("client {client} expected {tag} and received {text:?} (open for {whose:?}; {tag} of {owner:?})");
        state.violations.push(violation);
    }

    /// Something came that this client did not ask for.
    pub fn violation(&self, client: usize, what: &str) {
        self.lock().violations.push(format!("client {client}: {what}"));
    }

    /// The reply will not come, or will not be looked at: the client or its server went away, or the query failed.
    pub fn abandon(&self, tag: u64) {
        let mut state = self.lock();
        state.open.remove(&tag);
        state.abandoned += 1;
    }

    /// How many replies reached their clients.
    pub fn answered(&self) -> u64 {
        self.lock().answered
    }

    /// Fails if any reply reached the wrong client, or was lost without a reason.
    #[track_caller]
    pub fn check(&self) {
        let state = self.lock();
        let mut report = String::new();
        for violation in state.violations.iter().take(20) {
            // Writing to a String cannot fail.
            let _ = writeln!(report, "  {violation}");
        }
        assert!(state.violations.is_empty(), "{} replies went astray:\n{report}", state.violations.len());
        assert!(state.open.is_empty(), "queries without an outcome: {:?}", state.open);
        eprintln!("{} replies, {} abandoned", state.answered, state.abandoned);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
