//! Random faults of servers under load, in an order that a seed determines: servers are killed, hang, lag, shut down
//! and are promoted.
//!
//! Invariants: confirmed rows exist, rejected rows do not, no read is older than the lag limit, and at the end the
//! gateway serves as before.
//!
//! `TIDEGATE_FAULT_RUNS` is the number of clusters, `TIDEGATE_SEED` the seed of the first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Pid, kill_process};
use tidegate_sandbox::{Cluster, Postgres, ShutdownMode};
use tidegate_testkit::{ClientError, Frames, Gateway, RawClient, Signal, Startup, poll};
use toml::Value;

use crate::cluster::{
    TIMEOUT, connect, database, eventually, gateway, host_column, hosts, sql, synchronous_cluster, value, wait_for,
    wait_until_all_up,
};

const WRITERS: usize = 6;
const READERS: usize = 4;
/// The permitted replication lag, and the delay that a busy machine may add to it.
const LAG_MAX: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_secs(6);

/// SQLSTATEs of a statement that was in progress when its server failed: it may have been executed or not. No other
/// error may occur.
const IN_DOUBT: [&str; 3] = ["08006", "57P01", "57P02"];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Results of all clients of a run.
#[derive(Default)]
struct Observations {
    stop: AtomicBool,
    /// Confirmed rows, and rows whose outcome is unknown.
    confirmed: Mutex<BTreeSet<String>>,
    in_doubt: Mutex<BTreeSet<String>>,
    errors: Mutex<BTreeMap<String, usize>>,
    /// The time at which each value of the heartbeat was confirmed.
    heartbeats: Mutex<Vec<(Instant, u64)>>,
    reads: AtomicU64,
    /// Successful operations by client.
    done: Vec<AtomicU64>,
    violations: Mutex<Vec<String>>,
}

impl Observations {
    fn new() -> Arc<Self> {
        Arc::new(Self { done: (0..=WRITERS + READERS).map(|_| AtomicU64::new(0)).collect(), ..Self::default() })
    }

    fn add_violation(&self, text: String) {
        self.violations.lock().expect("no client panicked").push(text);
    }

    /// Waits until every client has finished some more operations.
    #[track_caller]
    fn wait_for_progress(&self, describe: impl Fn() -> String) {
        let done = || self.done.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let before = done();
        let is_done = || done().iter().zip(&before).all(|(now, then)| *now >= then + 3);
        assert!(poll(TIMEOUT, is_done), "clients make no progress: {before:?}, {:?}\n{}", done(), describe());
    }

    /// Waits until this number of further reads has finished.
    #[track_caller]
    fn wait_for_reads(&self, more: u64) {
        let until = self.reads.load(Ordering::Relaxed) + more;
        eventually("clients read", || self.reads.load(Ordering::Relaxed) >= until);
    }
}

/// A client that reconnects after every error.
struct Client {
    startup: Startup,
    connection: Option<RawClient>,
    observations: Arc<Observations>,
}

/// The outcome of a statement.
enum QueryOutcome {
    Rows(Vec<Vec<String>>),
    /// An error, or the end of the connection.
    Failed(String),
}

impl Client {
    fn new(startup: Startup, observations: &Arc<Observations>) -> Self {
        Self { startup, connection: None, observations: observations.clone() }
    }

    /// The connection, or `None` if the gateway rejects the login.
    fn connection(&mut self) -> Option<&mut RawClient> {
        if self.connection.is_none() {
            let mut client = self.startup.try_open().ok()?;
            client.set_timeout(TIMEOUT);
            client.try_send(&self.startup.packet()).ok()?;
            if let Err(error) = client.log_in(None) {
                if matches!(error, ClientError::Timeout) {
                    self.observations.add_violation(format!("a login hangs: {error}"));
                }
                return None;
            }
            self.connection = Some(client);
        }
        self.connection.as_mut()
    }

    fn run(&mut self, sql: &str) -> QueryOutcome {
        let end = self.try_run(sql);
        if let QueryOutcome::Failed(code) = &end {
            *self.observations.errors.lock().expect("no client panicked").entry(code.clone()).or_default() += 1;
        }
        end
    }

    fn try_run(&mut self, sql: &str) -> QueryOutcome {
        let result = match self.connection() {
            Some(client) => run_query(client, sql),
            None => return QueryOutcome::Failed("no login".to_owned()),
        };
        match result {
            Ok(rows) => QueryOutcome::Rows(rows),
            Err((code, error)) => {
                if let Some(error @ (ClientError::Timeout | ClientError::Garbage(_))) = error.as_deref() {
                    self.observations.add_violation(format!("{sql}: {error}"));
                }
                // An open transaction ends with the connection.
                self.connection = None;
                QueryOutcome::Failed(code)
            }
        }
    }

    /// Inserts a row, alone or in a transaction of several messages.
    fn write(&mut self, row: &str, alone: bool) {
        let insert = format!("insert into t (v) values ('{row}')");
        let statements: &[&str] = if alone { &[&insert] } else { &["begin", &insert, "commit"] };
        for (index, statement) in statements.iter().enumerate() {
            if let QueryOutcome::Failed(code) = self.run(statement) {
                // The outcome is known until COMMIT is sent.
                if index + 1 == statements.len() && IN_DOUBT.contains(&code.as_str()) {
                    self.observations.in_doubt.lock().expect("no client panicked").insert(row.to_owned());
                }
                return;
            }
        }
        self.observations.confirmed.lock().expect("no client panicked").insert(row.to_owned());
    }

    fn heartbeat(&mut self) -> bool {
        let QueryOutcome::Rows(rows) = self.run("update heartbeat set n = n + 1 returning n") else { return false };
        let number = rows[0][0].parse().expect("a number");
        self.observations.heartbeats.lock().expect("no client panicked").push((Instant::now(), number));
        true
    }

    /// Reads the heartbeat: a value that was confirmed long ago must be visible.
    fn read(&mut self) -> bool {
        let expected = {
            let heartbeats = self.observations.heartbeats.lock().expect("no client panicked");
            let old = heartbeats.iter().rev().find(|(at, _)| at.elapsed() > LAG_MAX + SLACK);
            old.map_or(0, |(_, number)| *number)
        };
        let began = Instant::now();
        let QueryOutcome::Rows(rows) = self.run("select n, inet_server_port() from heartbeat") else { return false };
        let number: u64 = rows[0][0].parse().expect("a number");
        // A read that waited long for a server is not compared, because the expected value was taken before.
        if number < expected && began.elapsed() < SLACK {
            self.observations
                .add_violation(format!("server {} returned {number} after {expected} was confirmed", rows[0][1]));
        }
        self.observations.reads.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// The error of a query, and the end of its connection.
type FailedQuery = (String, Option<Box<ClientError>>);

/// The rows of a query, or the error and the end of the connection if it was closed.
fn run_query(client: &mut RawClient, sql: &str) -> Result<Vec<Vec<String>>, FailedQuery> {
    let (mut rows, mut code) = (Vec::new(), None);
    let end =
        |code: Option<String>, error: ClientError| (code.unwrap_or_else(|| format!("{error}")), Some(Box::new(error)));
    client.try_send(Frames::new().query(sql).bytes()).map_err(|error| end(None, error))?;
    loop {
        match client.try_recv() {
            Ok(message) if message.tag == b'D' => rows.push(message.texts()),
            Ok(message) if message.tag == b'E' => code = Some(message.error().code),
            Ok(message) if message.tag == b'Z' => return code.map_or(Ok(rows), |code| Err((code, None))),
            Ok(_) => {}
            // The ErrorResponse before the end has the reason.
            Err(error) => return Err(end(code, error)),
        }
    }
}

/// Starts all clients.
fn start(gateway: &Gateway, observations: &Arc<Observations>) -> Vec<JoinHandle<()>> {
    let work = |index: usize| {
        let (observations, database) = (observations.clone(), if index < READERS { "ro" } else { "app" });
        let mut client = Client::new(gateway.startup(database), &observations);
        std::thread::spawn(move || {
            let mut turn = 0_u64;
            while !observations.stop.load(Ordering::Relaxed) {
                turn += 1;
                let done = match index {
                    index if index < READERS => client.read(),
                    READERS => client.heartbeat(),
                    _ => {
                        let before = observations.confirmed.lock().expect("no client panicked").len();
                        client.write(&format!("{index}-{turn}"), turn.is_multiple_of(2));
                        observations.confirmed.lock().expect("no client panicked").len() > before
                    }
                };
                if done {
                    observations.done[index].fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    };
    (0..=WRITERS + READERS).map(work).collect()
}

struct FaultRun {
    cluster: Cluster,
    gateway: Gateway,
    observations: Arc<Observations>,
    random: Rng,
    events: Vec<String>,
}

/// The last lines of a log.
fn last(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}

impl FaultRun {
    fn log_event(&mut self, text: impl Into<String>) {
        let text = text.into();
        println!("{text}");
        self.events.push(text);
    }

    fn replicas(&self) -> [usize; 2] {
        match self.cluster.primary_index() {
            0 => [1, 2],
            1 => [0, 2],
            _ => [0, 1],
        }
    }

    fn replica(&mut self) -> usize {
        self.replicas()[self.random.usize(..2)]
    }

    /// Lets the clients work for a random number of reads.
    fn let_clients_work(&mut self) {
        let reads = self.random.u64(1..400);
        self.observations.wait_for_reads(reads);
    }

    /// Waits, in half of the cases, until the gateway has detected the fault.
    fn maybe_wait_for(&mut self, server: usize, states: &[&str]) {
        if self.random.bool() {
            eventually(&format!("server {server} becomes {states:?}"), || {
                states.contains(&host_column(&self.gateway, &self.cluster, "app", server, "state").as_str())
            });
        }
    }

    /// Injects one random fault. All servers run afterwards.
    fn inject_fault(&mut self) {
        let (primary, replica) = (self.cluster.primary_index(), self.replica());
        match self.random.u8(..13) {
            0 => {
                self.log_event(format!("replica {replica} is killed and restarted"));
                self.cluster.server_mut(replica).kill9().expect("the server can be killed");
                self.maybe_wait_for(replica, &["down"]);
                self.cluster.server_mut(replica).restart().expect("the server starts again");
            }
            1 => {
                self.log_event(format!("replica {replica} hangs for a while"));
                self.cluster.server(replica).suspend();
                self.maybe_wait_for(replica, &["silent", "down"]);
                self.cluster.server(replica).resume();
            }
            2 => {
                self.log_event(format!("primary {primary} hangs for a while"));
                self.cluster.server(primary).suspend();
                self.maybe_wait_for(primary, &["silent"]);
                self.cluster.server(primary).resume();
            }
            3 => {
                self.log_event(format!("primary {primary} is killed and restarted"));
                self.cluster.server_mut(primary).kill9().expect("the server can be killed");
                self.maybe_wait_for(primary, &["down"]);
                self.cluster.server_mut(primary).restart().expect("the server starts again");
            }
            4 => {
                self.log_event(format!("replica {replica} lags"));
                self.cluster.pause_replay(replica).expect("replay can be paused");
                wait_for(&self.gateway, &self.cluster, "ro", replica, "state", "lagging");
                self.let_clients_work();
                self.cluster.resume_replay(replica).expect("replay can be resumed");
            }
            5 => self.switch_over(),
            6 => {
                let server = if self.random.bool() { primary } else { replica };
                self.log_event(format!("sessions of {server} are ended"));
                let all = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                           where backend_type = 'client backend' and pid <> pg_backend_pid()";
                value(self.cluster.server(server), all);
            }
            7 => {
                self.log_event(format!("replica {replica} restarts"));
                self.cluster.server_mut(replica).restart().expect("the server starts again");
            }
            8 => {
                self.log_event("a reload");
                self.gateway.signal(Signal::HUP);
            }
            9 => self.kill_all(),
            10 => {
                self.log_event("both replicas hang for a while");
                let both = self.replicas();
                both.iter().for_each(|index| self.cluster.server(*index).suspend());
                self.maybe_wait_for(replica, &["silent", "down"]);
                both.iter().for_each(|index| self.cluster.server(*index).resume());
            }
            11 => self.remove_and_add(replica),
            _ => {
                self.log_event("a pause");
                let mut console = self.gateway.console();
                console.ok("PAUSE app");
                console.ok("RESUME app");
            }
        }
        self.let_clients_work();
    }

    /// Kills all servers in random order, and restarts them.
    fn kill_all(&mut self) {
        let mut order = [0, 1, 2];
        self.random.shuffle(&mut order);
        self.log_event(format!("all are killed, as {order:?}"));
        for index in order {
            self.cluster.server_mut(index).kill9().expect("the server can be killed");
        }
        self.maybe_wait_for(order[0], &["down"]);
        // A replica may need WAL of its primary before it accepts connections.
        let [one, other] = self.replicas();
        for index in [self.cluster.primary_index(), one, other] {
            self.cluster.server_mut(index).restart().expect("the server starts again");
        }
    }

    /// Removes a server by a reload, and adds it by another one.
    fn remove_and_add(&mut self, replica: usize) {
        self.log_event(format!("replica {replica} is removed and added"));
        let rest: Vec<usize> = (0..3).filter(|index| *index != replica).collect();
        for list in [rest, vec![0, 1, 2]] {
            for name in ["app", "ro"] {
                let list = Value::from(hosts(&self.cluster, &list));
                self.gateway.set_config(&format!("databases.{name}.hosts"), list);
            }
            self.gateway.signal(Signal::HUP);
            self.let_clients_work();
        }
    }

    /// The replica with the most WAL, after both have stopped receiving and have replayed everything they received.
    fn most_advanced_replica(&self) -> usize {
        let select = |index: usize, what: &str| {
            let rows = self.cluster.server(index).simple_query(&format!("select {what}"));
            let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", self.server_states()));
            rows[0][0].clone().unwrap_or_default()
        };
        for index in self.replicas() {
            // The WAL receiver restarts, and a hanging primary does not answer it.
            let receiver = select(index, "coalesce((select pid from pg_stat_wal_receiver), 0)");
            if let Some(pid) = receiver.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, rustix::process::Signal::TERM);
            }
            let ended = format!("(select pid from pg_stat_wal_receiver) is distinct from {receiver}");
            eventually("the WAL receiver has ended", || select(index, &ended) == "t");
            let all = "coalesce(pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn(), true)";
            eventually("a replica has replayed all WAL", || select(index, all) == "t");
        }
        let position =
            |index: &usize| select(*index, "pg_last_wal_replay_lsn() - '0/0'").parse::<u64>().expect("a number");
        self.replicas().into_iter().max_by_key(position).expect("there are two replicas")
    }

    /// The state of the servers as they report it, for a failure message.
    fn server_states(&self) -> String {
        let sql = "select pg_is_in_recovery(), pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn(), \
                        (select string_agg(state || ' ' || sync_state, ', ') from pg_stat_replication)";
        let state_of = |server: &Postgres| match server.pid() {
            0 => "ended".to_owned(),
            _ => format!("{} {:?}\n{}", server.port(), server.simple_query(sql), last(&server.log())),
        };
        self.cluster.servers().map(state_of).collect::<Vec<_>>().join("\n")
    }

    fn promote(&mut self) -> usize {
        let new_primary = self.most_advanced_replica();
        self.log_event(format!("server {new_primary} is promoted"));
        let other = self.replicas().into_iter().find(|index| *index != new_primary).expect("there are two replicas");
        self.cluster.promote(new_primary).expect("a replica can be promoted");
        self.follow(other);
        new_primary
    }

    /// Waits until the server has WAL of the new timeline, because a server that is killed before may not start again.
    fn follow(&mut self, index: usize) {
        self.cluster.follow(index).expect("the server follows the new primary");
        self.cluster.catch_up(index).expect("the server catches up");
    }

    fn switch_over(&mut self) {
        let old = self.cluster.primary_index();
        self.log_event(format!("primary {old} shuts down"));
        // The primary ends when its replicas have all of its WAL.
        let mode = if self.random.bool() { ShutdownMode::Smart } else { ShutdownMode::Fast };
        self.cluster.server(old).begin_shutdown(mode);
        self.cluster.server_mut(old).wait_for_shutdown().expect("the gateway closes its connections");
        self.promote();
        self.follow(old);
    }

    /// Kills the primary for good, or suspends it until another server is promoted.
    fn fail_over(&mut self) -> usize {
        let old = self.cluster.primary_index();
        let is_killed = self.random.bool();
        self.log_event(format!("primary {old} {}", if is_killed { "is killed" } else { "hangs" }));
        if is_killed {
            self.cluster.server_mut(old).kill9().expect("the server can be killed");
        } else {
            self.cluster.server(old).suspend();
        }
        self.maybe_wait_for(old, &["silent", "down"]);
        self.promote();
        if !is_killed {
            self.maybe_wait_for(old, &["deposed"]);
            self.cluster.server(old).resume();
            wait_for(&self.gateway, &self.cluster, "app", old, "state", "deposed");
        }
        old
    }

    /// Waits until every client makes progress and every server has its role and is up.
    fn wait_for_recovery(&self, lost: Option<usize>) {
        self.observations.wait_for_progress(|| format!("{:#?}\n{}", self.gateway.show("HOSTS"), self.server_states()));
        for index in (0..3).filter(|index| Some(*index) != lost) {
            let role = if index == self.cluster.primary_index() { "primary" } else { "replica" };
            for database in ["app", "ro"] {
                wait_for(&self.gateway, &self.cluster, database, index, "role", role);
                wait_for(&self.gateway, &self.cluster, database, index, "state", "up");
            }
        }
    }
}

fn run(seed: u64) {
    println!("TIDEGATE_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let cluster = synchronous_cluster();
    sql(cluster.primary(), "create table heartbeat (n bigint); insert into heartbeat values (0)");
    [1, 2].iter().for_each(|index| cluster.catch_up(*index).expect("replicas stream"));
    let section = |name: &str, keys: &str| {
        database(&cluster, name, keys).replace("probe_timeout = \"15s\"", "probe_timeout = \"1s\"")
    };
    let policy = ["round_robin", "least_request", "peak_ewma", "pick_first"][random.usize(..4)];
    let ro = format!("route = \"replica\"\nlag_max = \"{}s\"\npolicy = \"{policy}\"", LAG_MAX.as_secs());
    let gateway = gateway(&[section("app", ""), section("ro", &ro)]);
    let mut idle: Vec<RawClient> = ["app", "ro"].iter().cycle().take(8).map(|name| connect(&gateway, name)).collect();
    idle.iter_mut().for_each(|client| drop(client.ok("select 1")));
    for database in ["app", "ro"] {
        wait_until_all_up(&gateway, &cluster, database);
    }
    let tasks = tasks(&gateway);
    let observations = Observations::new();
    let threads = start(&gateway, &observations);
    observations.wait_for_progress(String::new);
    let faults = random.usize(4..9);
    let mut run = FaultRun { cluster, gateway, observations: observations.clone(), random, events: Vec::new() };
    for _ in 0..faults {
        run.inject_fault();
        if run.random.bool() {
            run.wait_for_recovery(None);
        }
    }
    run.wait_for_recovery(None);
    let lost = run.fail_over();
    run.wait_for_recovery(Some(lost));
    observations.stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("a client does not panic"));
    check_rows(&run);
    check_resources(&run, &mut idle, lost, &tasks);
}

/// The number of live tasks by path, without those of clients and servers.
fn tasks(gateway: &Gateway) -> BTreeMap<String, u64> {
    let mut rows = gateway.show("TASKS");
    rows.retain(|row| !row["path"].contains("clients") && !row["path"].contains("servers"));
    rows.into_iter().map(|row| (row["path"].clone(), row["live"].parse().expect("a number"))).collect()
}

/// Asserts that every confirmed row exists once, that no rejected row exists, and that no unexpected error occurred.
fn check_rows(run: &FaultRun) {
    let FaultRun { cluster, observations, events, .. } = run;
    let events = events.join("\n");
    let violations = observations.violations.lock().expect("no client panicked");
    assert!(violations.is_empty(), "{violations:#?}\n{events}");
    let (confirmed, in_doubt) = (observations.confirmed.lock(), observations.in_doubt.lock());
    let (confirmed, in_doubt) = (confirmed.expect("no client panicked"), in_doubt.expect("no client panicked"));
    let errors = observations.errors.lock().expect("no client panicked");
    println!("{} rows, {} reads, errors: {errors:?}", confirmed.len(), observations.reads.load(Ordering::Relaxed));
    let unknown: Vec<_> = errors.keys().filter(|code| !IN_DOUBT.contains(&code.as_str())).collect();
    assert!(unknown.is_empty(), "{errors:?}\n{events}");
    let rows = cluster.primary().simple_query("select v, count(*) from t group by v").expect("the primary answers");
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let existing: BTreeMap<String, String> = rows.iter().map(|row| (text(&row[0]), text(&row[1]))).collect();
    let missing: Vec<_> = confirmed.iter().filter(|row| !existing.contains_key(*row)).collect();
    assert!(missing.is_empty(), "confirmed and lost: {} since {:?}\n{events}", missing.len(), missing.first());
    let duplicates: Vec<_> = existing.iter().filter(|(_, count)| *count != "1").collect();
    assert!(duplicates.is_empty(), "{duplicates:?}\n{events}");
    let rejected: Vec<_> =
        existing.keys().filter(|row| !confirmed.contains(*row) && !in_doubt.contains(*row)).collect();
    assert!(rejected.is_empty(), "rejected and written: {rejected:?}, {errors:?}\n{events}");
}

/// Asserts that no probe, task or transaction remains and that idle clients are not affected.
fn check_resources(run: &FaultRun, idle: &mut [RawClient], lost: usize, before: &BTreeMap<String, u64>) {
    let FaultRun { cluster, gateway, .. } = run;
    idle.iter_mut().for_each(|client| drop(client.ok("select 1")));
    for (database, index) in ["app", "ro"].into_iter().flat_map(|name| (0..3).map(move |index| (name, index))) {
        wait_for(gateway, cluster, database, index, "in_flight", "0");
    }
    let probes = "select count(*) from pg_stat_activity where application_name = 'tidegate probe'";
    for index in (0..3).filter(|index| *index != lost) {
        // The two databases are probed separately.
        eventually("a server has one probe connection per database", || {
            value(cluster.server(index), probes).parse::<u32>().expect("a number") <= 2
        });
    }
    // There may have been more tasks before, because some end soon.
    let is_not_more = |(path, live): (&String, &u64)| before.get(path).is_some_and(|before| live <= before);
    eventually("no task remains", || tasks(gateway).iter().all(is_not_more));
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
}

#[test]
fn random_faults_lose_no_confirmed_row() {
    let seed = number("TIDEGATE_SEED", fastrand::u64(..1 << 32));
    for seed in seed..seed + number("TIDEGATE_FAULT_RUNS", 1) {
        run(seed);
    }
}
