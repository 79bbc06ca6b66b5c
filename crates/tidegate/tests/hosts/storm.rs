//! Servers are killed, hang, lag, close and move under load, in an order that a seed gives: what was confirmed is
//! there, what was refused is not, nobody reads what is too old, and in the end everything is as if nothing had been.
//!
//! `TIDEGATE_STORMS` is the number of clusters, `TIDEGATE_SEED` the seed of the first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Pid, kill_process};
use tidegate_sandbox::{Cluster, Postgres, ShutdownMode};
use tidegate_testkit::{Frames, Gateway, Lost, RawClient, Signal, Startup};
use toml::Value;

use crate::stage::{
    PATIENCE, connect, database, eventually, gateway, hosts, replicating, shown, sql, value, wait_for,
    wait_until_settled,
};

const WRITERS: usize = 6;
const READERS: usize = 4;
/// What a replica may lack, and what a busy machine may add to it.
const LAG_MAX: Duration = Duration::from_secs(1);
const SLACK: Duration = Duration::from_secs(6);

/// What may be told of work that was under way when its server went: it may have been done, or not. Nothing else may.
const IN_DOUBT: [&str; 3] = ["08006", "57P01", "57P02"];

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What the clients of a storm have seen.
#[derive(Default)]
struct Seen {
    stop: AtomicBool,
    /// Rows that were confirmed, and rows of which nobody knows.
    confirmed: Mutex<BTreeSet<String>>,
    in_doubt: Mutex<BTreeSet<String>>,
    refused: Mutex<BTreeMap<String, usize>>,
    /// When each number of the beat was confirmed.
    beats: Mutex<Vec<(Instant, u64)>>,
    reads: AtomicU64,
    /// Pieces of work done, by client.
    done: Vec<AtomicU64>,
    wrong: Mutex<Vec<String>>,
}

impl Seen {
    fn new() -> Arc<Self> {
        Arc::new(Self { done: (0..=WRITERS + READERS).map(|_| AtomicU64::new(0)).collect(), ..Self::default() })
    }

    fn complain(&self, text: String) {
        self.wrong.lock().expect("nobody panicked").push(text);
    }

    /// Waits until every client has done some more.
    #[track_caller]
    fn goes_on(&self, story: impl Fn() -> String) {
        let done = || self.done.iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let (before, deadline) = (done(), Instant::now() + PATIENCE);
        while !done().iter().zip(&before).all(|(now, then)| *now >= then + 3) {
            assert!(Instant::now() < deadline, "clients do not go on: {before:?}, {:?}\n{}", done(), story());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until so much was read.
    #[track_caller]
    fn reads(&self, more: u64) {
        let until = self.reads.load(Ordering::Relaxed) + more;
        eventually("somebody reads", || self.reads.load(Ordering::Relaxed) >= until);
    }
}

/// A client that comes again whenever it was sent away.
struct Client {
    startup: Startup,
    held: Option<RawClient>,
    seen: Arc<Seen>,
}

/// How a piece of work ended.
enum End {
    Done(Vec<Vec<String>>),
    /// An error, or the end of the connection.
    Told(String),
}

impl Client {
    fn new(startup: Startup, seen: &Arc<Seen>) -> Self {
        Self { startup, held: None, seen: seen.clone() }
    }

    /// The connection; `None` if the gateway lets nobody in now.
    fn connection(&mut self) -> Option<&mut RawClient> {
        if self.held.is_none() {
            let mut client = self.startup.try_open().ok()?;
            client.set_patience(PATIENCE);
            client.try_send(&self.startup.packet()).ok()?;
            if let Err(lost) = client.log_in(None) {
                if matches!(lost, Lost::Timeout) {
                    self.seen.complain(format!("a login hangs: {lost}"));
                }
                return None;
            }
            self.held = Some(client);
        }
        self.held.as_mut()
    }

    fn ask(&mut self, sql: &str) -> End {
        let end = self.try_ask(sql);
        if let End::Told(code) = &end {
            *self.seen.refused.lock().expect("nobody panicked").entry(code.clone()).or_default() += 1;
        }
        end
    }

    fn try_ask(&mut self, sql: &str) -> End {
        let asked = match self.connection() {
            Some(client) => converse(client, sql),
            None => return End::Told("no login".to_owned()),
        };
        match asked {
            Ok(rows) => End::Done(rows),
            Err((code, lost)) => {
                if let Some(lost @ (Lost::Timeout | Lost::Garbage(_))) = lost {
                    self.seen.complain(format!("{sql}: {lost}"));
                }
                // What is left of a transaction ends with the connection.
                self.held = None;
                End::Told(code)
            }
        }
    }

    /// Inserts a row, by itself or in a transaction of several messages.
    fn write(&mut self, row: &str, whole: bool) {
        let insert = format!("insert into t (v) values ('{row}')");
        let statements: &[&str] = if whole { &[&insert] } else { &["begin", &insert, "commit"] };
        for (index, statement) in statements.iter().enumerate() {
            if let End::Told(code) = self.ask(statement) {
                // Before the commit was sent there is no doubt.
                if index + 1 == statements.len() && IN_DOUBT.contains(&code.as_str()) {
                    self.seen.in_doubt.lock().expect("nobody panicked").insert(row.to_owned());
                }
                return;
            }
        }
        self.seen.confirmed.lock().expect("nobody panicked").insert(row.to_owned());
    }

    fn beat(&mut self) -> bool {
        let End::Done(rows) = self.ask("update beat set n = n + 1 returning n") else { return false };
        let number = rows[0][0].parse().expect("a number");
        self.seen.beats.lock().expect("nobody panicked").push((Instant::now(), number));
        true
    }

    /// Reads the beat: what was confirmed long ago must be there.
    fn read(&mut self) -> bool {
        let expected = {
            let beats = self.seen.beats.lock().expect("nobody panicked");
            let old = beats.iter().rev().find(|(at, _)| at.elapsed() > LAG_MAX + SLACK);
            old.map_or(0, |(_, number)| *number)
        };
        let began = Instant::now();
        let End::Done(rows) = self.ask("select n, inet_server_port() from beat") else { return false };
        let number: u64 = rows[0][0].parse().expect("a number");
        // Who waited long for a server had a fresh one, of which less is known here.
        if number < expected && began.elapsed() < SLACK {
            self.seen.complain(format!("server {} says {number}, {expected} was confirmed long before", rows[0][1]));
        }
        self.seen.reads.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// The rows of a query; or the error that was told, and how the connection ended if it did.
fn converse(client: &mut RawClient, sql: &str) -> Result<Vec<Vec<String>>, (String, Option<Lost>)> {
    let (mut rows, mut told) = (Vec::new(), None);
    let end = |told: Option<String>, lost: Lost| (told.unwrap_or_else(|| format!("{lost}")), Some(lost));
    client.try_send(Frames::new().query(sql).bytes()).map_err(|lost| end(None, lost))?;
    loop {
        match client.try_recv() {
            Ok(message) if message.tag == b'D' => rows.push(message.texts()),
            Ok(message) if message.tag == b'E' => told = Some(message.error().code),
            Ok(message) if message.tag == b'Z' => return told.map_or(Ok(rows), |code| Err((code, None))),
            Ok(_) => {}
            // The last words tell more than the end.
            Err(lost) => return Err(end(told, lost)),
        }
    }
}

/// Everybody at work.
fn start(gateway: &Gateway, seen: &Arc<Seen>) -> Vec<JoinHandle<()>> {
    let work = |index: usize| {
        let (seen, database) = (seen.clone(), if index < READERS { "ro" } else { "app" });
        let mut client = Client::new(gateway.startup(database), &seen);
        std::thread::spawn(move || {
            let mut turn = 0_u64;
            while !seen.stop.load(Ordering::Relaxed) {
                turn += 1;
                let done = match index {
                    index if index < READERS => client.read(),
                    READERS => client.beat(),
                    _ => {
                        let before = seen.confirmed.lock().expect("nobody panicked").len();
                        client.write(&format!("{index}-{turn}"), turn.is_multiple_of(2));
                        seen.confirmed.lock().expect("nobody panicked").len() > before
                    }
                };
                if done {
                    seen.done[index].fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    };
    (0..=WRITERS + READERS).map(work).collect()
}

struct Storm {
    cluster: Cluster,
    gateway: Gateway,
    seen: Arc<Seen>,
    random: Rng,
    told: Vec<String>,
}

/// The last lines of a log.
fn last(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(6)..].join("\n")
}

impl Storm {
    fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        println!("{text}");
        self.told.push(text);
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

    /// Any length of work.
    fn while_they_work(&mut self) {
        let reads = self.random.u64(1..400);
        self.seen.reads(reads);
    }

    /// Sometimes until it is noticed, sometimes not.
    fn until_perhaps(&mut self, server: usize, states: &[&str]) {
        if self.random.bool() {
            eventually(&format!("server {server} becomes {states:?}"), || {
                states.contains(&shown(&self.gateway, &self.cluster, "app", server, "state").as_str())
            });
        }
    }

    /// One thing that happens to servers. All of them run afterwards.
    fn strike(&mut self) {
        let (primary, replica) = (self.cluster.primary_index(), self.replica());
        match self.random.u8(..13) {
            0 => {
                self.note(format!("replica {replica} is killed and starts again"));
                self.cluster.server_mut(replica).kill9().expect("it can be killed");
                self.until_perhaps(replica, &["down"]);
                self.cluster.server_mut(replica).restart().expect("it starts again");
            }
            1 => {
                self.note(format!("replica {replica} hangs for a while"));
                self.cluster.server(replica).suspend();
                self.until_perhaps(replica, &["silent", "down"]);
                self.cluster.server(replica).resume();
            }
            2 => {
                self.note(format!("primary {primary} hangs for a while"));
                self.cluster.server(primary).suspend();
                self.until_perhaps(primary, &["silent"]);
                self.cluster.server(primary).resume();
            }
            3 => {
                self.note(format!("primary {primary} is killed and starts again"));
                self.cluster.server_mut(primary).kill9().expect("it can be killed");
                self.until_perhaps(primary, &["down"]);
                self.cluster.server_mut(primary).restart().expect("it starts again");
            }
            4 => {
                self.note(format!("replica {replica} lags"));
                self.cluster.pause_replay(replica).expect("replay can be paused");
                wait_for(&self.gateway, &self.cluster, "ro", replica, "state", "lagging");
                self.while_they_work();
                self.cluster.resume_replay(replica).expect("replay goes on");
            }
            5 => self.switch_over(),
            6 => {
                let server = if self.random.bool() { primary } else { replica };
                self.note(format!("sessions of {server} are ended"));
                let all = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                           where backend_type = 'client backend' and pid <> pg_backend_pid()";
                value(self.cluster.server(server), all);
            }
            7 => {
                self.note(format!("replica {replica} starts anew"));
                self.cluster.server_mut(replica).restart().expect("it starts again");
            }
            8 => {
                self.note("a reload");
                self.gateway.signal(Signal::HUP);
            }
            9 => self.strike_all(),
            10 => {
                self.note("both replicas hang for a while");
                let both = self.replicas();
                both.iter().for_each(|index| self.cluster.server(*index).suspend());
                self.until_perhaps(replica, &["silent", "down"]);
                both.iter().for_each(|index| self.cluster.server(*index).resume());
            }
            11 => self.take_out(replica),
            _ => {
                self.note("a pause");
                let mut console = self.gateway.console();
                console.ok("PAUSE app");
                console.ok("RESUME app");
            }
        }
        self.while_they_work();
    }

    /// All are killed in any order, and start again.
    fn strike_all(&mut self) {
        let mut order = [0, 1, 2];
        self.random.shuffle(&mut order);
        self.note(format!("all are killed, as {order:?}"));
        for index in order {
            self.cluster.server_mut(index).kill9().expect("it can be killed");
        }
        self.until_perhaps(order[0], &["down"]);
        // A replica may have to ask its primary for WAL before it lets anybody in.
        let [one, other] = self.replicas();
        for index in [self.cluster.primary_index(), one, other] {
            self.cluster.server_mut(index).restart().expect("it starts again");
        }
    }

    /// A reload without a server, and another one with it.
    fn take_out(&mut self, replica: usize) {
        self.note(format!("replica {replica} is taken out and put back"));
        let rest: Vec<usize> = (0..3).filter(|index| *index != replica).collect();
        for list in [rest, vec![0, 1, 2]] {
            for name in ["app", "ro"] {
                let list = Value::from(hosts(&self.cluster, &list));
                self.gateway.rewrite(&format!("databases.{name}.hosts"), list);
            }
            self.gateway.signal(Signal::HUP);
            self.while_they_work();
        }
    }

    /// The one of the replicas that has more, once nothing more comes from the primary and both have replayed what they
    /// received.
    fn best(&self) -> usize {
        let has = |index: usize, what: &str| {
            let rows = self.cluster.server(index).simple_query(&format!("select {what}"));
            let rows = rows.unwrap_or_else(|error| panic!("{error}\n{}", self.standing()));
            rows[0][0].clone().unwrap_or_default()
        };
        for index in self.replicas() {
            // It begins again, and gets no answer of a primary that hangs.
            let receiver = has(index, "coalesce((select pid from pg_stat_wal_receiver), 0)");
            if let Some(pid) = receiver.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, rustix::process::Signal::TERM);
            }
            let ended = format!("(select pid from pg_stat_wal_receiver) is distinct from {receiver}");
            eventually("nothing more comes", || has(index, &ended) == "t");
            let all = "coalesce(pg_last_wal_replay_lsn() >= pg_last_wal_receive_lsn(), true)";
            eventually("a replica has replayed all", || has(index, all) == "t");
        }
        let far = |index: &usize| has(*index, "pg_last_wal_replay_lsn() - '0/0'").parse::<u64>().expect("a number");
        self.replicas().into_iter().max_by_key(far).expect("there are two")
    }

    /// What the servers themselves say, for a failure.
    fn standing(&self) -> String {
        let question = "select pg_is_in_recovery(), pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn(), \
                        (select string_agg(state || ' ' || sync_state, ', ') from pg_stat_replication)";
        let of = |server: &Postgres| match server.pid() {
            0 => "ended".to_owned(),
            _ => format!("{} {:?}\n{}", server.port(), server.simple_query(question), last(&server.log())),
        };
        self.cluster.servers().map(of).collect::<Vec<_>>().join("\n")
    }

    fn promote(&mut self) -> usize {
        let best = self.best();
        self.note(format!("server {best} is promoted"));
        let other = self.replicas().into_iter().find(|index| *index != best).expect("there are two");
        self.cluster.promote(best).expect("a replica can be promoted");
        self.follow(other);
        best
    }

    /// Until it has something of the new timeline: one that is killed before may not start again.
    fn follow(&mut self, index: usize) {
        self.cluster.follow(index).expect("it follows the new primary");
        self.cluster.catch_up(index).expect("it catches up");
    }

    fn switch_over(&mut self) {
        let old = self.cluster.primary_index();
        self.note(format!("primary {old} closes"));
        // It ends once its replicas have all that it wrote.
        let mode = if self.random.bool() { ShutdownMode::Smart } else { ShutdownMode::Fast };
        self.cluster.server(old).begin_shutdown(mode);
        self.cluster.server_mut(old).wait_for_shutdown().expect("the gateway lets go of it");
        self.promote();
        self.follow(old);
    }

    /// The primary is gone for good, or sleeps until another one has its place.
    fn lose_the_primary(&mut self) -> usize {
        let old = self.cluster.primary_index();
        let dies = self.random.bool();
        self.note(format!("primary {old} {}", if dies { "dies" } else { "hangs" }));
        if dies {
            self.cluster.server_mut(old).kill9().expect("it can be killed");
        } else {
            self.cluster.server(old).suspend();
        }
        self.until_perhaps(old, &["silent", "down"]);
        self.promote();
        if !dies {
            self.until_perhaps(old, &["deposed"]);
            self.cluster.server(old).resume();
            wait_for(&self.gateway, &self.cluster, "app", old, "state", "deposed");
        }
        old
    }

    /// Everybody is served again, and every server is what it is.
    fn calms_down(&self, lost: Option<usize>) {
        self.seen.goes_on(|| format!("{:#?}\n{}", self.gateway.show("HOSTS"), self.standing()));
        for index in (0..3).filter(|index| Some(*index) != lost) {
            let role = if index == self.cluster.primary_index() { "primary" } else { "replica" };
            for database in ["app", "ro"] {
                wait_for(&self.gateway, &self.cluster, database, index, "role", role);
                wait_for(&self.gateway, &self.cluster, database, index, "state", "up");
            }
        }
    }
}

fn storm(seed: u64) {
    println!("TIDEGATE_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    let cluster = replicating();
    sql(cluster.primary(), "create table beat (n bigint); insert into beat values (0)");
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
        wait_until_settled(&gateway, &cluster, database);
    }
    let tasks = tasks(&gateway);
    let seen = Seen::new();
    let threads = start(&gateway, &seen);
    seen.goes_on(String::new);
    let strikes = random.usize(4..9);
    let mut storm = Storm { cluster, gateway, seen: seen.clone(), random, told: Vec::new() };
    for _ in 0..strikes {
        storm.strike();
        if storm.random.bool() {
            storm.calms_down(None);
        }
    }
    storm.calms_down(None);
    let lost = storm.lose_the_primary();
    storm.calms_down(Some(lost));
    seen.stop.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().expect("a client does not panic"));
    check_rows(&storm);
    check_leftovers(&storm, &mut idle, lost, &tasks);
}

/// How many supervised tasks run now, but for those that serve clients and servers.
fn tasks(gateway: &Gateway) -> BTreeMap<String, u64> {
    let mut rows = gateway.show("TASKS");
    rows.retain(|row| !row["path"].contains("clients") && !row["path"].contains("servers"));
    rows.into_iter().map(|row| (row["path"].clone(), row["live"].parse().expect("a number"))).collect()
}

/// What was confirmed is there, once; what was refused is not; and nobody was told anything else than he may be.
fn check_rows(storm: &Storm) {
    let Storm { cluster, seen, told, .. } = storm;
    let story = told.join("\n");
    let wrong = seen.wrong.lock().expect("nobody panicked");
    assert!(wrong.is_empty(), "{wrong:#?}\n{story}");
    let (confirmed, in_doubt) = (seen.confirmed.lock(), seen.in_doubt.lock());
    let (confirmed, in_doubt) = (confirmed.expect("nobody panicked"), in_doubt.expect("nobody panicked"));
    let refused = seen.refused.lock().expect("nobody panicked");
    println!("{} rows, {} reads, refused: {refused:?}", confirmed.len(), seen.reads.load(Ordering::Relaxed));
    let unknown: Vec<_> = refused.keys().filter(|code| !IN_DOUBT.contains(&code.as_str())).collect();
    assert!(unknown.is_empty(), "{refused:?}\n{story}");
    let rows = cluster.primary().simple_query("select v, count(*) from t group by v").expect("it answers");
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let there: BTreeMap<String, String> = rows.iter().map(|row| (text(&row[0]), text(&row[1]))).collect();
    let missing: Vec<_> = confirmed.iter().filter(|row| !there.contains_key(*row)).collect();
    assert!(missing.is_empty(), "confirmed and lost: {} since {:?}\n{story}", missing.len(), missing.first());
    let twice: Vec<_> = there.iter().filter(|(_, count)| *count != "1").collect();
    assert!(twice.is_empty(), "{twice:?}\n{story}");
    let done: Vec<_> = there.keys().filter(|row| !confirmed.contains(*row) && !in_doubt.contains(*row)).collect();
    assert!(done.is_empty(), "refused and done: {done:?}, {refused:?}\n{story}");
}

/// Nothing is left of it, and who was between transactions has not noticed.
fn check_leftovers(storm: &Storm, idle: &mut [RawClient], lost: usize, before: &BTreeMap<String, u64>) {
    let Storm { cluster, gateway, .. } = storm;
    idle.iter_mut().for_each(|client| drop(client.ok("select 1")));
    for (database, index) in ["app", "ro"].into_iter().flat_map(|name| (0..3).map(move |index| (name, index))) {
        wait_for(gateway, cluster, database, index, "in_flight", "0");
    }
    let probes = "select count(*) from pg_stat_activity where application_name = 'tidegate probe'";
    for index in (0..3).filter(|index| *index != lost) {
        // One for each of the two lists of rules.
        eventually("a server is asked over one connection", || {
            value(cluster.server(index), probes).parse::<u32>().expect("a number") <= 2
        });
    }
    // There may have been more then: some end soon.
    let is_no_more = |(path, live): (&String, &u64)| before.get(path).is_some_and(|before| live <= before);
    eventually("no task is left", || tasks(gateway).iter().all(is_no_more));
    assert!(!gateway.log().contains("panicked"), "{}", gateway.log());
}

#[test]
fn a_storm_of_crashes_hangs_and_promotions_costs_nothing_that_was_confirmed() {
    let seed = number("TIDEGATE_SEED", fastrand::u64(..1 << 32));
    for seed in seed..seed + number("TIDEGATE_STORMS", 1) {
        storm(seed);
    }
}
