//! A pool on one thread.

use std::{
    cell::{Cell, RefCell},
    pin::pin,
    rc::{Rc, Weak},
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use tidegate_config::PoolPlan;
use tidegate_pool::LocalPool;
use tidegate_stats::PoolStats;
use tidegate_topology::{Cluster, ClusterNode};
use tokio::sync::Notify;

use crate::{
    plane::{ReplicaSet, SharedPool},
    server::Server,
};

/// Opens pools of single servers on one thread.
pub trait OpenHostPool {
    /// The pool of one server of a cluster, for the clients of `home`; `None` if the server or the cluster was removed.
    fn open_host_pool(&self, home: &WorkerPool, cluster: &Arc<Cluster>, node: &ClusterNode) -> Option<Rc<WorkerPool>>;
}

/// A pool on one thread.
pub struct WorkerPool {
    /// The pool.
    pub shared: Arc<SharedPool>,
    /// The share of this thread.
    pub local: LocalPool<Server>,
    /// Counters of this thread; shared by the pools of all servers that the same clients choose from.
    pub stats: Rc<PoolStats>,
    /// Notified when the pool has messages: an operator may have changed something.
    changed: Notify,
    /// Time of the last refresh of a server's parameters.
    refreshed_at: Cell<Option<Instant>>,
    plan: RefCell<Rc<PoolPlan>>,
    replica_set: RefCell<Option<Rc<ReplicaSet>>>,
}

impl WorkerPool {
    /// A pool whose share of the thread is made by `local`, which gets the pool for its callbacks.
    pub(super) fn new(
        shared: &Arc<SharedPool>,
        stats: Rc<PoolStats>,
        local: impl FnOnce(Weak<Self>) -> LocalPool<Server>,
    ) -> Rc<Self> {
        let pool = Rc::new_cyclic(|this| Self {
            shared: shared.clone(),
            local: local(this.clone()),
            stats,
            changed: Notify::new(),
            refreshed_at: Cell::default(),
            plan: RefCell::new(Rc::new((*shared.plan()).clone())),
            replica_set: RefCell::default(),
        });
        pool.follow_cluster();
        pool
    }

    /// The servers that its transactions choose from.
    #[inline]
    #[must_use]
    pub fn replica_set(&self) -> Option<Rc<ReplicaSet>> {
        self.replica_set.borrow().clone()
    }

    /// Publishes changed defaults of a server to new clients.
    #[inline]
    pub fn publish_news(&self, server: &mut Server) {
        if server.settings.has_default_changes() {
            self.shared.renew_server_params(&server.take_news());
        }
    }

    /// Whether a server's parameters are due for a refresh. Records the refresh as done.
    #[must_use]
    pub fn is_refresh_due(&self, now: Instant, after: Duration) -> bool {
        let is_due = self.refreshed_at.get().is_none_or(|at| now - at >= after);
        if is_due {
            self.refreshed_at.set(Some(now));
        }
        is_due
    }

    /// Adopts the current cluster of the shared pool.
    pub fn follow_cluster(&self) {
        if self.shared.key.host.is_some() {
            return;
        }
        let cluster = self.shared.cluster();
        let same = match (&*self.replica_set.borrow(), &cluster) {
            (Some(replica_set), Some(cluster)) => Arc::ptr_eq(&replica_set.cluster, cluster),
            (None, None) => true,
            _ => false,
        };
        if !same {
            *self.replica_set.borrow_mut() = cluster.map(ReplicaSet::new);
        }
    }

    /// Settings of the pool.
    #[must_use]
    pub fn plan(&self) -> Rc<PoolPlan> {
        self.plan.borrow().clone()
    }

    /// Adopts the current settings and the current cluster of the shared pool.
    pub(super) fn refresh_plan(&self) {
        *self.plan.borrow_mut() = Rc::new((*self.shared.plan()).clone());
        self.follow_cluster();
    }

    /// Processes the messages of the pool.
    pub(super) fn read_mail(&self, now: Instant) {
        self.local.process_messages(now);
        self.changed.notify_waiters();
    }

    /// The result of `work`; `None` if an operator's change makes it useless meanwhile, which is checked after every
    /// notification.
    pub async fn unless<T>(&self, is_useless: impl Fn() -> bool, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            let mut changed = pin!(self.changed.notified());
            // Created before the check, so that no later notification is missed.
            changed.as_mut().enable();
            if is_useless() {
                return None;
            }
            let done = std::future::poll_fn(|cx| match work.as_mut().poll(cx) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                Poll::Pending => changed.as_mut().poll(cx).map(|()| None),
            });
            if let Some(output) = done.await {
                return Some(output);
            }
        }
    }

    pub(super) fn log_closed(&self) {
        let key = &self.shared.key;
        tracing::debug!(database = %key.database, user = %key.user, server = key.host.as_deref(), "pool closed");
    }

    /// Whether the pool belongs to a removed server and has no open connection.
    pub(super) fn is_gone(&self) -> bool {
        self.shared.key.host.is_some() && self.is_over()
    }

    /// Whether the pool was removed and has no open connection.
    pub(super) fn is_over(&self) -> bool {
        let pool = &self.shared.pool;
        pool.is_closed() && pool.counts().open == 0
    }
}
