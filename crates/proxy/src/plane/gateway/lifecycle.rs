//! The phase of the gateway, the orders of operators and the tree of tasks.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard},
    time::SystemTime,
};

use tidegate_pg_client::resolve::Resolver;
use tidegate_supervise::{Scope, Supervisor, Tokio};
use tidegate_tasks as tree;
use tidegate_tasks::{Duty, Ear};

use super::lock;

/// What the operator wants of the whole gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Phase {
    /// It works.
    #[default]
    Active,
    /// No server is given out.
    Paused,
    /// No server is given out, and none is closed for that.
    Suspended,
    /// No new client is let in; it ends when the last one has left.
    WaitingForClients,
    /// Clients are sent away as soon as they have no transaction open.
    WaitingForTransactions,
    /// It ends now.
    Stopping,
}

impl Phase {
    /// Whether no server of any database is given out.
    #[must_use]
    pub const fn holds_all(self) -> bool {
        matches!(self, Self::Paused | Self::Suspended)
    }

    /// Whether the gateway is not about to end.
    #[must_use]
    pub const fn goes_on(self) -> bool {
        matches!(self, Self::Active | Self::Paused | Self::Suspended)
    }
}

/// Orders for single databases; those for the whole gateway are its [`Phase`].
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// All were held when a stop began that waits for clients: they still are.
    pub(super) all_held: bool,
    pub(super) paused: BTreeSet<String>,
    pub(super) disabled: BTreeSet<String>,
}

/// What runs, and what operators have ordered.
pub struct Lifecycle {
    phase: Mutex<Phase>,
    /// Notified when the phase changes.
    pub phase_changed: tokio::sync::Notify,
    orders: Mutex<Orders>,
    /// The root of the tree of tasks.
    pub scope: Scope,
    /// Clients of all threads.
    pub client_scope: Scope,
    /// Listeners.
    pub listen_scope: Scope<Ear>,
    /// Periodic tasks of the control plane.
    pub duties: Supervisor<Tokio, Duty>,
    /// Timers of the threads.
    pub sweep_scope: Scope<usize>,
    /// Server connections of all pools.
    pub server_scope: Scope,
    /// Start of the gateway.
    pub started_at: SystemTime,
}

impl Lifecycle {
    pub(super) fn new(resolver: &Resolver) -> Self {
        let scope: Scope = Scope::root("tidegate");
        Self {
            phase: Mutex::default(),
            phase_changed: tokio::sync::Notify::new(),
            orders: Mutex::default(),
            client_scope: scope.child("clients"),
            listen_scope: tree::control(&scope, "listen").build(),
            duties: tree::control(&scope, "control").phase(1).build().on(resolver.runtime()),
            sweep_scope: scope.child_builder("sweeps").phase(1).build(),
            server_scope: scope.child_builder("servers").phase(2).build(),
            scope,
            started_at: SystemTime::now(),
        }
    }

    pub(super) fn orders(&self) -> MutexGuard<'_, Orders> {
        lock(&self.orders)
    }

    pub(super) fn lock_phase(&self) -> MutexGuard<'_, Phase> {
        lock(&self.phase)
    }

    /// Whether no server of a database is given out.
    #[must_use]
    pub fn is_paused(&self, database: &str) -> bool {
        self.holds_all() || lock(&self.orders).paused.contains(database)
    }

    /// Whether no server of any database is given out, be it that a stop has begun since.
    #[must_use]
    pub fn holds_all(&self) -> bool {
        self.phase().holds_all() || lock(&self.orders).all_held
    }

    /// What the operator wants of the gateway.
    #[must_use]
    pub fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    /// Lets no new client into a database.
    pub fn disable(&self, database: &str) {
        lock(&self.orders).disabled.insert(database.to_owned());
    }

    /// Undoes [`Gateway::disable`].
    pub fn enable(&self, database: &str) {
        lock(&self.orders).disabled.remove(database);
    }

    /// Whether no new client is let into a database.
    #[must_use]
    pub fn is_disabled(&self, database: &str) -> bool {
        lock(&self.orders).disabled.contains(database)
    }
}
