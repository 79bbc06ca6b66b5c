//! The md5 challenge: deprecated since Postgres 18, and still in many password files.

use md5::{Digest, Md5};

/// The response of a client with the password: `md5` and 32 hexadecimal digits.
#[must_use]
pub fn md5_password(user: &[u8], password: &[u8], salt: [u8; 4]) -> String {
    salted(hex_digest(&[password, user]).as_bytes(), salt)
}

/// The stored form of a password: `md5` and 32 hexadecimal digits.
#[must_use]
pub fn md5_stored(user: &[u8], password: &[u8]) -> String {
    format!("md5{}", hex_digest(&[password, user]))
}

/// The response of a client with the stored form; `None` unless `stored` is `md5` and 32 hexadecimal digits.
#[must_use]
pub fn md5_answer(stored: &str, salt: [u8; 4]) -> Option<String> {
    let digest = stored.strip_prefix("md5").filter(|digest| digest.len() == 32)?;
    let plain = digest.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| salted(digest.to_ascii_lowercase().as_bytes(), salt))
}

fn salted(digest: &[u8], salt: [u8; 4]) -> String {
    format!("md5{}", hex_digest(&[digest, &salt]))
}

fn hex_digest(parts: &[&[u8]]) -> String {
    let mut hash = Md5::new();
    for part in parts {
        hash.update(part);
    }
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
    hash.finalize().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_postgres() {
        // select 'md5' || md5('secret' || 'alice'), and the md5 of its digits and the salt.
        assert_eq!(md5_stored(b"alice", b"secret"), "md54a0a68b43b6cd5cf266fa02f196e2371");
        let answer = md5_password(b"alice", b"secret", [1, 2, 3, 255]);
        assert_eq!(answer, "md55f0388cdae34fff99488f7c4c4a91735");
    }

    #[test]
    fn password_and_stored_hash_give_one_answer() {
        let salt = [1, 2, 3, 255];
        let stored = md5_stored(b"alice", b"secret");
        assert_eq!(md5_answer(&stored, salt), Some(md5_password(b"alice", b"secret", salt)));
        assert_ne!(md5_answer(&stored, [0; 4]), md5_answer(&stored, salt));
    }

    #[test]
    fn only_md5_hashes_have_an_answer() {
        for stored in
            ["", "md5", "md5900150983cd24fb0d6963f7d28e17f7", "md5g00150983cd24fb0d6963f7d28e17f72", "SCRAM-SHA-256$"]
        {
            assert_eq!(md5_answer(stored, [0; 4]), None, "{stored}");
        }
    }
}
