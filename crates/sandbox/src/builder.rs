//! What a sandbox shall be, and the folder it is made of: `data/`, the socket, the log.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::account::{Account, give};
use crate::cluster::copy;
use crate::process::unprivileged;
use crate::{Binaries, Error, Major, Postgres};

/// What [`Builder::start`] is busy with; fetching is the only step that takes more than a second.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// The newest minor version is being fetched.
    Downloading {
        /// Of this version.
        major: Major,
    },
    /// The archive is here and is being unpacked into the cache.
    Unpacking {
        /// The whole version, such as `18.6.0`.
        version: String,
        /// Size of the archive.
        bytes: u64,
    },
    /// `initdb` runs.
    Initialising,
    /// The server was started and does not answer yet.
    Starting,
}

/// What trusts whom when nothing else was said: everyone on this machine.
const TRUST: &str = "\
host all all 127.0.0.1/32 trust
host all all ::1/128 trust
host replication all 127.0.0.1/32 trust
";

/// The superuser on the unix socket is how the sandbox itself, and a test, always gets in.
const OWNER: &str = "\
local all postgres trust
local replication postgres trust
";

/// Describes a server; [`Builder::start`] makes it.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    major: Major,
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

impl Default for Builder {
    fn default() -> Self {
        let hba = format!("local all all trust\n{TRUST}");
        Self { major: Major(18), port: None, settings: Vec::new(), hba, tls: None }
    }
}

impl Builder {
    /// The major version; 18 unless told.
    pub fn version(mut self, major: Major) -> Self {
        self.major = major;
        self
    }

    /// The TCP port; a free one unless told.
    pub fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// A line of `postgresql.conf`; of several for one name the last counts.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The lines of `pg_hba.conf`, instead of trust for everyone on this machine. The user `postgres` on the unix
    /// socket is always trusted.
    pub fn hba(mut self, lines: &str) -> Self {
        self.hba = format!("{lines}\n");
        self
    }

    /// Turns TLS on, with a certificate chain and its key in PEM.
    pub fn tls(mut self, certificate: &str, key: &str) -> Self {
        self.tls = Some(Tls { certificate: certificate.to_owned(), key: key.to_owned(), client_ca: None });
        self
    }

    /// The authority, in PEM, that clients' certificates are checked against. Has no effect without [`Self::tls`].
    pub fn tls_client_ca(mut self, authority: &str) -> Self {
        if let Some(tls) = &mut self.tls {
            tls.client_ca = Some(authority.to_owned());
        }
        self
    }

    /// Makes the server and waits until it answers.
    ///
    /// # Errors
    /// Everything in [`Error`]; a half-made sandbox is cleaned up.
    pub fn start(self) -> Result<Postgres, Error> {
        self.start_with_progress(&mut |_| ())
    }

    /// As [`Self::start`], and tells `progress` what it is busy with.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with_progress(self, progress: &mut dyn FnMut(Progress)) -> Result<Postgres, Error> {
        let binaries = Binaries::find_or_fetch(self.major, progress)?;
        let account = Account::to_switch_to();
        let home = make_home(account)?;
        progress(Progress::Initialising);
        initdb(&binaries, home.path(), account)?;
        self.write_files(home.path(), account)?;
        progress(Progress::Starting);
        Postgres::launch(home, self.port, binaries, account)
    }

    /// The folder of a server and so many copies of it, none of which runs yet.
    pub(crate) fn prepare(&self, copies: usize) -> Result<(Prepared, Vec<Prepared>), Error> {
        let binaries = Binaries::find_or_fetch(self.major, &mut |_| ())?;
        let account = Account::to_switch_to();
        let first = make_home(account)?;
        initdb(&binaries, first.path(), account)?;
        let prepared = |home: TempDir| Prepared { home: Some(home), binaries: binaries.clone(), account };
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
        write(&data.join("pg_hba.conf"), &format!("{OWNER}{}", self.hba), account)?;
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
        // The port is chosen at each attempt to start; see `Postgres::launch`.
        file.push_str("include_if_exists = 'port.conf'\n");
        // From whom a replica streams changes with each promotion; see `Cluster::follow`.
        file.push_str("include_if_exists = 'primary.conf'\n");
        file
    }
}

/// The folder of a server that does not run yet.
pub(crate) struct Prepared {
    home: Option<TempDir>,
    binaries: Binaries,
    pub(crate) account: Option<Account>,
}

impl Prepared {
    /// The data directory.
    pub(crate) fn data_dir(&self) -> PathBuf {
        self.home.as_ref().map_or_else(PathBuf::new, |home| home.path().join("data"))
    }

    /// Starts the server, once.
    pub(crate) fn launch(&mut self) -> Result<Postgres, Error> {
        let home = self.home.take().ok_or(Error::NotRunning)?;
        Postgres::launch(home, None, self.binaries.clone(), self.account)
    }
}

fn make_home(account: Option<Account>) -> Result<TempDir, Error> {
    let home = tempfile::Builder::new().prefix("tidegate-postgres-").tempdir();
    let home = home.map_err(Error::io("create a temporary folder"))?;
    give(home.path(), account, 0o755)?;
    Ok(home)
}

/// Writes a file that belongs to the server alone; a key with wider permissions is refused by Postgres.
pub(crate) fn write(path: &PathBuf, content: &str, account: Option<Account>) -> Result<(), Error> {
    fs::write(path, content).map_err(Error::path("write", path))?;
    give(path, account, 0o600)
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
    let said = [run.stdout, run.stderr].concat();
    Err(Error::Initdb { output: String::from_utf8_lossy(&said).into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_with_a_quote_stays_one_value() {
        let builder = Builder::default().setting("application_name", "it's");
        assert!(builder.settings_file(Path::new("/tmp/x")).contains("application_name = 'it''s'\n"));
    }

    #[test]
    fn settings_of_the_caller_come_after_the_defaults() {
        let file = Builder::default().setting("fsync", "on").settings_file(Path::new("/tmp/x"));
        assert!(file.find("fsync = 'on'") > file.find("fsync = 'off'"));
    }
}
