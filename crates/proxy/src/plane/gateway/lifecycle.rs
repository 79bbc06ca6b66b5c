//! The phase of the gateway, the orders of operators and the tree of tasks.

use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use tidegate_pg_client::resolve::Resolver;
use tidegate_supervise::{Scope, Supervisor, Tokio};
use tidegate_tasks as tasks;
use tidegate_tasks::{ControlTask, ListenerKey};

use super::lock;

/// Phase of the gateway, as set by operators and signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Phase {
    /// Serving.
    #[default]
    Active,
    /// PAUSE: no server connection is leased.
    Paused,
    /// SUSPEND: no server connection is leased, and none is closed.
    Suspended,
    /// Shutdown that waits for clients: no new client is admitted.
    WaitingForClients,
    /// Shutdown that waits for transactions: clients are disconnected outside a transaction.
    WaitingForTransactions,
    /// Immediate shutdown.
    Stopping,
}

impl Phase {
    /// Whether no server connection of any database is leased.
    #[must_use]
    pub const fn holds_all(self) -> bool {
        matches!(self, Self::Paused | Self::Suspended)
    }

    /// Whether the gateway is not shutting down.
    #[must_use]
    pub const fn goes_on(self) -> bool {
        matches!(self, Self::Active | Self::Paused | Self::Suspended)
    }
}

/// Orders for single databases. Orders for all are the [`Phase`].
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// All databases were paused when a shutdown began, and stay paused.
    pub(super) all_held: bool,
    pub(super) paused: BTreeSet<String>,
    pub(super) disabled: BTreeSet<String>,
}

/// Phase, orders and tasks of the gateway.
pub struct Lifecycle {
    phase: Mutex<Phase>,
    /// Notified when the phase changes.
    pub phase_changed: tokio::sync::Notify,
    orders: Mutex<Orders>,
    /// Another process has taken the listeners over.
    is_handed_over: AtomicBool,
    /// See [`Lifecycle::is_draining`].
    draining: AtomicBool,
    /// The root of the tree of tasks.
    pub scope: Scope,
    /// Clients of all threads.
    pub client_scope: Scope,
    /// Listeners over TCP, and the hand-over socket.
    pub listen_scope: Scope<ListenerKey>,
    /// Listeners of unix sockets, which PgBouncer keeps during a shutdown.
    pub unix_listen_scope: Scope<ListenerKey>,
    /// Periodic tasks of the control plane.
    pub control_tasks: Supervisor<Tokio, ControlTask>,
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
            is_handed_over: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            client_scope: scope.child("clients"),
            listen_scope: tasks::observed_scope(&scope, "listen").build(),
            unix_listen_scope: tasks::observed_scope(&scope, "listen-unix").build(),
            control_tasks: tasks::observed_scope(&scope, "control").phase(1).build().on(resolver.runtime()),
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

    /// Whether no server connection of a database is leased.
    #[must_use]
    pub fn is_paused(&self, database: &str) -> bool {
        self.holds_all() || lock(&self.orders).paused.contains(database)
    }

    /// Whether no server connection of any database is leased, also during a shutdown.
    #[must_use]
    pub fn holds_all(&self) -> bool {
        self.phase().holds_all() || lock(&self.orders).all_held || self.is_draining()
    }

    /// Whether the gateway waits until all servers are released, as PgBouncer does on SIGINT: no server is leased any more, and
    /// clients of session mode keep theirs until they leave. Never ends.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Sets [`Lifecycle::is_draining`]. Returns whether it was set already.
    pub(super) fn set_draining(&self) -> bool {
        self.draining.swap(true, Ordering::Relaxed)
    }

    /// The phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    /// Records that another process has taken the listeners over: the clients of this process have no deadline.
    pub fn hand_over(&self) {
        self.is_handed_over.store(true, Ordering::SeqCst);
    }

    /// Whether another process has taken the listeners over.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::SeqCst)
    }

    /// DISABLE: admits no new client to a database.
    pub fn disable(&self, database: &str) {
        lock(&self.orders).disabled.insert(database.to_owned());
    }

    /// ENABLE: undoes [`Lifecycle::disable`].
    pub fn enable(&self, database: &str) {
        lock(&self.orders).disabled.remove(database);
    }

    /// Whether a database is disabled.
    #[must_use]
    pub fn is_disabled(&self, database: &str) -> bool {
        lock(&self.orders).disabled.contains(database)
    }
}
