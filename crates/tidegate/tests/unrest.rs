//! Whatever operators order and whatever crashes, every client is answered or told, and in the end the gateway is at rest.
//!
//! A crowd works on two databases that share a limit, while one thread pauses, resumes, reloads, kills and reconnects at
//! random and leaves before it is through, and another one terminates servers. `TIDEGATE_SEED` is the seed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use fastrand::Rng;
use tidegate_testkit::{Fixture, Frames, Gateway, Lost, RawClient, Signal, Startup, eventually};

const CLIENTS: u64 = 40;
const ORDERS: u32 = 120;

/// One of the crowd, who comes and goes until it is told to stop.
struct Visitor<'a> {
    gateway: Startup,
    rng: Rng,
    stop: &'a AtomicBool,
    /// How many were neither answered nor told.
    left_alone: &'a AtomicUsize,
}

impl Visitor<'_> {
    fn visit(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let database = ["one", "two"][self.rng.usize(..2)];
            let ended = match self.gateway.clone().database(database).try_connect() {
                Ok(client) => self.work(client),
                Err(lost) => Err(lost),
            };
            if matches!(ended, Err(Lost::Timeout | Lost::Garbage(_))) {
                self.left_alone.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn work(&mut self, mut client: RawClient) -> Result<(), Lost> {
        for _ in 0..self.rng.u32(1..30) {
            let number = self.rng.u32(..).to_string();
            match self.rng.u8(..8) {
                0..4 => {
                    let outcome = client.try_query(&format!("select {number}"))?;
                    assert!(outcome.error.is_some() || outcome.rows == [[number]], "{outcome:?}");
                }
                4 | 5 => {
                    client.try_query("begin")?;
                    client.try_query("select pg_sleep(0.002)")?;
                    client.try_query("commit")?;
                }
                6 => {
                    let frames = Frames::new().parse("", "select $1").bind("", &[&number]).execute().sync();
                    client.try_send(frames.bytes())?;
                    client.try_until_ready()?;
                }
                _ => {
                    client.try_send(Frames::new().query("select pg_sleep(0.002)").bytes())?;
                    client.vanish(self.rng.bool());
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// An operator who does not know what is good.
struct Operator<'a> {
    gateway: &'a mut Gateway,
    port: u16,
    role: String,
    rng: Rng,
}

impl Operator<'_> {
    fn order(&mut self) {
        let name = ["one", "two"][self.rng.usize(..2)];
        match self.rng.u8(..12) {
            0 => self.tell(&format!("PAUSE {name}")),
            1 => self.tell("PAUSE"),
            2 => self.tell("SUSPEND"),
            3 | 4 => self.tell("RESUME"),
            5 => self.tell(&format!("RECONNECT {name}")),
            6 => self.tell(&format!("KILL {name}; RESUME {name}")),
            7 => self.tell(&format!("DISABLE {name}; ENABLE {name}")),
            8 => self.send_somebody_away(),
            9 => {
                self.gateway.remove("databases.two");
                self.tell("RELOAD");
                self.settle();
            }
            _ => {
                let size = self.rng.u8(1..6);
                self.gateway.rewrite("databases.one.size", i64::from(size));
                self.gateway.rewrite("databases.two.min_size", i64::from(self.rng.u8(..=size.min(2))));
                self.tell("RELOAD");
            }
        }
        if self.rng.u8(..3) == 0 {
            self.tell("RESUME");
        }
    }

    /// Gives an order, and now and then leaves before it is carried out.
    fn tell(&mut self, order: &str) {
        let mut console = self.gateway.console();
        console.send(&Frames::new().query(order));
        if self.rng.bool() {
            console.until_ready();
        }
    }

    fn send_somebody_away(&mut self) {
        let clients = self.gateway.show("CLIENTS");
        let id = clients[self.rng.usize(..clients.len())]["id"].clone();
        self.gateway.console().query(&format!("KILL_CLIENT {id}"));
    }

    /// The configuration of the beginning.
    fn settle(&mut self) {
        for name in ["one", "two"] {
            let section = format!("databases.{name}");
            self.gateway.rewrite(&format!("{section}.host"), "127.0.0.1");
            self.gateway.rewrite(&format!("{section}.port"), i64::from(self.port));
            self.gateway.rewrite(&format!("{section}.dbname"), "postgres");
            self.gateway.rewrite(&format!("{section}.user"), self.role.as_str());
            self.gateway.rewrite(&format!("{section}.size"), 4);
            self.gateway.rewrite(&format!("{section}.min_size"), 1);
        }
        self.gateway.console().ok("RELOAD");
    }
}

fn terminate_servers(fixture: &Fixture, role: &str, mut rng: Rng, stop: &AtomicBool) {
    let mut client = fixture.server.client();
    while !stop.load(Ordering::Relaxed) {
        let how_many = if rng.u8(..10) == 0 { 100 } else { 1 };
        client.ok(&format!(
            "select pg_terminate_backend(pid) from (select pid from pg_stat_activity where usename = '{role}' \
             order by random() limit {how_many}) servers"
        ));
        client.ok("select pg_sleep(0.02)");
    }
}

fn is_at_rest(fixture: &Fixture, gateway: &Gateway, role: &str) -> bool {
    let count = |column: &str| gateway.pool_count("one", column) + gateway.pool_count("two", column);
    let busy = ["cl_active", "cl_waiting", "sv_active", "sv_tested", "sv_login"].map(count);
    let servers = gateway.show("SERVERS").len() as u64;
    let connected = fixture.server.value(&format!("select count(*) from pg_stat_activity where usename = '{role}'"));
    busy == [0; 5] && count("sv_idle") == servers && connected == servers.to_string()
}

fn unrest(major: u32) {
    let fixture = Fixture::new(env!("CARGO_BIN_EXE_tidegate"), major);
    let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("TIDEGATE_SEED={seed}");
    let role = fixture.own_role("x", "");
    let sections = ["one", "two"].map(|name| {
        format!("{}user = \"{role}\"\nsize = 4\nmin_size = 1\n", fixture.database_section(name, "postgres"))
    });
    let mut gateway = fixture.start(&format!(
        "[auth]\nmethod = \"trust\"\n{}[pool]\nmax_per_user = 5\n[timeouts]\nconnect_retry = \"10ms\"\n\
         checkout = \"10s\"\n[log]\nlevel = \"info\"\n",
        sections.concat()
    ));
    let (stop, left_alone) = (AtomicBool::new(false), AtomicUsize::new(0));
    let rng = |salt: u64| Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(salt));
    let startup = gateway.startup("one");
    let mut operator = Operator { gateway: &mut gateway, port: fixture.server.port(), role: role.clone(), rng: rng(1) };
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (gateway, stop, left_alone) = (startup.clone(), &stop, &left_alone);
            let visitor = Visitor { gateway, rng: rng(100 + number), stop, left_alone };
            scope.spawn(|| visitor.visit());
        }
        scope.spawn(|| terminate_servers(&fixture, &role, rng(2), &stop));
        // However this ends, the others are told.
        let _over = Over(&stop);
        (0..ORDERS).for_each(|_| operator.order());
        operator.settle();
        operator.gateway.console().ok("RESUME");
    });
    assert_eq!(left_alone.into_inner(), 0, "clients were neither answered nor told");
    eventually("it is at rest", || is_at_rest(&fixture, &gateway, &role));
    for name in ["one", "two"] {
        let mut clients: Vec<_> = (0..4).map(|_| gateway.client(name)).collect();
        clients.iter_mut().for_each(|client| drop(client.ok("begin")));
    }
    gateway.signal(Signal::INT);
    assert!(gateway.wait().success());
    let log = gateway.log();
    let report = log.lines().find(|line| line.contains("tasks ended")).expect("the stop is reported");
    assert!(["aborted=0", "panicked=0", "stuck=0"].iter().all(|part| report.contains(part)), "{report}");
}

/// Ends the work of the crowd, however the test ends.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn after_any_orders_and_crashes_the_gateway_is_at_rest_on_14() {
    unrest(14);
}

#[test]
fn after_any_orders_and_crashes_the_gateway_is_at_rest_on_18() {
    unrest(18);
}
