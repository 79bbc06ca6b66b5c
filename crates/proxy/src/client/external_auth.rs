//! Passwords that somebody else checks: PAM, or a directory. On threads of the control plane, as either may take seconds.

use std::{sync::Arc, time::Duration};

use super::{ldap, pam};
use tidegate_config::{Secret, hba::LdapConfig};

use crate::plane::Gateway;

/// What is asked.
pub(super) struct Question {
    pub(super) judge: Judge,
    pub(super) user: String,
    pub(super) password: Secret,
    /// How long the answer may take, for judges that can be left; zero is as long as it takes.
    pub(super) limit: Duration,
}

/// Who is asked.
pub(super) enum Judge {
    /// The system's PAM.
    Pam {
        /// Which of its rules hold: `/etc/pam.d/SERVICE`.
        service: String,
        /// Where the client comes from.
        host: String,
    },
    /// This directory.
    Directory(Arc<LdapConfig>),
}

impl Judge {
    /// Its name, for the log.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Pam { .. } => "PAM",
            Self::Directory(_) => "LDAP",
        }
    }
}

/// Asks. Waits until a thread is free for it; who has asked bounds the wait.
///
/// # Errors
/// Why the user is not let in, for the log.
///
/// # Cancel safety
/// Safe: what was begun ends by itself, and keeps its place among the checks until then.
pub(super) async fn ask(gateway: &Gateway, question: Question) -> Result<(), String> {
    let Ok(permit) = gateway.clients.password_checks.clone().acquire_owned().await else {
        return Err("the gateway is stopping".to_owned());
    };
    let check = move || {
        let answer = check(&question);
        drop(permit);
        answer
    };
    let answer = gateway.pools.connector.resolver.offload("a check of a password", check).await;
    answer.unwrap_or_else(|| Err("the check has broken off".to_owned()))
}

fn check(question: &Question) -> Result<(), String> {
    let Question { judge, user, password, limit } = question;
    match judge {
        Judge::Pam { service, host } => pam::check(service, host, user, password),
        Judge::Directory(directory) => ldap::check(directory, user, password, *limit),
    }
}
