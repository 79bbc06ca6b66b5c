//! What one test stands on: a real Postgres of some version, names of its own, and the gateway's binary.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Gateway, PATIENCE, RawClient, Server, Startup};

const POLL: Duration = Duration::from_millis(10);

/// Polls a condition until it holds; the deadline fails the test.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(POLL);
    }
}

/// Names and servers of one test.
pub struct Fixture {
    /// The Postgres, shared with other tests.
    pub server: &'static Server,
    binary: PathBuf,
}

impl Fixture {
    /// A fixture on the shared Postgres of this major version.
    pub fn new(binary: impl AsRef<Path>, major: u32) -> Self {
        Self { server: Server::shared(major), binary: binary.as_ref().to_owned() }
    }

    /// A name that no other test uses.
    pub fn name(&self, stem: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("{stem}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// A database that no other test uses.
    #[track_caller]
    pub fn own_database(&self) -> String {
        let name = self.name("test");
        self.server.sql(&format!("create database {name}"));
        name
    }

    /// A role that no other test uses, with a password and (maybe) the group that decides how it logs in.
    #[track_caller]
    pub fn own_role(&self, password: &str, group: &str) -> String {
        let name = self.name("role");
        let member = if group.is_empty() { String::new() } else { format!("in role {group}") };
        self.server.sql(&format!("create role {name} login password '{password}' {member}"));
        name
    }

    /// A table that no other test uses, in the database `postgres`.
    #[track_caller]
    pub fn own_table(&self, columns: &str) -> String {
        let name = self.name("t");
        self.server.sql(&format!("create table {name} ({columns})"));
        name
    }

    /// A gateway in trust mode with the database `postgres`; `pool` holds more keys of `[databases.postgres]`, and,
    /// after a line `[...]`, further sections.
    pub fn gateway(&self, pool: &str) -> Gateway {
        self.gateway_to(&[("postgres", "postgres")], pool)
    }

    /// A gateway in trust mode with these databases (name, Postgres's name); `last` goes into the section of the last.
    pub fn gateway_to(&self, databases: &[(&str, &str)], last: &str) -> Gateway {
        let mut config = "[auth]\nmethod = \"trust\"\n".to_owned();
        for (name, database) in databases {
            config.push_str(&self.database_section(name, database));
        }
        config.push_str(last);
        self.start(&config)
    }

    /// The section of one database on this fixture's server.
    pub fn database_section(&self, name: &str, database: &str) -> String {
        database_section(name, database, self.server.address())
    }

    /// A gateway with exactly this configuration (and an address).
    pub fn start(&self, config: &str) -> Gateway {
        Gateway::start(&self.binary, config)
    }

    /// The door that is Postgres itself.
    pub fn direct(&self) -> Door {
        Door { startup: self.server.startup(), gateway: None }
    }

    /// Runs a script at Postgres itself, then at a gateway with one connection to it: what holds here must hold there.
    pub fn at_both_doors(&self, script: impl Fn(&Door)) {
        script(&self.direct());
        script(&Door::through(self.gateway("size = 1\n")));
    }
}

/// The section of one database at this address.
pub(crate) fn database_section(name: &str, database: &str, address: SocketAddr) -> String {
    let (host, port) = (address.ip(), address.port());
    format!("[databases.\"{name}\"]\nhost = \"{host}\"\nport = {port}\ndbname = \"{database}\"\n")
}

/// Where a script of bytes enters.
pub struct Door {
    startup: Startup,
    /// The gateway, unless the door is Postgres itself.
    pub gateway: Option<Gateway>,
}

impl Door {
    /// The door that is this gateway.
    pub fn through(gateway: Gateway) -> Self {
        Self { startup: gateway.startup("postgres"), gateway: Some(gateway) }
    }

    /// Whether scripts go to Postgres itself.
    pub fn is_direct(&self) -> bool {
        self.gateway.is_none()
    }

    /// A login at this door, to be changed.
    pub fn startup(&self) -> Startup {
        self.startup.clone()
    }

    /// A client at this door.
    #[track_caller]
    pub fn client(&self) -> RawClient {
        self.startup.connect()
    }
}
