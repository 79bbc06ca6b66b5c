//! The Postgres servers of a test binary: one per major version, started at first use and shared by all tests.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::OnceLock;

use tidegate_sandbox::{Major, Postgres};

use crate::tls::Authority;
use crate::{RawClient, Startup};

/// The pg_hba.conf. Membership in a group selects the authentication method of a role; all other roles are trusted.
const HBA: &str = "\
hostnossl all +tls_only 127.0.0.1/32 reject
host all +scram_login 127.0.0.1/32 scram-sha-256
host all +md5_login 127.0.0.1/32 md5
host all +cleartext_login 127.0.0.1/32 password
hostssl all +cert_login 127.0.0.1/32 cert
host all +cert_login 127.0.0.1/32 reject
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
local all all trust
local replication all trust
";

/// Limits for a few dozen concurrent tests, each with its own pool.
const SETTINGS: &[(&str, &str)] = &[
    ("max_connections", "400"),
    ("wal_level", "logical"),
    ("max_wal_senders", "40"),
    ("max_replication_slots", "40"),
    ("password_encryption", "scram-sha-256"),
    ("log_min_messages", "warning"),
    ("autovacuum", "off"),
];

/// A running Postgres that many tests share. Tests must not stop it, nor change what other tests use.
pub struct Server {
    postgres: Postgres,
    major: u32,
    authority: Authority,
}

impl Server {
    /// The shared server of this major version. It stops when the process exits.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn shared(major: u32) -> &'static Self {
        static FOURTEEN: OnceLock<Server> = OnceLock::new();
        static EIGHTEEN: OnceLock<Server> = OnceLock::new();
        match major {
            14 => FOURTEEN.get_or_init(|| Self::start(14)),
            18 => EIGHTEEN.get_or_init(|| Self::start(18)),
            other => panic!("no shared server of version {other}"),
        }
    }

    /// Starts a server that the test may kill, stop and suspend.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(major: u32) -> Self {
        let authority = Authority::new();
        let identity = authority.issue(&["localhost", "127.0.0.1"]);
        let read = |path: &PathBuf| std::fs::read_to_string(path).expect("the authority has written the file");
        let version = Major(major.try_into().expect("a major version is small"));
        let mut builder = Postgres::builder()
            .version(version)
            .hba(HBA)
            .tls(&read(&identity.cert), &read(&identity.key))
            .tls_client_ca(&read(&authority.ca()));
        for (name, value) in SETTINGS {
            builder = builder.setting(name, value);
        }
        let postgres = builder.start().unwrap_or_else(|error| panic!("Postgres {major} does not start: {error}"));
        let server = Self { postgres, major, authority };
        for group in ["tls_only", "scram_login", "md5_login", "cleartext_login", "cert_login"] {
            server.sql(&format!("create role {group}"));
        }
        server
    }

    /// The major version.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// The TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.postgres.port()
    }

    /// The TCP address.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The folder of the unix socket.
    pub fn socket_dir(&self) -> PathBuf {
        self.postgres.socket_dir().to_owned()
    }

    /// The authority that signed the server certificate (for `localhost` and `127.0.0.1`) and that client certificates
    /// must be signed by.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The sandbox, for servers that belong to one test.
    pub fn postgres(&mut self) -> &mut Postgres {
        &mut self.postgres
    }

    /// The parameters of a login as superuser, to be changed.
    pub fn startup(&self) -> Startup {
        Startup::tcp(self.address(), "postgres", "postgres")
    }

    /// Connects to the server as superuser.
    #[track_caller]
    pub fn client(&self) -> RawClient {
        self.startup().connect()
    }

    /// Runs one statement as superuser.
    #[track_caller]
    pub fn sql(&self, sql: &str) {
        self.client().ok(sql);
    }

    /// Terminates a backend and waits until it is gone.
    #[track_caller]
    pub fn kill_backend(&self, pid: &str) {
        self.sql(&format!("select pg_terminate_backend({pid}, 10000)"));
    }

    /// Runs one statement as superuser and returns its value.
    #[track_caller]
    pub fn value(&self, sql: &str) -> String {
        self.client().value(sql)
    }
}
