//! Checks that no reply reaches the wrong client.
//!
//! Every query carries a unique tag. [`Replies`] stores the client of each tag and whether the reply was received.
//! Clients report the replies they receive; a tag of another client, a repeated tag or a tag out of order is a
//! violation.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

/// The tags of all clients of a test, shared between their threads.
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
    /// No tags yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a new tag for a query of this client.
    pub fn new_tag(&self, client: usize) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        let tag = state.next;
        state.open.insert(tag, client);
        tag
    }

    /// Records that the client received this text where it expected the reply with `tag`.
    pub fn received(&self, client: usize, tag: u64, text: &str) {
        let mut state = self.lock();
        let owner = state.open.get(&tag).copied();
        if text == tag.to_string() && owner == Some(client) {
            state.open.remove(&tag);
            state.answered += 1;
            return;
        }
        let actual_owner = text.parse().ok().and_then(|other: u64| state.open.get(&other).copied());
        let violation = format!(
            "client {client} expected {tag} and received {text:?} (open for {actual_owner:?}; {tag} of {owner:?})"
        );
        state.violations.push(violation);
    }

    /// Records a message that the client did not expect.
    pub fn violation(&self, client: usize, description: &str) {
        self.lock().violations.push(format!("client {client}: {description}"));
    }

    /// Records that the reply is not expected any more: the client or its server disconnected, or the query failed.
    pub fn abandon(&self, tag: u64) {
        let mut state = self.lock();
        state.open.remove(&tag);
        state.abandoned += 1;
    }

    /// The number of replies that reached their client.
    pub fn answered(&self) -> u64 {
        self.lock().answered
    }

    /// Fails if a reply reached the wrong client, or if a query has no outcome.
    #[track_caller]
    pub fn check(&self) {
        let state = self.lock();
        let mut report = String::new();
        for violation in state.violations.iter().take(20) {
            // Writing to a String cannot fail.
            let _ = writeln!(report, "  {violation}");
        }
        assert!(state.violations.is_empty(), "{} replies reached the wrong client:\n{report}", state.violations.len());
        assert!(state.open.is_empty(), "queries without an outcome: {:?}", state.open);
        eprintln!("{} replies, {} abandoned", state.answered, state.abandoned);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
