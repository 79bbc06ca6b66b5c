//! Password check by LDAP: a bind as the user's entry.

use std::time::Duration;

use tidegate_config::{Secret, hba::LdapConfig};

/// Binds as the user's entry.
///
/// # Errors
/// Why the LDAP server refused the user, for the log.
#[cfg(feature = "ldap")]
pub(crate) fn check(directory: &LdapConfig, user: &str, password: &Secret, limit: Duration) -> Result<(), String> {
    /// Time limit if `timeouts.login` is longer or disabled.
    const LIMIT_MAX: Duration = Duration::from_secs(60);
    // A bind without a password is anonymous and always succeeds.
    if password.is_empty() {
        return Err("an empty password".to_owned());
    }
    let limit = if limit.is_zero() { LIMIT_MAX } else { limit.min(LIMIT_MAX) };
    let proof = tokio::time::timeout(limit, directory::prove(directory, user, password));
    let proven = tokio::runtime::Handle::current().block_on(proof);
    proven.unwrap_or_else(|_| Err(format!("the directory does not answer within {limit:?}")))
}

/// Built without LDAP; the configuration check already rejects method `ldap`.
#[cfg(not(feature = "ldap"))]
pub(crate) fn check(directory: &LdapConfig, user: &str, password: &Secret, limit: Duration) -> Result<(), String> {
    let _ = (directory, user, password, limit);
    Err(tidegate_config::NO_LDAP.to_owned())
}

#[cfg(feature = "ldap")]
mod directory {
    use std::{error::Error, sync::Arc};

    use ldap3::{LdapConnAsync, LdapConnSettings, ResultEntry};

    use tidegate_config::{
        Secret,
        hba::{LdapBind, LdapConfig, LdapScope, LdapSearch},
    };
    use tidegate_tls as tls;

    /// Finds the user's entry and binds as it, on the first reachable server.
    pub(super) async fn prove(directory: &LdapConfig, user: &str, password: &Secret) -> Result<(), String> {
        let entry = match &directory.bind {
            LdapBind::Simple { prefix, suffix } => format!("{prefix}{user}{suffix}"),
            LdapBind::Search(search) => {
                let filter = search.filter_for(user).ok_or("a name with characters that mean something in filters")?;
                let find_entry = |ldap| find_entry(ldap, search, filter.clone());
                ask(directory, find_entry).await?
            }
        };
        ask(directory, |ldap| bind(ldap, entry.clone(), password.reveal().to_owned())).await
    }

    /// Runs one operation on the first reachable server.
    async fn ask<T, F>(directory: &LdapConfig, conversation: impl Fn(ldap3::Ldap) -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, String>>,
    {
        let mut settings = LdapConnSettings::new().set_starttls(directory.start_tls);
        if directory.start_tls || directory.servers.iter().any(|server| server.starts_with("ldaps:")) {
            settings = settings.set_config(Arc::new(tls::for_web().map_err(|error| error.to_string())?));
        }
        let mut last = "it has no server".to_owned();
        for server in &directory.servers {
            let (connection, ldap) = match LdapConnAsync::with_settings(settings.clone(), server).await {
                Ok(both) => both,
                Err(error) => {
                    last = format!("{server}: {}", reason(&error));
                    continue;
                }
            };
            return tokio::select! {
                outcome = conversation(ldap) => outcome,
                broken = connection.drive() => {
                    let reason = broken.err().map_or_else(|| "it was closed".to_owned(), |error| error.to_string());
                    Err(format!("{server}: {reason}"))
                }
            };
        }
        Err(last)
    }

    /// Describes a connect error; certificate errors get their own text.
    fn reason(error: &ldap3::LdapError) -> String {
        use rustls::CertificateError as Flaw;
        match flaw(error) {
            // `BadSignature`: another authority has the same name.
            Some(Flaw::UnknownIssuer | Flaw::BadSignature) => {
                "its certificate is of no authority that this machine trusts; SSL_CERT_FILE can name another".to_owned()
            }
            Some(Flaw::NotValidForName | Flaw::NotValidForNameContext { .. }) => {
                "its certificate is for another name".to_owned()
            }
            Some(flaw) => format!("its certificate is not valid: {flaw}"),
            None if matches!(error, ldap3::LdapError::LdapResult { .. }) => format!("it refuses StartTLS: {error}"),
            None => error.to_string(),
        }
    }

    /// The certificate error of rustls, also when wrapped in an `io::Error`.
    fn flaw<'e>(mut error: &'e (dyn Error + 'static)) -> Option<&'e rustls::CertificateError> {
        loop {
            let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
            let found = error.downcast_ref().or_else(|| inner?.downcast_ref::<rustls::Error>());
            if let Some(rustls::Error::InvalidCertificate(flaw)) = found {
                return Some(flaw);
            }
            error = error.source()?;
        }
    }

    async fn bind(mut ldap: ldap3::Ldap, entry: String, password: String) -> Result<(), String> {
        let bound = ldap.simple_bind(&entry, &password).await.and_then(ldap3::LdapResult::success);
        bound.map(drop).map_err(|error| format!("{entry}: {error}"))
    }

    /// Returns the DN of the only matching entry.
    async fn find_entry(mut ldap: ldap3::Ldap, search: &LdapSearch, filter: String) -> Result<String, String> {
        let wrong = |error: ldap3::LdapError| format!("the search for {filter}: {error}");
        let bound = ldap.simple_bind(&search.user, search.password.reveal()).await;
        bound.and_then(ldap3::LdapResult::success).map_err(wrong)?;
        let scope = match search.scope {
            LdapScope::Base => ldap3::Scope::Base,
            LdapScope::One => ldap3::Scope::OneLevel,
            LdapScope::Subtree => ldap3::Scope::Subtree,
        };
        // Request no attributes (RFC 4511, section 4.5.1.8): only the DN is needed.
        let found = ldap.search(&search.base, scope, &filter, ["1.1"]).await;
        let (entries, _) = found.and_then(ldap3::SearchResult::success).map_err(wrong)?;
        let mut names = entries.into_iter().filter(|entry| !entry.is_ref()).map(name_of);
        match (names.next().flatten(), names.next()) {
            (Some(name), None) => Ok(name),
            (None, None) => Err(format!("no entry matches {filter}")),
            _ => Err(format!("several entries match {filter}")),
        }
    }

    fn name_of(entry: ResultEntry) -> Option<String> {
        let name = entry.0.match_id(4)?.expect_constructed()?.into_iter().next()?.expect_primitive()?;
        String::from_utf8(name).ok()
    }
}
