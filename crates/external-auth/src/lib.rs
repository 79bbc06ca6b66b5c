//! Checks of passwords by an authentication service of the machine or the network: PAM or LDAP.
//!
//! Either may take seconds, so a check runs on a thread that may block, inside a tokio runtime (for LDAP). The caller limits the
//! number of concurrent checks. A check without its feature (`pam`, `ldap`) refuses every user; the configuration check rejects
//! the method before.
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate_config::Secret;
//! use tidegate_external_auth::{PasswordCheck, PasswordChecker};
//!
//! let checker = PasswordChecker::Pam { service: "tidegate".to_owned(), host: "192.0.2.7".to_owned() };
//! let (user, password, limit) = ("ann".to_owned(), Secret::new("pencil"), Duration::from_secs(5));
//! if let Err(reason) = (PasswordCheck { checker, user, password, limit }).run() {
//!     println!("refused: {reason}");
//! }
//! ```

mod ldap;
mod pam;

use std::{sync::Arc, time::Duration};

use tidegate_config::{Secret, hba::LdapConfig};

/// A password check.
pub struct PasswordCheck {
    /// The service that decides.
    pub checker: PasswordChecker,
    /// The user.
    pub user: String,
    /// The password.
    pub password: Secret,
    /// Time limit of an LDAP check, at most 60 s; zero is 60 s.
    pub limit: Duration,
}

/// The authentication service.
pub enum PasswordChecker {
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
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Pam { .. } => "PAM",
            Self::Directory(_) => "LDAP",
        }
    }
}

impl PasswordCheck {
    /// Checks the password. Blocks.
    ///
    /// # Errors
    /// Why the user was refused, for the log.
    pub fn run(&self) -> Result<(), String> {
        let Self { checker, user, password, limit } = self;
        match checker {
            PasswordChecker::Pam { service, host } => pam::check(service, host, user, password),
            PasswordChecker::Directory(directory) => ldap::check(directory, user, password, *limit),
        }
    }
}
