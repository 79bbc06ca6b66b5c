//! Every client gets a reply or an error despite random console commands and crashes, and the gateway is idle at the
//! end.
//!
//! Clients work on two databases that share a limit. One thread pauses, resumes, reloads, kills and reconnects at
//! random and may disconnect before a command completes; another one terminates servers. `TIDEGATE_SEED` is the seed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use fastrand::Rng;
use tidegate_testkit::{ClientError, Fixture, Frames, Gateway, RawClient, Signal, Startup, eventually};

const CLIENTS: u64 = 40;
const COMMANDS: u32 = 120;

/// A client that reconnects and works until the flag is set.
struct RandomClient<'a> {
    gateway: Startup,
    rng: Rng,
    stop: &'a AtomicBool,
    /// The number of connections that got neither a reply nor an error.
    unanswered: &'a AtomicUsize,
}

impl RandomClient<'_> {
    fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let database = ["one", "two"][self.rng.usize(..2)];
            let ended = match self.gateway.clone().database(database).try_connect() {
                Ok(client) => self.work(client),
                Err(error) => Err(error),
            };
            if matches!(ended, Err(ClientError::Timeout | ClientError::Garbage(_))) {
                self.unanswered.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn work(&mut self, mut client: RawClient) -> Result<(), ClientError> {
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
                    client.disconnect(self.rng.bool());
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// An operator that sends random commands.
struct Operator<'a> {
    gateway: &'a mut Gateway,
    port: u16,
    role: String,
    rng: Rng,
}

impl Operator<'_> {
    fn command(&mut self) {
        let name = ["one", "two"][self.rng.usize(..2)];
        match self.rng.u8(..12) {
            0 => self.send(&format!("PAUSE {name}")),
            1 => self.send("PAUSE"),
            2 => self.send("SUSPEND"),
            3 | 4 => self.send("RESUME"),
            5 => self.send(&format!("RECONNECT {name}")),
            6 => self.send(&format!("KILL {name}; RESUME {name}")),
            7 => self.send(&format!("DISABLE {name}; ENABLE {name}")),
            8 => self.kill_a_client(),
            9 => {
                self.gateway.remove_config("databases.two");
                self.send("RELOAD");
                self.restore_configuration();
            }
            _ => {
                let size = self.rng.u8(1..6);
                self.gateway.set_config("databases.one.size", i64::from(size));
                self.gateway.set_config("databases.two.min_size", i64::from(self.rng.u8(..=size.min(2))));
                self.send("RELOAD");
            }
        }
        if self.rng.u8(..3) == 0 {
            self.send("RESUME");
        }
    }

    /// Sends a command, and disconnects before it completes in half of the cases.
    fn send(&mut self, command: &str) {
        let mut console = self.gateway.console();
        console.send(&Frames::new().query(command));
        if self.rng.bool() {
            console.until_ready();
        }
    }

    fn kill_a_client(&mut self) {
        let clients = self.gateway.show("CLIENTS");
        let id = clients[self.rng.usize(..clients.len())]["id"].clone();
        self.gateway.console().query(&format!("KILL_CLIENT {id}"));
    }

    /// Restores the initial configuration.
    fn restore_configuration(&mut self) {
        for name in ["one", "two"] {
            let section = format!("databases.{name}");
            self.gateway.set_config(&format!("{section}.host"), "127.0.0.1");
            self.gateway.set_config(&format!("{section}.port"), i64::from(self.port));
            self.gateway.set_config(&format!("{section}.dbname"), "postgres");
            self.gateway.set_config(&format!("{section}.user"), self.role.as_str());
            self.gateway.set_config(&format!("{section}.size"), 4);
            self.gateway.set_config(&format!("{section}.min_size"), 1);
        }
        self.gateway.console().ok("RELOAD");
    }
}

fn terminate_servers(fixture: &Fixture, role: &str, mut rng: Rng, stop: &AtomicBool) {
    let mut client = fixture.server.client();
    while !stop.load(Ordering::Relaxed) {
        let count = if rng.u8(..10) == 0 { 100 } else { 1 };
        client.ok(&format!(
            "select pg_terminate_backend(pid) from (select pid from pg_stat_activity where usename = '{role}' \
             order by random() limit {count}) servers"
        ));
        client.ok("select pg_sleep(0.02)");
    }
}

fn is_idle(fixture: &Fixture, gateway: &Gateway, role: &str) -> bool {
    let count = |column: &str| gateway.pool_count("one", column) + gateway.pool_count("two", column);
    let busy = ["cl_active", "cl_waiting", "sv_active", "sv_tested", "sv_login"].map(count);
    let servers = gateway.show("SERVERS").len() as u64;
    let connected = fixture.server.value(&format!("select count(*) from pg_stat_activity where usename = '{role}'"));
    busy == [0; 5] && count("sv_idle") == servers && connected == servers.to_string()
}

fn run(major: u32) {
    let fixture = Fixture::new(env!("CARGO_BIN_EXE_tidegate"), major);
    let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("TIDEGATE_SEED={seed}");
    let role = fixture.create_role("x", "");
    let sections = ["one", "two"].map(|name| {
        format!("{}user = \"{role}\"\nsize = 4\nmin_size = 1\n", fixture.database_section(name, "postgres"))
    });
    let mut gateway = fixture.start(&format!(
        "[auth]\nmethod = \"trust\"\n{}[pool]\nmax_per_user = 5\n[timeouts]\nconnect_retry = \"10ms\"\n\
         checkout = \"10s\"\n[log]\nlevel = \"info\"\n",
        sections.concat()
    ));
    let (stop, unanswered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let rng = |salt: u64| Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(salt));
    let startup = gateway.startup("one");
    let mut operator = Operator { gateway: &mut gateway, port: fixture.server.port(), role: role.clone(), rng: rng(1) };
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (gateway, stop, unanswered) = (startup.clone(), &stop, &unanswered);
            let client = RandomClient { gateway, rng: rng(100 + number), stop, unanswered };
            scope.spawn(|| client.run());
        }
        scope.spawn(|| terminate_servers(&fixture, &role, rng(2), &stop));
        // Stops the clients, also if the operator panics.
        let _stop_on_drop = StopOnDrop(&stop);
        (0..COMMANDS).for_each(|_| operator.command());
        operator.restore_configuration();
        operator.gateway.console().ok("RESUME");
    });
    assert_eq!(unanswered.into_inner(), 0, "clients got neither a reply nor an error");
    eventually("the gateway is idle", || is_idle(&fixture, &gateway, &role));
    for name in ["one", "two"] {
        let mut clients: Vec<_> = (0..4).map(|_| gateway.client(name)).collect();
        clients.iter_mut().for_each(|client| drop(client.ok("begin")));
    }
    gateway.signal(Signal::INT);
    assert!(gateway.wait().success());
    let log = gateway.log();
    let report = log.lines().find(|line| line.contains("tasks ended")).expect("the shutdown is reported");
    assert!(["aborted=0", "panicked=0", "stuck=0"].iter().all(|part| report.contains(part)), "{report}");
}

/// Stops the clients when the test ends, also by a panic.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn gateway_is_idle_after_commands_and_crashes_on_14() {
    run(14);
}

#[test]
fn gateway_is_idle_after_commands_and_crashes_on_18() {
    run(18);
}
