//! The lines that a client waits in.
//!
//! It begins in that of the server which was chosen for it. If that one has no connection to give and can open no more,
//! another one is chosen that does. If there is none, the client waits in the lines of all of them, and the first that has
//! a connection free serves it. Pools know nothing of each other for that: who was served leaves the other lines, and what
//! such a line has handed over meanwhile goes to the next in it.

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

/// What a line ends with.
pub(super) type Answer = Result<Lease<Server>, CheckoutError<ConnectError>>;

/// So many at most: a client that waits costs a place in each, and of so many servers one is free soon.
const LINES_MAX: usize = 8;

/// Room for the lines of as many servers as most databases have.
const LINES_USUAL: usize = 4;

/// The lines that one client waits in.
pub(super) struct Lines<'a> {
    worker: &'a Rc<Worker>,
    home: &'a Rc<WorkerPool>,
    replica_set: &'a ReplicaSet,
    route: Route,
    lines: Vec<Line>,
    /// How many of them were told to the pool of the clients as places of one who waits elsewhere already.
    told: usize,
}

struct Line {
    placed: Placed,
    checkout: Checkout<Server>,
}

impl<'a> Lines<'a> {
    /// The line of one server.
    pub(super) fn of(
        chosen: Placed,
        worker: &'a Rc<Worker>,
        home: &'a Rc<WorkerPool>,
        replica_set: &'a ReplicaSet,
        route: Route,
    ) -> Self {
        let route = narrowed(route, chosen.node());
        let mut lines = Self { worker, home, replica_set, route, lines: Vec::with_capacity(LINES_USUAL), told: 0 };
        lines.join(chosen);
        lines
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Joins the line of a server that has a connection to give, or those of all, if those joined so far have none.
    pub(super) fn spread(&mut self, tried: &[Arc<ClusterNode>]) {
        if self.lines.iter().any(|line| !line.placed.pool.local.is_exhausted()) {
            return;
        }
        for mut except in [self.replica_set.taken(), Vec::new()] {
            let joined = self.lines.iter().map(|line| line.placed.node());
            except.extend(joined.chain(tried).cloned());
            if self.join_others(&mut except) {
                return;
            }
        }
    }

    /// Joins the lines of others than those, until one has a connection to give. `true` if one has.
    fn join_others(&mut self, except: &mut Vec<Arc<ClusterNode>>) -> bool {
        while self.lines.len() < LINES_MAX
            && let Some(other) = self.pick_other(except)
        {
            except.push(other.node().clone());
            // What other threads have taken of it was not known before its pool was looked up.
            let is_free = !other.pool.local.is_exhausted();
            self.join(other);
            if is_free {
                return true;
            }
        }
        false
    }

    /// Leaves the lines of servers that do not serve the route any more.
    pub(super) fn leave_unfit(&mut self) {
        self.lines.retain(|line| line.placed.node().serves(self.route));
        self.tell();
    }

    /// Ready with what the first of them answers, which is left with that.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<(Placed, Answer)> {
        let mut lines = self.lines.iter_mut().enumerate();
        let answered = lines.find_map(|(index, line)| match Pin::new(&mut line.checkout).poll(cx) {
            Poll::Ready(answer) => Some((index, answer)),
            Poll::Pending => None,
        });
        let Some((index, answer)) = answered else { return Poll::Pending };
        let line = self.lines.remove(index);
        self.tell();
        Poll::Ready((line.placed, answer))
    }

    /// For lack of room alone nobody goes to a server that is less preferred.
    fn pick_other(&self, except: &[Arc<ClusterNode>]) -> Option<Placed> {
        let model = self.lines.first()?.placed.node();
        let now = self.worker.reactor.now();
        self.replica_set.pick_like(self.worker, self.home, self.route, (model, except), now)
    }

    fn join(&mut self, placed: Placed) {
        let checkout = placed.pool.local.checkout(self.worker.reactor.now());
        self.lines.push(Line { placed, checkout });
        self.tell();
    }

    fn tell(&mut self) {
        let spare = self.lines.len().saturating_sub(1);
        if spare != self.told {
            self.home.shared.recount_places(self.told, spare);
            self.told = spare;
        }
    }
}

impl Drop for Lines<'_> {
    fn drop(&mut self) {
        self.lines.clear();
        self.tell();
    }
}
