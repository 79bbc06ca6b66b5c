//! The configuration of a sandbox, and its folder: `data/`, the socket, the log.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::account::{Account, set_owner};
use crate::data_dir::{copy, write};
use crate::process::unprivileged;
use crate::{Binaries, Error, Major, Postgres, StartProgress};

/// The default rules: everyone on this machine may log in.
const TRUST_RULES: &str = "\
host all all 127.0.0.1/32 trust
host all all ::1/128 trust
host replication all 127.0.0.1/32 trust
";

/// The superuser can always log in on the unix socket; the sandbox itself uses this.
const SUPERUSER_RULES: &str = "\
local all postgres trust
local replication postgres trust
";

/// Configures a server; [`PostgresBuilder::start`] starts it.
#[derive(Clone, Debug)]
#[must_use]
pub struct PostgresBuilder {
    major: Major,
    takes_any: bool,
    port: Option<u16>,
    settings: Vec<(String, String)>,
    hba: String,
    tls: Option<Tls>,
}

#[derive(Clone, Debug)]
struct Tls {
    certificate: String,
    key: String,
    client_ca: Option<String>,
}

impl Default for PostgresBuilder {
    fn default() -> Self {
        let hba = format!("local all all trust\n{TRUST_RULES}");
        Self { major: Major(18), takes_any: false, port: None, settings: Vec::new(), hba, tls: None }
    }
}

impl PostgresBuilder {
    /// The major version; 18 by default.
    pub fn version(mut self, major: Major) -> Self {
        self.major = major;
        self
    }

    /// Takes the newest version on this machine, whichever it is. Without any, [`Self::version`] is downloaded.
    pub fn any_version(mut self) -> Self {
        self.takes_any = true;
        self
    }

    /// The TCP port; a free one by default.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// A setting of `postgresql.conf`; the last value for a name counts.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The lines of `pg_hba.conf`, instead of trust for everyone on this machine. The user `postgres` can always log in
    /// on the unix socket.
    pub fn hba(mut self, lines: &str) -> Self {
        self.hba = format!("{lines}\n");
        self
    }

    /// Enables TLS, with a certificate chain and its key in PEM.
    pub fn tls(mut self, certificate: &str, key: &str) -> Self {
        self.tls = Some(Tls { certificate: certificate.to_owned(), key: key.to_owned(), client_ca: None });
        self
    }

    /// The certificate authority for client certificates, in PEM. Has no effect without [`Self::tls`].
    pub fn tls_client_ca(mut self, authority: &str) -> Self {
        if let Some(tls) = &mut self.tls {
            tls.client_ca = Some(authority.to_owned());
        }
        self
    }

    /// Starts the server and waits until it accepts connections.
    ///
    /// # Errors
    /// Every variant of [`Error`]; an incomplete sandbox is removed.
    pub fn start(self) -> Result<Postgres, Error> {
        self.start_with_progress(&mut |_| ())
    }

    /// Like [`Self::start`], and reports each step to `progress`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_progress(self, progress: &mut dyn FnMut(StartProgress)) -> Result<Postgres, Error> {
        let found = if self.takes_any { Binaries::find_any()? } else { None };
        let binaries = match found {
            Some(found) => found,
            None => Binaries::find_or_fetch(self.major, progress)?,
        };
        let account = Account::unprivileged();
        let home = make_home(account)?;
        progress(StartProgress::Initialising);
        initdb(&binaries, home.path(), account)?;
        self.write_files(home.path(), account)?;
        progress(StartProgress::Starting);
        Postgres::launch(home, self.port, binaries, account)
    }

    /// Prepares a server and `copies` copies of it, without starting them.
    pub(crate) fn prepare(&self, copies: usize) -> Result<(PreparedServer, Vec<PreparedServer>), Error> {
        let binaries = Binaries::find_or_fetch(self.major, &mut |_| ())?;
        let account = Account::unprivileged();
        let first = make_home(account)?;
        initdb(&binaries, first.path(), account)?;
        let prepared = |home: TempDir| PreparedServer { home: Some(home), binaries: binaries.clone(), account };
        let mut others = Vec::new();
        for _ in 0..copies {
            let home = make_home(account)?;
            copy(&first.path().join("data"), &home.path().join("data"), account)?;
            self.write_files(home.path(), account)?;
            others.push(prepared(home));
        }
        self.write_files(first.path(), account)?;
        Ok((prepared(first), others))
    }

    fn write_files(&self, home: &Path, account: Option<Account>) -> Result<(), Error> {
        let data = home.join("data");
        write(&data.join("postgresql.conf"), &self.settings_file(home), account)?;
        write(&data.join("pg_hba.conf"), &format!("{SUPERUSER_RULES}{}", self.hba), account)?;
        let Some(tls) = &self.tls else {
            return Ok(());
        };
        write(&data.join("server.crt"), &tls.certificate, account)?;
        write(&data.join("server.key"), &tls.key, account)?;
        match &tls.client_ca {
            Some(authority) => write(&data.join("client_ca.crt"), authority, account),
            None => Ok(()),
        }
    }

    fn settings_file(&self, home: &Path) -> String {
        let mut file = String::new();
        let mut set = |name: &str, value: &str| {
            // Writing to a String cannot fail.
            let _ = writeln!(file, "{name} = '{}'", value.replace('\'', "''"));
        };
        set("listen_addresses", "127.0.0.1");
        set("unix_socket_directories", &home.display().to_string());
        set("lc_messages", "C");
        for durability in ["fsync", "synchronous_commit", "full_page_writes"] {
            set(durability, "off");
        }
        if let Some(tls) = &self.tls {
            set("ssl", "on");
            if tls.client_ca.is_some() {
                set("ssl_ca_file", "client_ca.crt");
            }
        }
        self.settings.iter().for_each(|(name, value)| set(name, value));
        // The port is chosen at each start; see `Postgres::launch`.
        file.push_str("include_if_exists = 'port.conf'\n");
        // The primary of a replica changes with each promotion; see `Cluster::follow`.
        file.push_str("include_if_exists = 'primary.conf'\n");
        file
    }
}

/// A server that has not been started.
pub(crate) struct PreparedServer {
    home: Option<TempDir>,
    binaries: Binaries,
    pub(crate) account: Option<Account>,
}

impl PreparedServer {
    /// The data directory.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.home.as_ref().map_or_else(PathBuf::new, |home| home.path().join("data"))
    }

    /// Starts the server. Fails when called again.
    pub(crate) fn launch(&mut self) -> Result<Postgres, Error> {
        let home = self.home.take().ok_or(Error::NotRunning)?;
        Postgres::launch(home, None, self.binaries.clone(), self.account)
    }
}

fn make_home(account: Option<Account>) -> Result<TempDir, Error> {
    let home = tempfile::Builder::new().prefix("tidegate-postgres-").tempdir();
    let home = home.map_err(Error::io("create a temporary folder"))?;
    set_owner(home.path(), account, 0o755)?;
    Ok(home)
}

fn initdb(binaries: &Binaries, home: &Path, account: Option<Account>) -> Result<(), Error> {
    let program = binaries.program("initdb");
    let run = unprivileged(&program, account)
        .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"])
        .arg("-D")
        .arg(home.join("data"))
        .output()
        .map_err(Error::path("start", &program))?;
    if run.status.success() {
        return Ok(());
    }
    let output = [run.stdout, run.stderr].concat();
    Err(Error::Initdb { output: String::from_utf8_lossy(&output).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_with_a_quote_stays_one_value() {
        let builder = PostgresBuilder::default().setting("application_name", "it's");
        assert!(builder.settings_file(Path::new("/tmp/x")).contains("application_name = 'it''s'\n"));
    }

    #[test]
    fn settings_of_the_caller_override_defaults() {
        let file = PostgresBuilder::default().setting("fsync", "on").settings_file(Path::new("/tmp/x"));
        assert!(file.find("fsync = 'on'") > file.find("fsync = 'off'"));
    }
}
