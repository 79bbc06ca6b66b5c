//! The wait queues that a client is in.
//!
//! The client first joins the queue of the chosen server. If that server is exhausted, another server with a free connection
//! is chosen. If there is none, the client joins the queues of all servers, and the first free connection serves it. Pools
//! need no coordination for this: a served client leaves the other queues, and their leases go to the next waiter.

use std::{
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use tidegate_pool::{Checkout, CheckoutError, Lease};

use super::narrowed;
use tidegate_config::Route;
use tidegate_pg_client::ConnectError;
use tidegate_topology::ClusterNode;

use crate::{
    plane::{Placed, ReplicaSet, Worker, WorkerPool},
    server::Server,
};

/// Result of a wait queue.
pub(super) type QueueResult = Result<Lease<Server>, CheckoutError<ConnectError>>;

/// Maximum queues per client: each costs a slot, and one of this many servers is free soon.
const QUEUES_MAX: usize = 8;

/// Initial capacity; most databases have no more servers.
const QUEUES_CAPACITY: usize = 4;

/// The wait queues of one client.
pub(super) struct WaitQueues<'a> {
    worker: &'a Rc<Worker>,
    home: &'a Rc<WorkerPool>,
    replica_set: &'a ReplicaSet,
    route: Route,
    queues: Vec<WaitQueue>,
    /// Number of additional queue entries of this client that its home pool was informed of.
    reported: usize,
}

struct WaitQueue {
    placed: Placed,
    checkout: Checkout<Server>,
}

impl<'a> WaitQueues<'a> {
    /// Joins the queue of one server.
    pub(super) fn of(
        chosen: Placed,
        worker: &'a Rc<Worker>,
        home: &'a Rc<WorkerPool>,
        replica_set: &'a ReplicaSet,
        route: Route,
    ) -> Self {
        let route = narrowed(route, chosen.node());
        let mut queues =
            Self { worker, home, replica_set, route, queues: Vec::with_capacity(QUEUES_CAPACITY), reported: 0 };
        queues.join(chosen);
        queues
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Joins the queue of a server with a free connection, or all queues, if the joined servers are exhausted.
    pub(super) fn spread(&mut self, tried: &[Arc<ClusterNode>]) {
        if self.queues.iter().any(|queue| !queue.placed.pool.local.is_exhausted()) {
            return;
        }
        for mut except in [self.replica_set.taken(), Vec::new()] {
            let joined = self.queues.iter().map(|queue| queue.placed.node());
            except.extend(joined.chain(tried).cloned());
            if self.join_others(&mut except) {
                return;
            }
        }
    }

    /// Joins the queues of servers not in `except`, until one has a free connection. Returns whether one has.
    fn join_others(&mut self, except: &mut Vec<Arc<ClusterNode>>) -> bool {
        while self.queues.len() < QUEUES_MAX
            && let Some(other) = self.pick_other(except)
        {
            except.push(other.node().clone());
            // Connections that other threads use are visible only after the pool lookup.
            let is_free = !other.pool.local.is_exhausted();
            self.join(other);
            if is_free {
                return true;
            }
        }
        false
    }

    /// Leaves the queues of servers that no longer serve the route.
    pub(super) fn leave_unfit(&mut self) {
        self.queues.retain(|queue| queue.placed.node().serves(self.route));
        self.report();
    }

    /// Returns the first result and leaves its queue.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Placed, QueueResult)> {
        let mut queues = self.queues.iter_mut().enumerate();
        let ready = queues.find_map(|(index, queue)| match Pin::new(&mut queue.checkout).poll(cx) {
            Poll::Ready(result) => Some((index, result)),
            Poll::Pending => None,
        });
        let Some((index, result)) = ready else { return Poll::Pending };
        let queue = self.queues.remove(index);
        self.report();
        Poll::Ready((queue.placed, result))
    }

    /// A full pool is no reason for a less preferred server.
    fn pick_other(&self, except: &[Arc<ClusterNode>]) -> Option<Placed> {
        let model = self.queues.first()?.placed.node();
        let now = self.worker.reactor.now();
        self.replica_set.pick_like(self.worker, self.home, self.route, (model, except), now)
    }

    fn join(&mut self, placed: Placed) {
        let checkout = placed.pool.local.checkout(self.worker.reactor.now());
        self.queues.push(WaitQueue { placed, checkout });
        self.report();
    }

    fn report(&mut self) {
        let spare = self.queues.len().saturating_sub(1);
        if spare != self.reported {
            self.home.shared.recount_places(self.reported, spare);
            self.reported = spare;
        }
    }
}

impl Drop for WaitQueues<'_> {
    fn drop(&mut self) {
        self.queues.clear();
        self.report();
    }
}
