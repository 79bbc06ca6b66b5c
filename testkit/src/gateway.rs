//! The gateway binary as a child process with its own configuration.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use toml::{Table, Value};

use crate::poll::eventually;
use crate::process::{Process, free_address};
use crate::{RawClient, Startup};

/// Another process may take the port between the check and the bind.
const PORT_TRIES: u32 = 5;

/// A running gateway. Dropping it kills the process.
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
    /// [`Self::binary`] selects the binary. The text is completed with a listen address and with the log level `debug`,
    /// unless it sets them. The I/O mode is `$TIDEGATE_IO`, if set.
    ///
    /// # Panics
    /// If the text is not TOML, or if the gateway exits or does not accept before the deadline.
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

    /// The binary to run: `$TIDEGATE_BIN`, which may be another build, or else `built`.
    pub fn binary(built: impl AsRef<Path>) -> PathBuf {
        std::env::var_os("TIDEGATE_BIN").map_or_else(|| built.as_ref().to_owned(), PathBuf::from)
    }

    /// Starts the binary in trust mode, with one database `postgres` at this address. `pool` holds more keys of its
    /// section, and, after a line `[...]`, further sections.
    ///
    /// # Panics
    /// Like [`Self::start`].
    pub fn for_server(binary: impl AsRef<Path>, server: SocketAddr, pool: &str) -> Self {
        let section = database_section("postgres", "postgres", server);
        Self::start(binary, &format!("[auth]\nmethod = \"trust\"\n{section}{pool}"))
    }

    /// Returns `None` if another process took the port.
    fn try_start(binary: &Path, config: &Table) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let mut config = config.clone();
        let address = listen_address(&mut config);
        table(&mut config, "log").entry("level").or_insert_with(|| "debug".into());
        // Two workers on every machine, so that every test covers messages between workers.
        table(&mut config, "runtime").entry("workers").or_insert_with(|| 2.into());
        let file = folder.path().join("tidegate.toml");
        write_private(&file, &config.to_string());
        let mut command = Command::new(binary);
        command.args(["run", "-c"]).arg(&file);
        if let Ok(io) = std::env::var("TIDEGATE_IO") {
            command.args(["--io", &io]);
        }
        let mut gateway = Self { process: Process::spawn(command, address, folder), config };
        // The process that accepts may be another one, while this gateway retries to bind.
        (gateway.accepts() && !gateway.log().contains("in use")).then_some(gateway)
    }

    /// The parameters of a login through the gateway as `postgres`, to be changed.
    pub fn startup(&self, database: &str) -> Startup {
        Startup::tcp(self.address(), "postgres", database)
    }

    /// Connects a client to this database.
    #[track_caller]
    pub fn client(&self, database: &str) -> RawClient {
        self.startup(database).connect()
    }

    /// Connects to the admin console.
    #[track_caller]
    pub fn console(&self) -> RawClient {
        self.client("tidegate")
    }

    /// Runs `SHOW what` and returns the rows, each by column name.
    #[track_caller]
    pub fn show(&self, what: &str) -> Vec<BTreeMap<String, String>> {
        self.console().show(what)
    }

    /// The sum of a numeric column of SHOW POOLS over the pools of a database.
    #[track_caller]
    pub fn pool_count(&self, database: &str, column: &str) -> u64 {
        let pools = self.show("POOLS");
        let of_database = pools.iter().filter(|pool| pool["database"] == database);
        of_database.map(|pool| pool[column].parse::<u64>().expect("the column is a number")).sum()
    }

    /// Waits until a column of SHOW POOLS, summed over the pools of a database, has this value.
    #[track_caller]
    pub fn wait_for_pool(&self, database: &str, column: &str, value: u64) {
        eventually(&format!("{column} of {database} becomes {value}"), || self.pool_count(database, column) == value);
    }

    /// The log lines of level WARN or ERROR.
    pub fn warnings(&self) -> Vec<String> {
        let is_warning = |line: &&str| line.contains("WARN") || line.contains("ERROR");
        self.log().lines().filter(is_warning).map(str::to_owned).collect()
    }

    /// Sets a key of the configuration file, such as `databases.app.password`. Does not reload the gateway.
    pub fn set_config(&mut self, path: &str, value: impl Into<Value>) {
        let (tables, key) = path.rsplit_once('.').expect("a path names a table and a key");
        let into = tables.split('.').fold(&mut self.config, |table_, name| table(table_, name));
        into.insert(key.to_owned(), value.into());
        self.write();
    }

    /// Removes a table or a key from the configuration file, such as `databases.app`. Does not reload the gateway.
    pub fn remove_config(&mut self, path: &str) {
        let (tables, key) = path.rsplit_once('.').expect("a path names a table and a key");
        let from = tables.split('.').fold(&mut self.config, |table_, name| table(table_, name));
        from.remove(key).unwrap_or_else(|| panic!("no key {path}"));
        self.write();
    }

    fn write(&self) {
        write_private(&self.config_file(), &self.config.to_string());
    }

    /// The configuration file.
    pub fn config_file(&self) -> PathBuf {
        self.folder().join("tidegate.toml")
    }
}

/// Writes a file that only the owner can read. It may contain passwords, and the gateway warns of files that others can
/// read.
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
    entry.as_table_mut().unwrap_or_else(|| panic!("{name} is not a table"))
}

/// The section of one database at this address.
pub(crate) fn database_section(name: &str, database: &str, address: SocketAddr) -> String {
    let (host, port) = (address.ip(), address.port());
    format!("[databases.\"{name}\"]\nhost = \"{host}\"\nport = {port}\ndbname = \"{database}\"\n")
}
