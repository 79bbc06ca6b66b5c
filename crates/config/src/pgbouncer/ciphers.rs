//! OpenSSL's names for cipher suites, protocols and curves, limited to those that are supported here.

use crate::{CipherSuite, KeyGroup};

/// Result of a cipher list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CipherSelection {
    /// Suites in list order.
    pub(super) suites: Vec<CipherSuite>,
    /// Words without a supported suite.
    pub(super) unknown: Vec<String>,
}

/// Enabled versions of TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TlsVersions {
    pub(super) tls12: bool,
    pub(super) tls13: bool,
    /// The list names only versions before 1.2, in whose place 1.2 is used.
    pub(super) raised: bool,
}

/// Suites of TLS 1.2 that a list selects; an empty list selects all.
pub(super) fn tls12(text: &str) -> CipherSelection {
    choose(text, false)
}

/// Suites of TLS 1.3 that a list selects; an empty list selects all.
pub(super) fn tls13(text: &str) -> CipherSelection {
    choose(text, true)
}

/// Grammar of OpenSSL's cipher lists (manual page `openssl-ciphers`): words add suites; the prefixes `!`, `-` and `+`
/// remove them permanently, remove them, or move them to the end.
fn choose(text: &str, tls13: bool) -> CipherSelection {
    let all: Vec<_> = CipherSuite::ALL.iter().copied().filter(|suite| suite.is_tls13() == tls13).collect();
    let words: Vec<_> = text.split([':', ',', ' ', ';']).filter(|word| !word.is_empty()).collect();
    if words.is_empty() {
        return CipherSelection { suites: all, unknown: Vec::new() };
    }
    let mut suites: Vec<CipherSuite> = Vec::new();
    let mut never: Vec<CipherSuite> = Vec::new();
    let mut unknown = Vec::new();
    for word in words {
        let (sign, name) = match word.split_at_checked(1) {
            Some((sign @ ("!" | "-" | "+"), name)) => (sign, name),
            _ => ("", word),
        };
        let meant: Vec<_> = all.iter().copied().filter(|suite| is_meant(*suite, name)).collect();
        match sign {
            "" if meant.is_empty() => unknown.push(word.to_owned()),
            "" => {
                let new = meant.iter().filter(|suite| !never.contains(*suite) && !suites.contains(*suite));
                let new: Vec<_> = new.copied().collect();
                suites.extend(new);
            }
            "+" => {
                let (moved, stay) = suites.into_iter().partition::<Vec<_>, _>(|suite| meant.contains(suite));
                suites = stay;
                suites.extend(moved);
            }
            _ => {
                suites.retain(|suite| !meant.contains(suite));
                if sign == "!" {
                    never.extend(meant);
                }
            }
        }
    }
    CipherSelection { suites, unknown }
}

/// Whether a word selects the suite; `a+b` selects the suites of both words.
fn is_meant(suite: CipherSuite, word: &str) -> bool {
    word.split('+').all(|part| {
        suite.as_str().eq_ignore_ascii_case(part) || kinds(suite).any(|kind| kind.eq_ignore_ascii_case(part))
    })
}

/// Words that select groups of suites. The first ones are PgBouncer's.
fn kinds(suite: CipherSuite) -> impl Iterator<Item = &'static str> {
    const EVERY: &[&str] = &["default", "secure", "normal", "fast", "all", "HIGH"];
    const TLS12: &[&str] = &["TLSv1.2", "ECDHE", "EECDH", "kECDHE", "kEECDH", "AEAD"];
    let name = suite.as_str();
    let tls12: &[&str] = if suite.is_tls13() { &[] } else { TLS12 };
    let certificate: &[&str] = match name {
        _ if name.contains("-ECDSA-") => &["ECDSA", "aECDSA"],
        _ if name.contains("-RSA-") => &["aRSA"],
        _ => &[],
    };
    let cipher: &[&str] = match name {
        _ if suite.is_tls13() => &[],
        _ if name.contains("AES256") => &["AES", "AESGCM", "AES256"],
        _ if name.contains("AES128") => &["AES", "AESGCM", "AES128"],
        _ => &["CHACHA20"],
    };
    [EVERY, tls12, certificate, cipher].concat().into_iter()
}

/// TLS versions of a protocol list in PgBouncer's words; `!` removes one. Versions before 1.2 are not supported: a list of such
/// versions alone stands for 1.2, the nearest one, because a file that PgBouncer accepts has to start.
///
/// # Errors
/// An unknown word, or no version left.
pub(super) fn versions(text: &str) -> Result<TlsVersions, String> {
    let both = TlsVersions { tls12: true, tls13: true, raised: false };
    let mut allowed: Option<TlsVersions> = None;
    let mut names_older = false;
    for word in text.split([',', ':']).map(str::trim).filter(|word| !word.is_empty()) {
        let (name, on) = word.strip_prefix('!').map_or((word, true), |name| (name, false));
        let (tls12, tls13) = match name.to_ascii_lowercase().as_str() {
            "secure" | "default" | "all" | "legacy" | "tlsv1" => (true, true),
            "tlsv1.2" => (true, false),
            "tlsv1.3" => (false, true),
            "tlsv1.0" | "tlsv1.1" => {
                names_older |= on;
                (false, false)
            }
            _ => return Err(format!("`{name}` is not a protocol")),
        };
        // A list that starts with a removal starts from all versions.
        let none = TlsVersions { tls12: false, tls13: false, raised: false };
        let now = allowed.get_or_insert(if on { none } else { both });
        now.tls12 = if tls12 { on } else { now.tls12 };
        now.tls13 = if tls13 { on } else { now.tls13 };
    }
    match allowed.unwrap_or(both) {
        TlsVersions { tls12: false, tls13: false, .. } if names_older => {
            Ok(TlsVersions { tls12: true, tls13: false, raised: true })
        }
        TlsVersions { tls12: false, tls13: false, .. } => Err("only TLS 1.2 and 1.3 are supported".to_owned()),
        versions => Ok(versions),
    }
}

/// The group of a curve name.
pub(super) fn group(name: &str) -> Option<KeyGroup> {
    match name.to_ascii_lowercase().as_str() {
        "x25519" => Some(KeyGroup::X25519),
        "prime256v1" | "secp256r1" | "p-256" => Some(KeyGroup::P256),
        "secp384r1" | "p-384" => Some(KeyGroup::P384),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use CipherSuite::*;

    #[test]
    fn lists_choose_as_openssl_does() {
        let all = tls12("").suites;
        for word in ["default", "secure", "normal", "all", "fast", "HIGH:!aNULL:!MD5", "ECDHE+AESGCM:CHACHA20"] {
            assert_eq!(tls12(word).suites.len(), all.len(), "{word}");
        }
        for (list, chosen) in [
            ("ECDHE-RSA-AES128-GCM-SHA256", vec![RsaAes128]),
            ("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384", vec![RsaAes128, EcdsaAes256]),
            ("aRSA+AESGCM", vec![RsaAes256, RsaAes128]),
            ("HIGH:!ECDSA:-AES256", vec![RsaAes128, RsaChacha20]),
            ("aRSA:+AES256", vec![RsaAes128, RsaChacha20, RsaAes256]),
            ("!RSA:!AES:aRSA", vec![RsaChacha20]),
            ("DHE-RSA-AES256-SHA", vec![]),
            ("RC4:3DES", vec![]),
        ] {
            assert_eq!(tls12(list).suites, chosen, "{list}");
        }
        assert_eq!(tls12("AES128-SHA:ECDHE-RSA-AES128-GCM-SHA256:!RC4").unknown, ["AES128-SHA"]);
        assert_eq!(tls13("TLS_AES_128_GCM_SHA256").suites, [Tls13Aes128]);
        assert!(tls13("ECDHE-RSA-AES128-GCM-SHA256").suites.is_empty());
        assert_eq!(tls13("").suites.len() + all.len(), CipherSuite::ALL.len());
    }

    #[test]
    fn protocols_narrow_the_versions() {
        let read = |text| versions(text).map(|versions| (versions.tls12, versions.tls13));
        for text in ["", "secure", "default", "all", "legacy", "tlsv1", "tlsv1.2, tlsv1.3", "!tlsv1.1"] {
            assert_eq!(read(text), Ok((true, true)), "{text}");
        }
        assert_eq!(read("tlsv1.3"), Ok((false, true)));
        assert_eq!(read("secure:!tlsv1.3"), Ok((true, false)));
        assert_eq!(read("!tlsv1.2"), Ok((false, true)));
        for text in ["tlsv1.0", "tlsv1.1,tlsv1.0"] {
            assert_eq!(versions(text), Ok(TlsVersions { tls12: true, tls13: false, raised: true }), "{text}");
        }
        assert!(versions("tlsv1.1,tlsv1.3").is_ok_and(|versions| versions.tls13 && !versions.raised));
        for text in ["sslv3", "!tlsv1"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
