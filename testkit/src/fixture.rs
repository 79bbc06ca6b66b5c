//! Fixtures of a test: a Postgres of some version, unique names and the gateway binary.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::gateway::database_section;
use crate::{Authority, Gateway, RawClient, Server, Startup};

/// The servers and unique names of one test.
pub struct Fixture {
    /// The Postgres server, shared with other tests.
    pub server: &'static Server,
    binary: PathBuf,
}

impl Fixture {
    /// Creates a fixture on the shared Postgres of this major version.
    pub fn new(binary: impl AsRef<Path>, major: u32) -> Self {
        Self { server: Server::shared(major), binary: binary.as_ref().to_owned() }
    }

    /// Returns a name that no other test uses.
    pub fn name(&self, stem: &str) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        format!("{stem}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Creates a database for this test.
    #[track_caller]
    pub fn create_database(&self) -> String {
        let name = self.name("test");
        self.server.sql(&format!("create database {name}"));
        name
    }

    /// Creates a role for this test, with a password and, unless empty, the group that selects its authentication
    /// method.
    #[track_caller]
    pub fn create_role(&self, password: &str, group: &str) -> String {
        let name = self.name("role");
        let member = if group.is_empty() { String::new() } else { format!("in role {group}") };
        self.server.sql(&format!("create role {name} login password '{password}' {member}"));
        name
    }

    /// Creates a table for this test in the database `postgres`.
    #[track_caller]
    pub fn create_table(&self, columns: &str) -> String {
        let name = self.name("t");
        self.server.sql(&format!("create table {name} ({columns})"));
        name
    }

    /// Starts a gateway in trust mode with the database `postgres`. `pool` holds more keys of `[databases.postgres]`
    /// and, after a line `[...]`, further sections.
    pub fn gateway(&self, pool: &str) -> Gateway {
        self.gateway_to(&[("postgres", "postgres")], pool)
    }

    /// Starts a gateway in trust mode with these databases (name, name in Postgres). `last` is appended to the section
    /// of the last one.
    pub fn gateway_to(&self, databases: &[(&str, &str)], last: &str) -> Gateway {
        let mut config = "[auth]\nmethod = \"trust\"\n".to_owned();
        for (name, database) in databases {
            config.push_str(&self.database_section(name, database));
        }
        config.push_str(last);
        self.start(&config)
    }

    /// Starts a gateway in trust mode that offers TLS with a certificate for `localhost`; `pool` as in
    /// [`Self::gateway`].
    pub fn gateway_with_tls(&self, authority: &Authority, pool: &str) -> Gateway {
        let section = self.database_section("postgres", "postgres");
        self.start(&format!("{}[auth]\nmethod = \"trust\"\n{section}{pool}", tls_section(authority)))
    }

    /// The section of one database on the server of this fixture.
    pub fn database_section(&self, name: &str, database: &str) -> String {
        database_section(name, database, self.server.address())
    }

    /// Starts a gateway with exactly this configuration, plus a listen address.
    pub fn start(&self, config: &str) -> Gateway {
        Gateway::start(&self.binary, config)
    }

    /// The target that is Postgres itself.
    pub fn direct(&self) -> Target {
        Target { startup: self.server.startup(), gateway: None }
    }

    /// Runs a script on Postgres itself, then on a gateway with one server connection. Both must behave the same.
    pub fn on_both_targets(&self, script: impl Fn(&Target)) {
        script(&self.direct());
        script(&Target::through(self.gateway("size = 1\n")));
    }
}

/// The section `[listen]` that offers TLS with a certificate for `localhost`.
pub fn tls_section(authority: &Authority) -> String {
    let identity = authority.issue(&["localhost"]);
    let (cert, key) = (identity.cert.display(), identity.key.display());
    format!("[listen]\ntls = \"allow\"\ntls_cert = \"{cert}\"\ntls_key = \"{key}\"\n")
}

/// Postgres itself, or a gateway in front of it.
pub struct Target {
    startup: Startup,
    /// The gateway, unless the target is Postgres itself.
    pub gateway: Option<Gateway>,
}

impl Target {
    /// The target that is this gateway.
    pub fn through(gateway: Gateway) -> Self {
        Self { startup: gateway.startup("postgres"), gateway: Some(gateway) }
    }

    /// Whether the target is Postgres itself.
    pub fn is_direct(&self) -> bool {
        self.gateway.is_none()
    }

    /// The parameters of a login at this target, to be changed.
    pub fn startup(&self) -> Startup {
        self.startup.clone()
    }

    /// Connects a client to this target.
    #[track_caller]
    pub fn client(&self) -> RawClient {
        self.startup.connect()
    }
}
