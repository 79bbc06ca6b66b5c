//! Report about the end of the tasks, for the log.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tidegate_proxy::plane::{Pools, Workers, lock};
use tidegate_supervise::{Exits, Report, Scope, Stuck};

/// Addresses of clients by id.
type Peers = Arc<Mutex<HashMap<u64, String>>>;

/// Exit counters of all tasks so far.
pub(super) fn exits(tasks: &Scope) -> Exits {
    let mut sum = Exits::default();
    for (_, counts) in tasks.tree() {
        sum.add(&counts.exits);
    }
    sum
}

/// Interval at which threads are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Waits until threads have ended. Returns `false` if some are still running.
pub(super) fn join_within(threads: &[JoinHandle<()>], deadline: Duration) -> bool {
    let begun = Instant::now();
    loop {
        if threads.iter().all(JoinHandle::is_finished) {
            return true;
        }
        if begun.elapsed() >= deadline {
            return false;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Names of tasks in a report.
pub(super) struct TaskNames<'a> {
    pools: &'a Pools,
    peers: Peers,
}

impl<'a> TaskNames<'a> {
    /// Collects the addresses of clients from all threads, and wakes the clients. A hanging thread answers nothing; its clients
    /// appear with their ids, as in the log of logins.
    pub(super) fn collect(pools: &'a Pools, workers: &Workers) -> Self {
        let peers = Peers::default();
        let addresses = Arc::clone(&peers);
        workers.visit_all(move |worker| {
            let client_infos = worker.registry.client_infos();
            lock(&addresses)
                .extend(client_infos.iter().map(|client_info| (client_info.id, client_info.peer.to_string())));
            worker.registry.wake_all();
        });
        Self { pools, peers }
    }

    fn of(&self, stuck: &Stuck) -> String {
        let path = stuck.scope.strip_prefix("tidegate/").unwrap_or(&stuck.scope);
        let (kind, _) = path.split_once('/').unwrap_or((path, ""));
        match (kind, &stuck.key, stuck.number) {
            (_, Some(key), _) => format!("{path} {key}"),
            ("clients", None, Some(id)) => match lock(&self.peers).get(&id) {
                Some(peer) => format!("client {id}, {peer}"),
                None => format!("client {id}"),
            },
            ("servers", None, Some(id)) => {
                let known = self.pools.servers().into_iter().find(|server| server.identity.id == id);
                known.map_or_else(
                    || format!("server {id}"),
                    |server| format!("server {id}, {}, pid {}", server.identity.address.host, server.identity.pid),
                )
            }
            (_, None, Some(number)) => format!("{path} {number}"),
            (_, None, None) => path.to_owned(),
        }
    }

    /// Logs the counters, and each task that did not end.
    pub(super) fn log(&self, report: &Report) {
        tracing::info!(
            clean = report.clean(),
            aborted = report.aborted(),
            panicked = report.panicked(),
            stuck = report.left,
            "tasks ended"
        );
        for stuck in &report.stuck {
            let (name, age) = (self.of(stuck), stuck.age);
            tracing::error!("a task did not end: {name}, spawned at {}, age {age:?}", stuck.spawned_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::ready, sync::mpsc};

    use super::*;
    use tidegate_config::Config;
    use tidegate_pg_client::resolve::Resolver;
    use tidegate_proxy::plane::{Gateway, Setup};

    #[test]
    fn hanging_thread_is_abandoned_at_the_deadline() {
        let (go, going) = mpsc::channel::<()>();
        let threads = [thread::spawn(|| ()), thread::spawn(move || assert!(going.recv().is_err()))];
        assert!(!join_within(&threads, Duration::from_millis(1)));
        drop(go);
        assert!(join_within(&threads, Duration::from_secs(60)));
    }

    #[test]
    fn stuck_tasks_are_reported_by_name() {
        let control = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let config = Config::from_url("postgres://db.example/shop").unwrap();
        let resolver = Resolver::new(control.handle().clone());
        let workers = Arc::new(Workers::new(1));
        let gateway = Gateway::new(Setup::new(config).unwrap(), workers.clone(), resolver).unwrap();
        let (thread, jobs): (Scope, Scope<&str>) =
            (gateway.lifecycle.client_scope.child("0"), gateway.lifecycle.scope.child("jobs"));
        let _clients = [4711, 4712].map(|id| thread.hold(id).unwrap());
        let _server = gateway.lifecycle.server_scope.hold(7).unwrap();
        let _job = jobs.wrap_as("a check", |_| ready(())).unwrap();
        let report = control.block_on(gateway.lifecycle.scope.stop(|_| ready(()), Duration::ZERO, Duration::ZERO));
        let names = TaskNames::collect(&gateway.pools, &workers);
        names.peers.lock().unwrap().insert(4711, "10.0.0.1:4242".to_owned());
        let mut name: Vec<_> = report.stuck.iter().map(|stuck| names.of(stuck)).collect();
        name.sort_unstable();
        assert_eq!(name, ["client 4711, 10.0.0.1:4242", "client 4712", "jobs \"a check\"", "server 7"]);
    }
}
