//! Reader of `pgbouncer.ini`.
//!
//! `ini` reads lines, `connstr` and `userlist` their content. `keys` lists every key of PgBouncer 1.26 and its effect,
//! and `map` converts them to the raw tables of `tidegate.toml`. The common check follows, so diagnostics point into the
//! ini file. `convert` prints the tables as TOML.
//!
//! No code or text of PgBouncer is used; its files are read as its documentation describes them.

use std::path::Path;

use crate::{
    Config, ConfigErrors, Diagnostic,
    check::{FileAccess, check},
    diagnostic::DiagnosticSeverity,
    raw::{RawTable, SourceText},
};

pub mod alias;
mod ciphers;
mod connstr;
mod convert;
mod ini;
mod keys;
mod map;
mod related;
mod userlist;

/// The version of PgBouncer whose console and files are served.
pub const VERSION: &str = "1.25.0";

/// How a gateway with PgBouncer's files names its version: tools look for the name and the number of PgBouncer.
pub const FULL_VERSION: &str = concat!("PgBouncer 1.25.0 (Tidegate ", env!("CARGO_PKG_VERSION"), ")");

/// PgBouncer's name for the configuration file, which `SET` changes and a reload reads.
pub const CONFIG_FILE: &str = "conffile";

/// PgBouncer's name for the file of users.
pub const AUTH_FILE: &str = "auth_file";

pub use convert::convert;
pub use keys::{DATABASE, GLOBAL, IniKey, IniKeyEffect, IniValueKind, PEER, USER, markdown};
pub use related::{IniFile, RelatedError, is_related, with_related};

/// Key of the warning that the file of users cannot be read. A reload with this warning keeps the known users.
pub const UNREAD_USERS: &str = "auth_file (unread)";

/// An ini file with all files that it includes and names.
struct IniDocument {
    source: SourceText,
    table: RawTable,
    diagnostics: Vec<Diagnostic>,
    /// The file of users; empty for none.
    user_file: String,
    /// The lines, for `SET`.
    file: IniFile,
}

impl IniDocument {
    /// Reads the files.
    fn read(path: &Path) -> Self {
        let mut diagnostics = Vec::new();
        let mut ini = ini::read(path, &mut diagnostics);
        let file = IniFile::of(&ini);
        let table = map::tables(&mut ini, &mut diagnostics);
        let user_file = ini.global(AUTH_FILE).map(|line| line.value.clone()).unwrap_or_default();
        Self { source: ini.source, table, diagnostics, user_file, file }
    }

    /// Whether there are errors.
    fn is_refused(&self) -> bool {
        self.diagnostics.iter().any(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error)
    }
}

/// Reads and checks a `pgbouncer.ini`. Keys without effect are among the warnings.
///
/// # Errors
/// All errors of the file.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    let document = IniDocument::read(path);
    if document.is_refused() {
        return Err(ConfigErrors::new(document.diagnostics));
    }
    // As in PgBouncer, relative paths start at the working directory of the process. They are already absolute.
    let config = check(&document.source, &document.table, FileAccess::RelativeTo(Path::new("")))?;
    let mut warnings = document.diagnostics;
    warnings.extend(config.warnings);
    Ok(Config { warnings, user_file: document.user_file, ini_file: Some(document.file), ..config })
}
