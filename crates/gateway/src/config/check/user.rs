//! `[users.NAME]`: a password in one of its forms, which the method must be able to use.

use super::{Checker, Section};
use crate::config::User;
use crate::config::keys::{Auth, AuthMethod, Overrides, RawUser};
use crate::config::secret::{Secret, UserSecret};

impl Checker<'_> {
    pub(super) fn user(&mut self, section: &Section<'_>, auth: &Auth) -> User {
        let (mut raw, mut overrides) = (RawUser::default(), Overrides::default());
        self.fill(section, &mut [&mut raw, &mut overrides]);
        if section.has("password") && section.has("password_file") {
            let help = "leave out password or password_file";
            self.error(section.place(&["password_file"]), "the password is given twice", help);
        }
        let (max_servers, max_clients) = (raw.max_servers, raw.max_clients);
        let from_file = raw.password_file.and_then(|file| self.password_file(section, file));
        let secret = self.secret(section, auth, &raw.password.or(from_file).unwrap_or_default());
        let overrides = Some(overrides).filter(|own| *own != Overrides::default()).map(Box::new);
        User { secret, max_servers, max_clients, overrides }
    }

    fn secret(&mut self, section: &Section<'_>, auth: &Auth, text: &Secret) -> UserSecret {
        let place = || section.place(&["password", "password_file"]);
        let secret = UserSecret::parse(text.reveal()).unwrap_or_else(|reason| {
            let help = "copy rolpassword of pg_authid whole, or write the password itself";
            self.error(place(), reason, help);
            UserSecret::Plain(Secret::default())
        });
        if auth.method == AuthMethod::ScramSha256 && matches!(secret, UserSecret::Md5(_)) {
            let help = "write the password or its SCRAM verifier, or [auth] method = \"md5\"";
            self.error(place(), "an md5 hash cannot answer scram-sha-256", help);
        }
        let written = section.has("password") || section.has("password_file");
        let needs_password = !matches!(auth.method, AuthMethod::Trust | AuthMethod::Cert | AuthMethod::Pam);
        if needs_password && auth.lookup_user.is_empty() && !written {
            let reason = format!("[{}] has no password: this user cannot log in", section.path);
            self.warning(section.place(&[]), reason, "add password or password_file");
        }
        secret
    }
}
