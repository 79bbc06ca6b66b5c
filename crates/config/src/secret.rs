//! Secrets, and values that may contain secrets, hidden from logs and tables.

use std::borrow::Cow;
use std::fmt;

use super::setting::ValueClass;

/// The text that replaces a secret.
pub(crate) const MASK: &str = "***";

/// A password, a hash, or a verifier. `Debug` prints `***`, and there is no `Display`.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text; only for code that authenticates with it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether the secret is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// The value of a key for a log. The value of an unknown key may be a secret, so it is masked.
#[must_use]
pub fn loggable(class: Option<ValueClass>, value: &str) -> Cow<'_, str> {
    match class {
        Some(ValueClass::Plain | ValueClass::File) => without_logins(value),
        Some(ValueClass::Secret) | None => Cow::Borrowed(MASK),
    }
}

/// The text with the login of each URL (`scheme://user:password@host`) masked.
#[must_use]
fn without_logins(text: &str) -> Cow<'_, str> {
    let mut masked = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, authority) = rest.split_at(at + "://".len());
        // A password may contain characters that a URL would have to encode.
        let end = authority.find(char::is_whitespace).unwrap_or(authority.len());
        masked.push_str(before);
        rest = authority;
        if let Some(login) = authority[..end].rfind('@') {
            masked.push_str(MASK);
            rest = &authority[login..];
        }
    }
    if masked.is_empty() {
        return Cow::Borrowed(text);
    }
    masked.push_str(rest);
    Cow::Owned(masked)
}

/// Form of a password in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserSecret {
    /// The password; works with every method, and for logins to servers.
    Plain(Secret),
    /// `md5` and 32 hexadecimal digits: md5(password + user name), as in `pg_authid`.
    Md5(Secret),
    /// `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`, as in `pg_authid`.
    Scram(Secret),
}

impl UserSecret {
    /// Distinguishes the forms as Postgres does, but refuses a damaged verifier instead of treating it as a password.
    ///
    /// # Errors
    /// If the text starts like a SCRAM verifier and is not a valid one.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let secret = Secret::new(text);
        if let Some(rest) = text.strip_prefix("SCRAM-SHA-256$") {
            return if is_scram_verifier(rest) { Ok(Self::Scram(secret)) } else { Err(DAMAGED_VERIFIER) };
        }
        Ok(if is_md5(text) { Self::Md5(secret) } else { Self::Plain(secret) })
    }

    /// Iterations of a verifier; `None` for a password or a hash.
    pub fn iterations(&self) -> Option<u32> {
        let Self::Scram(text) = self else { return None };
        let (head, _) = text.reveal().strip_prefix("SCRAM-SHA-256$")?.split_once(':')?;
        head.parse().ok()
    }

    /// The text as written.
    pub fn secret(&self) -> &Secret {
        match self {
            Self::Plain(secret) | Self::Md5(secret) | Self::Scram(secret) => secret,
        }
    }
}

const DAMAGED_VERIFIER: &str = "the password starts like a SCRAM verifier, but is not a complete one";

fn is_md5(text: &str) -> bool {
    text.strip_prefix("md5").is_some_and(|hex| hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// The part after `SCRAM-SHA-256$`: `<iterations>:<salt>$<stored key>:<server key>`, the last three in base64.
fn is_scram_verifier(rest: &str) -> bool {
    let Some((head, keys)) = rest.split_once('$') else {
        return false;
    };
    let (Some((rounds, salt)), Some((stored, server))) = (head.split_once(':'), keys.split_once(':')) else {
        return false;
    };
    let rounds = rounds.parse::<u32>().is_ok_and(|rounds| rounds > 0);
    // A SHA-256 key is 32 bytes: 44 characters of base64 with one `=`.
    rounds
        && !salt.is_empty()
        && [salt, stored, server].iter().all(|part| is_base64(part))
        && stored.len() == 44
        && server.len() == 44
}

fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    let known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+' || byte == b'/';
    text.len().is_multiple_of(4) && padding <= 2 && digits.bytes().all(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_shows_in_debug() {
        let secret = UserSecret::parse("hunter2").expect("a password");
        assert_eq!(format!("{secret:?}"), "Plain(***)");
    }

    #[test]
    fn a_log_shows_plain_values_without_logins() {
        let shown = |class, value| loggable(class, value).into_owned();
        assert_eq!(shown(Some(ValueClass::Plain), "5s"), "5s");
        assert_eq!(shown(Some(ValueClass::File), "/var/log/tidegate"), "/var/log/tidegate");
        assert_eq!(
            shown(Some(ValueClass::Plain), "see https://a:b@h/ and x://c@d"),
            "see https://***@h/ and x://***@d"
        );
        assert_eq!(shown(Some(ValueClass::Plain), "postgres://a:p/w@x@h/d"), "postgres://***@h/d");
        for class in [Some(ValueClass::Secret), None] {
            assert_eq!(shown(class, "hunter2"), "***");
        }
    }

    #[test]
    fn the_three_forms_are_distinguished() {
        let verifier = format!("SCRAM-SHA-256$4096:c2FsdHNhbHQ=${0}:{0}", "A".repeat(43) + "=");
        assert!(matches!(UserSecret::parse(&verifier), Ok(UserSecret::Scram(_))));
        assert!(matches!(UserSecret::parse(&format!("md5{}", "0f".repeat(16))), Ok(UserSecret::Md5(_))));
        assert!(matches!(UserSecret::parse("md5 is old"), Ok(UserSecret::Plain(_))));
        assert!(UserSecret::parse("SCRAM-SHA-256$4096:c2FsdA==$short:keys").is_err());
    }
}
