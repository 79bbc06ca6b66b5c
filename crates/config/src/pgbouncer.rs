//! A `pgbouncer.ini` as it stands, read into the one configuration that there is.
//!
//! `ini` reads lines, `connstr` and `userlist` what stands in them, `keys` knows every key of PgBouncer 1.26 and
//! what becomes of it, and `map` writes them down as the tables that `tidegate.toml` would have. The common check does
//! the rest, so a finding points into the file that the user knows. `convert` prints those tables as TOML.
//!
//! Nothing here is PgBouncer's code or text; its files are read as its documentation says they are.

use std::path::Path;

use crate::{
    Config, ConfigErrors, Finding,
    check::{Disk, check},
    finding::Severity,
    raw::{Source, Table},
};

pub mod alias;
mod ciphers;
mod connstr;
mod convert;
mod ini;
mod keys;
mod map;
mod userlist;

/// PgBouncer's name for the file that a reload reads, which `SET` changes.
pub const CONFIG_FILE: &str = "conffile";

/// PgBouncer's name for the file of users.
pub const AUTH_FILE: &str = "auth_file";

pub use convert::convert;
pub use keys::{DATABASE, Effect, GLOBAL, Key, Kind, PEER, USER, markdown};

/// The key of a warning that the file of users could not be read: a reload that finds that keeps those who are known.
pub const UNREAD_USERS: &str = "auth_file (unread)";

/// An ini file with all that it includes and names.
struct Document {
    source: Source,
    table: Table,
    findings: Vec<Finding>,
    /// The file of users; empty for none.
    user_file: String,
}

impl Document {
    /// Reads the files, as far as they can be read.
    fn read(path: &Path) -> Self {
        let mut findings = Vec::new();
        let mut ini = ini::read(path, &mut findings);
        let table = map::tables(&mut ini, &mut findings);
        let user_file = ini.global(AUTH_FILE).map(|line| line.value.clone()).unwrap_or_default();
        Self { source: ini.source, table, findings, user_file }
    }

    /// Whether anything keeps it from being used.
    fn is_refused(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }
}

/// Reads and checks a `pgbouncer.ini`. Keys that have no effect here are among the warnings, one each.
///
/// # Errors
/// Everything that is wrong with the file, at once.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    let document = Document::read(path);
    if document.is_refused() {
        return Err(ConfigErrors::new(document.findings));
    }
    // Relative paths begin where the process was started, as PgBouncer's do; they are absolute here already.
    let config = check(&document.source, &document.table, Disk::Folder(Path::new("")))?;
    let mut warnings = document.findings;
    warnings.extend(config.warnings);
    Ok(Config { warnings, user_file: document.user_file, ..config })
}
