//! Metrics of clients: how their connections ended, checkout timeouts, and pins.

use std::{collections::BTreeMap, rc::Rc, sync::Arc};

use tidegate_config::Route;
use tidegate_proxy::plane::{ClientOutcomes, SessionMoves, Worker, Workers};
use tidegate_stats::Totals;

use super::{
    MetricsPage,
    family::{MetricSample, MetricType},
};

/// Reasons that alert rules and panels watch. Their series begin at 0: Prometheus does not see an increase of a series that
/// begins at 1.
const WATCHED_DISCONNECTS: &[&str] = &[
    "checkout timeout",
    "no server",
    "server lost",
    "query timeout",
    "transaction timeout",
    "idle_in_transaction timeout",
    "client_idle timeout",
    "killed by an operator",
    "shutdown",
];

/// The same for refused logins.
const WATCHED_REFUSALS: &[&str] = &[
    "max_clients",
    "max_clients_per_database",
    "max_clients_per_user",
    "max_clients_per_address",
    "too many failed logins",
    "TLS required",
    "authentication failed",
    "no such database",
    "checkout timeout",
    "no server",
    "login timeout",
    "request refused",
];

/// Pinned clients by database and cause.
type PinnedCounts = BTreeMap<(Arc<str>, &'static str), usize>;

/// Counts the pinned clients of all threads. A client with several causes counts once for each.
pub(super) async fn pinned(workers: &Workers) -> PinnedCounts {
    let mut counts = PinnedCounts::new();
    for (key, count) in workers.ask_all(pinned_of_worker).await.into_iter().flatten() {
        *counts.entry(key).or_default() += count;
    }
    counts
}

fn pinned_of_worker(worker: &Rc<Worker>) -> PinnedCounts {
    let mut counts = PinnedCounts::new();
    for client_info in worker.registry.client_infos() {
        for cause in client_info.pins.get().names() {
            *counts.entry((client_info.database.clone(), cause)).or_default() += 1;
        }
    }
    counts
}

impl MetricsPage {
    /// Adds counters of each database that no table of PgBouncer has.
    pub(super) fn waits_and_logins(&mut self, totals: &Totals) {
        let timeouts = totals.iter().map(|(database, counted)| (&**database, counted.checkout_timeout_count));
        let help = "Clients that got no server within timeouts.checkout";
        self.counts("checkout_timeouts_total", help, "database", timeouts);
        let failures = totals.iter().map(|(database, counted)| (&**database, counted.server_login_error_count));
        self.counts("server_login_errors_total", "Failed logins to servers", "database", failures);
    }

    /// Adds disconnects and refused logins by reason.
    pub(super) fn outcomes(&mut self, outcomes: &ClientOutcomes) {
        let with_zeros = |counts: BTreeMap<&'static str, u64>, watched: &[&'static str]| {
            let mut all: BTreeMap<_, _> = watched.iter().map(|reason| (*reason, 0)).collect();
            all.extend(counts);
            all
        };
        let disconnects = with_zeros(outcomes.disconnects(), WATCHED_DISCONNECTS);
        self.counts("client_disconnects_total", "Ended sessions of clients by reason", "reason", disconnects);
        let refusals = with_zeros(outcomes.refusals(), WATCHED_REFUSALS);
        self.counts("client_refusals_total", "Refused logins of clients by reason", "reason", refusals);
    }

    /// Adds sessions that came from the previous process or went to the next one.
    pub(super) fn moved(&mut self, moves: &SessionMoves) {
        let counts = [("in", moves.arrived()), ("out", moves.departed()), ("refused", moves.refused())];
        self.counts("sessions_moved_total", "Sessions that moved between processes", "direction", counts);
    }

    /// Adds the sizes of the pools of each database and user.
    pub(super) fn pool_sizes(&mut self, sizes: &BTreeMap<(Arc<str>, Arc<str>), u32>) {
        let sample = |((database, user), size): (&(Arc<str>, Arc<str>), &u32)| {
            MetricSample::number(MetricType::Gauge, &[("database", database), ("user", user)], f64::from(*size))
        };
        let help = "Server connections that may be open for a database and user, over all of its servers";
        self.family("pool_size", help, MetricType::Gauge, sizes.iter().map(sample).collect());
    }

    /// Adds the route of each database with a choice of servers.
    pub(super) fn routes(&mut self, routes: &[(String, Route)]) {
        let sample = |(database, route): &(String, Route)| {
            MetricSample::number(MetricType::Gauge, &[("database", database), ("route", route.as_str())], 1.0)
        };
        let help = "1 for the route of a database with a choice of servers";
        self.family("database_route", help, MetricType::Gauge, routes.iter().map(sample).collect());
    }

    /// Adds the clients that keep their server beyond the transaction.
    pub(super) fn pinned(&mut self, counts: &PinnedCounts) {
        let sample = |((database, cause), count): (&(Arc<str>, &'static str), &usize)| {
            MetricSample::number(MetricType::Gauge, &[("database", database), ("cause", cause)], *count as f64)
        };
        let samples = counts.iter().map(sample).collect();
        self.family("pinned_clients", "Clients that keep their server, by cause", MetricType::Gauge, samples);
    }
}
