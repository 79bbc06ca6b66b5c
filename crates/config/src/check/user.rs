//! Check of `[users.NAME]`: a password in a form that the method can use.

use super::{Checker, KeyLocation, SectionView};
use crate::{
    User,
    keys::{AuthConfig, AuthMethod, PoolOverrides, RawUser},
    secret::{Secret, UserSecret},
};

/// Keys that declare a user; settings do not.
const DECLARING: [&str; 2] = ["password", "password_file"];

impl Checker<'_> {
    /// Reads the table of a user; `is_looked_up` is whether a server may know users.
    pub(super) fn user(&mut self, section: &SectionView<'_>, auth: &AuthConfig, is_looked_up: bool) -> User {
        let (mut raw, mut overrides) = (RawUser::default(), PoolOverrides::default());
        self.fill(section, &mut [&mut raw, &mut overrides]);
        if section.has("password") && section.has("password_file") {
            let help = "leave out password or password_file";
            self.error(section.locate(&["password_file"]), "the password is given twice", help);
        }
        let (max_servers, max_clients) = (raw.max_servers, raw.max_clients);
        let from_file = raw.password_file.and_then(|file| self.password_file(section, file));
        let secret = raw.password.or(from_file).map(|text| {
            let secret = self.parse_secret(|| section.locate(&DECLARING), &text);
            if auth.method == AuthMethod::ScramSha256 && matches!(secret, UserSecret::Md5(_)) {
                let help = "write the password or its SCRAM verifier, or [auth] method = \"md5\"";
                self.error(section.locate(&DECLARING), "an md5 hash cannot be used for scram-sha-256", help);
            }
            secret
        });
        let has_password = DECLARING.iter().any(|key| section.has(key));
        let is_declared = has_password || section.table.entries.is_empty();
        if !has_password && !is_looked_up {
            self.warn_of_no_login(section, auth, is_declared);
        }
        let overrides = Some(overrides).filter(|own| *own != PoolOverrides::default()).map(Box::new);
        User { is_declared, secret, max_servers, max_clients, overrides }
    }

    /// Parses a password, a hash or a verifier; an error is reported at `location`.
    pub(super) fn parse_secret(&mut self, location: impl FnOnce() -> KeyLocation, text: &Secret) -> UserSecret {
        UserSecret::parse(text.reveal()).unwrap_or_else(|reason| {
            let help = "copy all of rolpassword from pg_authid, or write the password";
            self.error(location(), reason, help);
            UserSecret::Plain(Secret::default())
        })
    }

    /// Warns of a table without a password, if the method needs one.
    fn warn_of_no_login(&mut self, section: &SectionView<'_>, auth: &AuthConfig, is_declared: bool) {
        let is_admitted = match auth.method {
            AuthMethod::Pam | AuthMethod::Ldap => true,
            AuthMethod::Trust | AuthMethod::Cert => auth.strangers || is_declared,
            _ => false,
        };
        if is_admitted {
            return;
        }
        let reason = format!("[{}] has no password: this user cannot log in", section.path);
        let help = "add password or password_file; password = \"\" is enough for methods without a password (trust, cert, peer)";
        self.warning(section.locate(&[]), reason, help);
    }
}
