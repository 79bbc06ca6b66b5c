//! `[users.NAME]`: a password in one of its forms, which the method must be able to use.

use super::{Checker, Place, Section};
use crate::{
    User,
    keys::{Auth, AuthMethod, Overrides, RawUser},
    secret::{Secret, UserSecret},
};

/// The keys that make a user of a table: settings alone do not.
const DECLARING: [&str; 2] = ["password", "password_file"];

impl Checker<'_> {
    /// Reads the table of one user; `is_looked_up` says whether a server may know users.
    pub(super) fn user(&mut self, section: &Section<'_>, auth: &Auth, is_looked_up: bool) -> User {
        let (mut raw, mut overrides) = (RawUser::default(), Overrides::default());
        self.fill(section, &mut [&mut raw, &mut overrides]);
        if section.has("password") && section.has("password_file") {
            let help = "leave out password or password_file";
            self.error(section.place(&["password_file"]), "the password is given twice", help);
        }
        let (max_servers, max_clients) = (raw.max_servers, raw.max_clients);
        let from_file = raw.password_file.and_then(|file| self.password_file(section, file));
        let secret = raw.password.or(from_file).map(|text| {
            let secret = self.parse_secret(|| section.place(&DECLARING), &text);
            if auth.method == AuthMethod::ScramSha256 && matches!(secret, UserSecret::Md5(_)) {
                let help = "write the password or its SCRAM verifier, or [auth] method = \"md5\"";
                self.error(section.place(&DECLARING), "an md5 hash cannot answer scram-sha-256", help);
            }
            secret
        });
        let has_password = DECLARING.iter().any(|key| section.has(key));
        let is_declared = has_password || section.table.entries.is_empty();
        if !has_password && !is_looked_up {
            self.warn_of_no_login(section, auth, is_declared);
        }
        let overrides = Some(overrides).filter(|own| *own != Overrides::default()).map(Box::new);
        User { is_declared, secret, max_servers, max_clients, overrides }
    }

    /// Reads a password, a hash or a verifier; what cannot be used is told at `place`.
    pub(super) fn parse_secret(&mut self, place: impl FnOnce() -> Place, text: &Secret) -> UserSecret {
        UserSecret::parse(text.reveal()).unwrap_or_else(|reason| {
            let help = "copy rolpassword of pg_authid whole, or write the password itself";
            self.error(place(), reason, help);
            UserSecret::Plain(Secret::default())
        })
    }

    /// Says that a table without a password does not let its user in, if no method does so without one.
    fn warn_of_no_login(&mut self, section: &Section<'_>, auth: &Auth, is_declared: bool) {
        let is_admitted = match auth.method {
            AuthMethod::Pam | AuthMethod::Ldap => true,
            AuthMethod::Trust | AuthMethod::Cert => auth.strangers || is_declared,
            _ => false,
        };
        if is_admitted {
            return;
        }
        let reason = format!("[{}] has no password: this user cannot log in", section.path);
        let help =
            "add password or password_file; password = \"\" is enough where none is asked for (trust, cert, peer)";
        self.warning(section.place(&[]), reason, help);
    }
}
