//! The real binary as a child process, with a configuration of its own.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use toml::{Table, Value};

use crate::process::{Process, free_address};
use crate::{RawClient, Startup};

/// Another process may take the port between the look and the bind.
const PORT_TRIES: u32 = 5;

/// A running gateway; dropping it kills it.
pub struct Gateway {
    process: Process,
    config: Table,
}

impl Deref for Gateway {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Gateway {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Gateway {
    /// Starts the binary with this configuration and waits until it accepts.
    ///
    /// [`Self::binary`] says which binary that is. A listening address is filled in unless the text has one, and debug
    /// logging unless it has a level. The io mode is
    /// `$TIDEGATE_IO`, if set.
    ///
    /// # Panics
    /// If the text is no TOML, or the gateway ends or accepts nothing before the deadline.
    pub fn start(binary: impl AsRef<Path>, config: &str) -> Self {
        let config: Table = config.parse().unwrap_or_else(|error| panic!("{error}\n{config}"));
        let binary = Self::binary(binary);
        for _ in 1..PORT_TRIES {
            if let Some(gateway) = Self::try_start(&binary, &config) {
                return gateway;
            }
        }
        panic!("no free port found in {PORT_TRIES} tries");
    }

    /// What is run: `$TIDEGATE_BIN`, another build or one made elsewhere, or else this one.
    pub fn binary(built: impl AsRef<Path>) -> PathBuf {
        std::env::var_os("TIDEGATE_BIN").map_or_else(|| built.as_ref().to_owned(), PathBuf::from)
    }

    /// Starts the binary in trust mode, with one database `postgres` at this address; `pool` holds more keys of its
    /// section, and, after a line `[...]`, further sections.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub fn before(binary: impl AsRef<Path>, server: SocketAddr, pool: &str) -> Self {
        let section = crate::fixture::database_section("postgres", "postgres", server);
        Self::start(binary, &format!("[auth]\nmethod = \"trust\"\n{section}{pool}"))
    }

    /// Nothing is returned when the port was taken by someone else.
    fn try_start(binary: &Path, config: &Table) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let mut config = config.clone();
        let address = listen_address(&mut config);
        table(&mut config, "log").entry("level").or_insert_with(|| "debug".into());
        // Two threads whatever the machine: what passes between threads is to be seen by every test.
        table(&mut config, "runtime").entry("workers").or_insert_with(|| 2.into());
        let file = folder.path().join("tidegate.toml");
        write_private(&file, &config.to_string());
        let mut command = Command::new(binary);
        command.args(["run", "-c"]).arg(&file);
        if let Ok(io) = std::env::var("TIDEGATE_IO") {
            command.args(["--io", &io]);
        }
        let mut gateway = Self { process: Process::spawn(command, address, folder), config };
        // Who listens there may be somebody else, for whom this one waits.
        (gateway.accepts() && !gateway.log().contains("in use")).then_some(gateway)
    }

    /// A login through it as `postgres`, to be changed.
    pub fn startup(&self, database: &str) -> Startup {
        Startup::tcp(self.address(), "postgres", database)
    }

    /// A client of this database.
    #[track_caller]
    pub fn client(&self, database: &str) -> RawClient {
        self.startup(database).connect()
    }

    /// The admin console.
    #[track_caller]
    pub fn console(&self) -> RawClient {
        self.client("tidegate")
    }

    /// The rows of `SHOW what`, each by column name.
    #[track_caller]
    pub fn show(&self, what: &str) -> Vec<BTreeMap<String, String>> {
        self.console().show(what)
    }

    /// The sum of a numeric column of SHOW POOLS over the pools of a database.
    #[track_caller]
    pub fn pool_count(&self, database: &str, column: &str) -> u64 {
        let pools = self.show("POOLS");
        let own = pools.iter().filter(|pool| pool["database"] == database);
        own.map(|pool| pool[column].parse::<u64>().expect("the column is a number")).sum()
    }

    /// Waits until a column of SHOW POOLS, summed over the pools of a database, has this value.
    #[track_caller]
    pub fn wait_for_pool(&self, database: &str, column: &str, value: u64) {
        crate::eventually(&format!("{column} of {database} becomes {value}"), || {
            self.pool_count(database, column) == value
        });
    }

    /// The log lines at level WARN or ERROR.
    pub fn complaints(&self) -> Vec<String> {
        let loud = |line: &&str| line.contains("WARN") || line.contains("ERROR");
        self.log().lines().filter(loud).map(str::to_owned).collect()
    }

    /// Replaces a key of the configuration file, such as `databases.app.password`; the gateway is not told.
    pub fn rewrite(&mut self, path: &str, value: impl Into<Value>) {
        let (tables, key) = path.rsplit_once('.').expect("a path names a table and a key");
        let into = tables.split('.').fold(&mut self.config, |table_, name| table(table_, name));
        into.insert(key.to_owned(), value.into());
        self.write();
    }

    /// Takes a table or a key out of the configuration file, such as `databases.app`; the gateway is not told.
    pub fn remove(&mut self, path: &str) {
        let (tables, key) = path.rsplit_once('.').expect("a path names a table and a key");
        let from = tables.split('.').fold(&mut self.config, |table_, name| table(table_, name));
        from.remove(key).unwrap_or_else(|| panic!("there is no {path}"));
        self.write();
    }

    fn write(&self) {
        write_private(&self.config_file(), &self.config.to_string());
    }

    /// The configuration file it runs with.
    pub fn config_file(&self) -> PathBuf {
        self.folder().join("tidegate.toml")
    }
}

/// Writes a file that others may not read: it may hold passwords, which the gateway would warn of.
pub fn write_private(path: &Path, text: &str) {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("the folder can be written");
}

fn listen_address(config: &mut Table) -> SocketAddr {
    let listen = table(config, "listen");
    let address = free_address(10_000..20_000);
    let addresses = listen.entry("addresses").or_insert_with(|| vec![Value::from(address.to_string())].into());
    let first = addresses.as_array().and_then(|list| list.first()).and_then(Value::as_str);
    first.and_then(|text| text.parse().ok()).unwrap_or(address)
}

fn table<'t>(parent: &'t mut Table, name: &str) -> &'t mut Table {
    let entry = parent.entry(name).or_insert_with(|| Table::new().into());
    entry.as_table_mut().unwrap_or_else(|| panic!("{name} is no table"))
}
