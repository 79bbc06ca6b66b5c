//! `SET` of keys that only make sense together: a certificate and its key, a mode and the file that it needs, users and their
//! file.
//!
//! PgBouncer stores each value and applies them as soon as they fit. Here the values given since the last reload are applied
//! together to the lines of the file; until they fit, the configuration in force stays.

use std::{fmt, path::Path, sync::Arc};

use super::{
    AUTH_FILE, UNREAD_USERS,
    ini::{Ini, IniLine},
    keys::{self, GLOBAL, IniValueKind},
    map,
};
use crate::{
    ChangeError, Config, Diagnostic,
    check::{FileAccess, check},
    diagnostic::DiagnosticSeverity,
    raw::SourceText,
};

/// The lines of an ini file as it was last read.
#[derive(Clone)]
pub struct IniFile {
    /// The positions are cleared, because the text of the file is not kept.
    lines: Arc<Vec<IniLine>>,
}

/// The lines may contain passwords.
impl fmt::Debug for IniFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IniFile").field("lines", &self.lines.len()).finish_non_exhaustive()
    }
}

/// The settings of two configurations are compared, and not how they were written.
impl PartialEq for IniFile {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl IniFile {
    pub(super) fn of(ini: &Ini) -> Self {
        let without_position = |line: &IniLine| IniLine { key_at: 0..0, value_at: 0..0, ..line.clone() };
        Self { lines: Arc::new(ini.lines.iter().map(without_position).collect()) }
    }

    /// Reads the configuration of the lines with these values of `[pgbouncer]`.
    fn with(&self, values: &[(String, String)]) -> Result<(Config, Vec<Diagnostic>), Vec<Diagnostic>> {
        let line = |(key, value): &(String, String)| {
            let (key, value) = (key.clone(), value.clone());
            IniLine { section: "pgbouncer", key, key_at: 0..0, value, value_at: 0..0 }
        };
        let lines = self.lines.iter().cloned().chain(values.iter().map(line)).collect();
        let mut ini = Ini::new(SourceText::new("SET", ""), lines);
        let mut diagnostics = Vec::new();
        let table = map::tables(&mut ini, &mut diagnostics);
        if diagnostics.iter().any(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error) {
            return Err(diagnostics);
        }
        match check(&ini.source, &table, FileAccess::RelativeTo(Path::new(""))) {
            Ok(config) => Ok((config, diagnostics)),
            Err(errors) => Err(errors.diagnostics().to_vec()),
        }
    }
}

/// Why values are not in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RelatedError {
    /// The value is refused, and not stored.
    Refused(ChangeError),
    /// The values do not fit yet; they are stored. The reason, for the log.
    Incomplete(String),
}

/// Whether a key is set together with others.
#[must_use]
pub fn is_related(name: &str) -> bool {
    is_tls(name) || [AUTH_FILE, "auth_hba_file", "auth_ident_file", "auth_type"].contains(&name)
}

fn is_tls(name: &str) -> bool {
    name.starts_with("client_tls") || name.starts_with("server_tls")
}

/// Returns the configuration with these values of related keys, of which the last one is new. `None` without an ini file, and for
/// other keys.
///
/// # Errors
/// Why the values are not in force.
pub fn with_related(config: &Config, values: &[(String, String)]) -> Option<Result<Config, RelatedError>> {
    let file = config.ini_file.as_ref()?;
    let (name, text) = values.last()?;
    let key = keys::find(GLOBAL, name).filter(|key| is_related(key.name))?;
    let refused = |reason: String| Some(Err(RelatedError::Refused(ChangeError::Invalid(reason))));
    if let IniValueKind::Word(_) = key.kind
        && let Err((reason, help)) = map::value(key.kind, text, &(0..0))
    {
        return refused(format!("{name}: {reason}; {help}"));
    }
    let read = file.with(values).or_else(|diagnostics| match is_tls(name) {
        true => Err(diagnostics),
        // Values of TLS that do not fit yet are no reason to refuse the others.
        false => file.with(&values.iter().filter(|(name, _)| !is_tls(name)).cloned().collect::<Vec<_>>()),
    });
    let (read, diagnostics) = match read {
        Ok(read) => read,
        Err(diagnostics) => {
            let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == DiagnosticSeverity::Error);
            let reasons = errors.map(|diagnostic| diagnostic.reason.clone()).collect::<Vec<_>>().join("; ");
            return if is_tls(name) { Some(Err(RelatedError::Incomplete(reasons))) } else { refused(reasons) };
        }
    };
    let mut changed = config.clone();
    if key.name == AUTH_FILE {
        if diagnostics.iter().any(|diagnostic| diagnostic.key == UNREAD_USERS) {
            return refused(format!("{AUTH_FILE}: the file cannot be read"));
        }
        (changed.users, changed.user_file) = (read.users, text.clone());
    } else if key.name.starts_with("auth_") {
        (changed.auth.method, changed.auth.strangers) = (read.auth.method, read.auth.strangers);
        (changed.auth.hba_file, changed.auth.ident_file) = (read.auth.hba_file, read.auth.ident_file);
        changed.auth.pam_service = read.auth.pam_service;
    } else {
        changed.keep_tls(&read);
    }
    Some(Ok(changed))
}

impl Config {
    /// Takes the settings of TLS from another configuration: of clients, and of the databases that both have.
    pub fn keep_tls(&mut self, other: &Self) {
        let (own, other_listen) = (&mut self.listen, other.listen.clone());
        own.tls = other_listen.tls;
        (own.tls_cert, own.tls_key) = (other_listen.tls_cert, other_listen.tls_key);
        (own.tls_client_ca, own.tls_client_cert) = (other_listen.tls_client_ca, other_listen.tls_client_cert);
        (own.tls_ciphers, own.tls_groups) = (other_listen.tls_ciphers, other_listen.tls_groups);
        for (name, database) in &mut self.databases {
            if let Some(other) = other.databases.get(name) {
                database.tls = other.tls.clone();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::ClientTls;

    fn load(text: &str) -> Config {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, text).expect("a file");
        super::super::load(&file).expect("a configuration")
    }

    fn set(config: &Config, values: &[(&str, &str)]) -> Result<Config, RelatedError> {
        let values: Vec<_> = values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        with_related(config, &values).expect("the keys are related")
    }

    #[test]
    fn related_keys_are_applied_together() {
        let config = load("[databases]\nshop = host=db\n[pgbouncer]\n");
        let folder = tempfile::tempdir().expect("a folder");
        let [key, ca, cert] = ["k", "ca", "c"].map(|name| {
            let path = folder.path().join(name);
            std::fs::write(&path, "").expect("a file");
            path.to_str().expect("UTF-8").to_owned()
        });
        let mut values = vec![("client_tls_key_file", &*key)];
        assert_eq!(set(&config, &values).expect("TLS is off").listen.tls, ClientTls::Off);
        values.push(("client_tls_sslmode", "verify-full"));
        assert!(matches!(set(&config, &values), Err(RelatedError::Incomplete(_))), "the authorities are missing");
        values.push(("client_tls_ca_file", &*ca));
        assert!(matches!(set(&config, &values), Err(RelatedError::Incomplete(_))), "the certificate is missing");
        values.push(("client_tls_cert_file", &*cert));
        let changed = set(&config, &values).expect("all are there").listen;
        assert_eq!((changed.tls, changed.tls_key.to_str()), (ClientTls::Require, Some(&*key)));
        let changed = set(&config, &[("server_tls_sslmode", "require")]).expect("a mode");
        assert_eq!(changed.databases["shop"].tls.mode, crate::SslMode::Require);
    }

    #[test]
    fn invalid_words_are_refused() {
        let config = load("[databases]\nshop = host=db\n[pgbouncer]\n");
        for name in ["client_tls_sslmode", "server_tls_sslmode"] {
            assert!(matches!(set(&config, &[(name, "banana")]), Err(RelatedError::Refused(_))), "{name}");
        }
        let missing = set(&config, &[("auth_file", "/missing/users.txt")]);
        assert!(matches!(missing, Err(RelatedError::Refused(_))), "{missing:?}");
        let pool_size = [("pool_size".to_owned(), "7".to_owned())];
        assert!(with_related(&config, &pool_size).is_none());
    }
}
