//! Password checks by PAM or LDAP, on threads of the control plane, as either may take seconds.

use std::{sync::Arc, time::Duration};

use super::{ldap, pam};
use tidegate_config::{Secret, hba::LdapConfig};

use crate::plane::Gateway;

/// A password check.
pub(super) struct PasswordCheck {
    pub(super) checker: PasswordChecker,
    pub(super) user: String,
    pub(super) password: Secret,
    /// Time limit of an LDAP check; `ldap::check` caps it and replaces zero.
    pub(super) limit: Duration,
}

/// The authentication service.
pub(super) enum PasswordChecker {
    /// PAM of the operating system.
    Pam {
        /// PAM service: `/etc/pam.d/SERVICE`.
        service: String,
        /// Client address.
        host: String,
    },
    /// An LDAP server.
    Directory(Arc<LdapConfig>),
}

impl PasswordChecker {
    /// Name in the log.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Pam { .. } => "PAM",
            Self::Directory(_) => "LDAP",
        }
    }
}

/// Runs a password check. Waits until a thread is free; the caller limits the wait.
///
/// # Errors
/// Why the user was refused, for the log.
///
/// # Cancel safety
/// Safe: a started check runs to its end and keeps its permit until then.
pub(super) async fn check_password(gateway: &Gateway, request: PasswordCheck) -> Result<(), String> {
    let Ok(permit) = gateway.clients.password_checks.clone().acquire_owned().await else {
        return Err("the gateway is stopping".to_owned());
    };
    let check = move || {
        let outcome = check(&request);
        drop(permit);
        outcome
    };
    let outcome = gateway.pools.connector.resolver.offload("a check of a password", check).await;
    outcome.unwrap_or_else(|| Err("the password check was aborted".to_owned()))
}

fn check(request: &PasswordCheck) -> Result<(), String> {
    let PasswordCheck { checker, user, password, limit } = request;
    match checker {
        PasswordChecker::Pam { service, host } => pam::check(service, host, user, password),
        PasswordChecker::Directory(directory) => ldap::check(directory, user, password, *limit),
    }
}
