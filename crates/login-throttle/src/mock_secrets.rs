//! Mock secrets of users that do not exist: a login as an unknown user must look like a failed login of a known one.

use std::{fs, io};

use sha2::{Digest, Sha256};

use tidegate_config::{Secret, User};

/// Application-specific key derivation, so that the machine id itself is not revealed (machine-id(5)).
const PURPOSE: &[u8] = b"tidegate: salts of users without a verifier";

/// The secret that salts are derived from: configured, else from the machine id, else random. It does not depend on passwords
/// or verifiers: a salt, which anyone can request, would confirm a guess.
///
/// # Errors
/// If the system has no random numbers.
pub fn salt_secret(configured: &Secret) -> io::Result<[u8; 32]> {
    let machine = || fs::read_to_string("/etc/machine-id").ok().filter(|id| is_machine_id(id.trim()));
    let source = match configured.is_empty() {
        false => Some(configured.reveal().to_owned()),
        true => machine().map(|id| id.trim().to_owned()),
    };
    match source {
        Some(source) => Ok(digest(&[PURPOSE, source.as_bytes()])),
        None => {
            let mut random = [0; 32];
            getrandom::fill(&mut random).map_err(io::Error::other)?;
            Ok(random)
        }
    }
}

/// 128 random bits in hexadecimal. Images contain `uninitialized` or an empty file.
fn is_machine_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) && text.bytes().any(|byte| byte != b'0')
}

fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for close_with in parts {
        hash.update((close_with.len() as u64).to_be_bytes());
        hash.update(close_with);
    }
    hash.finalize().into()
}

/// Kinds of secrets of the configured users (iterations of a verifier, or a password or hash), with their number of users.
#[derive(Debug, Default)]
pub struct MockSecrets(Vec<(Option<u32>, u64)>);

impl MockSecrets {
    /// Counts the kinds of these users' secrets.
    pub fn of<'u>(users: impl Iterator<Item = &'u User>) -> Self {
        let mut kinds: Vec<(Option<u32>, u64)> = Vec::new();
        for secret in users.filter_map(|user| user.secret.as_ref()).filter(|secret| !secret.secret().is_empty()) {
            let kind = secret.iterations();
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, count)) => *count += 1,
                None => kinds.push((kind, 1)),
            }
        }
        Self(kinds)
    }

    /// The kind of secret that an unknown user appears to have: stable per user, distributed like the configured ones.
    #[must_use]
    pub fn pick(&self, secret: &[u8], user: &str) -> Option<u32> {
        let total: u64 = self.0.iter().map(|(_, count)| count).sum();
        let hash = digest(&[b"kind", secret, user.as_bytes()]);
        let number = hash.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        let mut place = number.checked_rem(total)?;
        for (kind, count) in &self.0 {
            if place < *count {
                return *kind;
            }
            place -= count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use tidegate_wire::auth::scram::Verifier;

    use super::*;
    use tidegate_config::toml;

    #[test]
    fn unknown_users_look_like_the_configured_ones() {
        let verifier = |iterations| Verifier::derive(b"x", b"0123456789abcdef", iterations).to_text();
        let mut text = "[databases.a]\nhost = \"db\"\n".to_owned();
        for number in 0..3 {
            text += &format!("[users.v{number}]\npassword = \"{}\"\n", verifier(10));
        }
        text +=
            &format!("[users.w]\npassword = \"{}\"\n[users.p]\npassword = \"x\"\n[users.s]\nsize = 3\n", verifier(20));
        let config = toml::parse(&text, "tidegate.toml").expect("a configuration");
        let mock_secrets = MockSecrets::of(config.users.values());
        let picked: Vec<_> = (0..500).map(|number| mock_secrets.pick(b"secret", &format!("user{number}"))).collect();
        let share = |kind| picked.iter().filter(|picked| **picked == kind).count();
        assert!((240..360).contains(&share(Some(10))), "three of five: {}", share(Some(10)));
        assert!((60..140).contains(&share(Some(20))) && (60..140).contains(&share(None)));
        assert_eq!(mock_secrets.pick(b"secret", "user7"), picked[7]);
        assert_eq!(MockSecrets::default().pick(b"secret", "user7"), None);
    }

    #[test]
    fn salt_secret_comes_from_configuration_or_machine() {
        let own = salt_secret(&Secret::new("own")).expect("a secret");
        assert_eq!(own, salt_secret(&Secret::new("own")).expect("a secret"));
        assert_ne!(own, salt_secret(&Secret::default()).expect("a secret"));
        for (text, is_good) in [("0123456789abcdef0123456789ABCDEF", true), ("uninitialized", false), ("", false)] {
            assert_eq!(is_machine_id(text), is_good, "{text}");
        }
        assert!(!is_machine_id(&"0".repeat(32)));
    }
}
