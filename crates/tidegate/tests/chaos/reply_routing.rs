//! No reply reaches the wrong client, whatever clients and servers do.
//!
//! Hundreds of clients send tagged queries in every protocol form and disconnect at any point, while servers are
//! killed. [`Replies`] records the client of each tag. At the end the pool serves as before.
//!
//! `TIDEGATE_CLIENTS` is the number of clients, `TIDEGATE_SEED` the seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use tidegate_testkit::{ClientError, Fixture, Frames, Gateway, Message, RawClient, Replies, Startup, eventually};

const CLIENTS: u64 = 200;
const ROUNDS: u64 = 15;
const SIZE: u64 = 8;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A client that reconnects and acts at random.
struct RandomClient {
    number: usize,
    startup: Startup,
    replies: Arc<Replies>,
    rng: Rng,
    table: String,
}

impl RandomClient {
    fn run(mut self) {
        let mut client = None;
        for _ in 0..ROUNDS {
            let Some(connected) = client.take().or_else(|| self.startup.try_connect().ok()) else { continue };
            client = self.step(connected);
        }
    }

    /// A random step; returns the connection unless the client disconnected.
    fn step(&mut self, client: RawClient) -> Option<RawClient> {
        match self.rng.u8(..14) {
            0..3 => self.simple(client),
            3..5 => self.prepared(client),
            5..7 => self.pipeline(client),
            7 | 8 => self.transaction(client),
            9 => self.copy_out(client),
            10 => self.disconnect_in_a_query(client),
            11 => self.disconnect_in_a_copy(client),
            12 => self.disconnect_in_a_transaction(client),
            _ => self.cancel(client),
        }
    }

    /// Sends the frames, and expects one row with each tag in order.
    fn expect_rows(&mut self, mut client: RawClient, frames: &Frames, tags: &[u64]) -> Option<RawClient> {
        let is_closed = client.try_send(frames.bytes()).is_err();
        for tag in tags {
            let outcome = if is_closed { Err(ClientError::Closed) } else { client.try_until_ready() };
            match outcome {
                Err(_) => self.replies.abandon(*tag),
                Ok(outcome) if outcome.error.is_some() => self.replies.abandon(*tag),
                Ok(outcome) => self.check_rows(*tag, &outcome.messages),
            }
        }
        Some(client)
    }

    fn check_rows(&self, tag: u64, messages: &[Message]) {
        let mut rows = messages.iter().filter(|message| matches!(message.tag, b'D' | b'd'));
        match rows.next() {
            None => self.replies.violation(self.number, &format!("no row for {tag}: {messages:?}")),
            Some(row) => self.replies.received(self.number, tag, &text(row)),
        }
        for row in rows.filter(|row| text(row) != tag.to_string()) {
            self.replies.violation(self.number, &format!("a row {:?} in the reply to {tag}", text(row)));
        }
    }

    fn simple(&mut self, client: RawClient) -> Option<RawClient> {
        let tag = self.replies.new_tag(self.number);
        let rows = self.rng.u32(1..200);
        let sql = match self.rng.u8(..3) {
            0 => format!("select {tag}"),
            1 => format!("select {tag} from generate_series(1, {rows})"),
            _ => format!("select {tag} from pg_sleep({})", self.rng.f64() / 100.0),
        };
        self.expect_rows(client, &Frames::new().query(&sql), &[tag])
    }

    /// All clients use one text, so that they share its statement on the servers.
    fn prepared(&mut self, client: RawClient) -> Option<RawClient> {
        let tag = self.replies.new_tag(self.number);
        let value = tag.to_string();
        let name = ["", "s"][self.rng.usize(..2)];
        let frames = Frames::new().close_statement(name).parse(name, "select $1::bigint");
        let frames = frames.bind(name, &[&value]).execute();
        self.expect_rows(client, &frames.sync(), &[tag])
    }

    fn pipeline(&mut self, client: RawClient) -> Option<RawClient> {
        let tags: Vec<_> = (0..self.rng.usize(1..8)).map(|_| self.replies.new_tag(self.number)).collect();
        let frames = tags.iter().fold(Frames::new(), |frames, tag| frames.once(&format!("select {tag}")).sync());
        self.expect_rows(client, &frames, &tags)
    }

    fn transaction(&mut self, mut client: RawClient) -> Option<RawClient> {
        if client.try_query("begin").is_err() {
            return None;
        }
        let tag = self.replies.new_tag(self.number);
        let mut client = self.expect_rows(client, &Frames::new().query(&format!("select {tag}")), &[tag])?;
        client.try_query("rollback").is_ok().then_some(client)
    }

    fn copy_out(&mut self, client: RawClient) -> Option<RawClient> {
        let tag = self.replies.new_tag(self.number);
        let sql = format!("copy (select {tag} from generate_series(1, 100)) to stdout");
        self.expect_rows(client, &Frames::new().query(&sql), &[tag])
    }

    fn disconnect_in_a_query(&mut self, mut client: RawClient) -> Option<RawClient> {
        let tag = self.replies.new_tag(self.number);
        let frames = Frames::new().once(&format!("select {tag} from pg_sleep(0.01), generate_series(1, 1000)")).sync();
        let cut = self.rng.usize(1..=frames.bytes().len());
        drop(client.try_send(&frames.bytes()[..cut]));
        if cut == frames.bytes().len() && self.rng.bool() {
            drop(client.try_recv());
        }
        client.disconnect(self.rng.bool());
        self.replies.abandon(tag);
        None
    }

    fn disconnect_in_a_copy(&mut self, mut client: RawClient) -> Option<RawClient> {
        let copy = Frames::new().query(&format!("copy {} from stdin", self.table)).copy_data(b"1\n");
        drop(client.try_send(copy.bytes()));
        if self.rng.bool() {
            drop(client.try_recv());
        }
        client.disconnect(self.rng.bool());
        None
    }

    fn disconnect_in_a_transaction(&mut self, mut client: RawClient) -> Option<RawClient> {
        drop(client.try_query(&format!("begin; insert into {} values (1)", self.table)));
        client.disconnect(self.rng.bool());
        None
    }

    fn cancel(&mut self, client: RawClient) -> Option<RawClient> {
        let tag = self.replies.new_tag(self.number);
        let mut client = client;
        if client.try_send(Frames::new().query(&format!("select {tag} from pg_sleep(0.02)")).bytes()).is_err() {
            self.replies.abandon(tag);
            return None;
        }
        if let Ok(mut canceller) = client.startup().try_open() {
            drop(canceller.try_send(&client.key.request()));
        }
        self.expect_rows(client, &Frames::new(), &[tag])
    }
}

fn text(row: &Message) -> String {
    match row.tag {
        b'D' => row.texts().join(","),
        _ => String::from_utf8_lossy(&row.body).trim_end().to_owned(),
    }
}

/// Kills a random server periodically until the flag is set.
fn kill_servers(fixture: &Fixture, role: &str, stop: &AtomicBool) {
    let mut client = fixture.server.client();
    let kill = format!(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = '{role}' order by random() limit 1"
    );
    while !stop.load(Ordering::Relaxed) {
        client.ok(&kill);
        client.ok("select pg_sleep(0.03)");
    }
}

fn run_clients(major: u32, mode: &str) {
    let fixture = Fixture::new(env!("CARGO_BIN_EXE_tidegate"), major);
    let seed = number("TIDEGATE_SEED", fastrand::u64(..1 << 32));
    println!("TIDEGATE_SEED={seed}");
    let role = fixture.create_role("x", "");
    let table = fixture.create_table("n int");
    fixture.server.sql(&format!("grant all on {table} to {role}"));
    let retry = "[timeouts]\nconnect_retry = \"10ms\"\n[log]\nlevel = \"info\"\n";
    let gateway = fixture.gateway(&format!("user = \"{role}\"\nmode = \"{mode}\"\nsize = {SIZE}\n{retry}"));
    let replies = Arc::new(Replies::new());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let killer = scope.spawn(|| kill_servers(&fixture, &role, &stop));
        let clients: Vec<_> = (0..number("TIDEGATE_CLIENTS", CLIENTS))
            .map(|number| {
                let client = RandomClient {
                    number: usize::try_from(number).expect("few clients"),
                    startup: gateway.startup("postgres"),
                    replies: Arc::clone(&replies),
                    rng: Rng::with_seed(seed.wrapping_add(number)),
                    table: table.clone(),
                };
                scope.spawn(move || client.run())
            })
            .collect();
        let results: Vec<_> = clients.into_iter().map(thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Relaxed);
        killer.join().expect("the killer does not fail");
        assert!(results.iter().all(Result::is_ok), "a client failed");
    });
    replies.check();
    assert!(replies.answered() > 0);
    assert_recovered(&fixture, &gateway, &role, &table);
}

fn assert_recovered(fixture: &Fixture, gateway: &Gateway, role: &str, table: &str) {
    for column in ["cl_active", "cl_waiting", "sv_active"] {
        gateway.wait_for_pool("postgres", column, 0);
    }
    let mut clients: Vec<_> = (0..SIZE).map(|_| gateway.client("postgres")).collect();
    for client in &mut clients {
        assert_eq!(client.ok("select 'served'").status, 'I');
    }
    assert_eq!(fixture.server.value(&format!("select count(*) from {table}")), "0");
    let count = format!("select count(*) from pg_stat_activity where usename = '{role}'");
    eventually("no more servers than the size", || {
        fixture.server.value(&count).parse::<u64>().is_ok_and(|count| count <= SIZE)
    });
    // No request is open, so that no message may arrive.
    for client in &mut clients {
        client.set_timeout(Duration::from_secs(1));
        assert!(!client.has_input());
    }
}

#[test]
fn no_misrouted_reply_in_transaction_mode() {
    run_clients(18, "transaction");
}

#[test]
fn no_misrouted_reply_in_transaction_mode_on_14() {
    run_clients(14, "transaction");
}

#[test]
fn no_misrouted_reply_in_session_mode() {
    run_clients(18, "session");
}

#[test]
fn no_misrouted_reply_in_statement_mode() {
    run_clients(18, "statement");
}
