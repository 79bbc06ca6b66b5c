//! Kinds of keys, for errors: rustls reports only that it cannot use a key.

use std::fmt;

use rustls::pki_types::PrivateKeyDer;
use x509_cert::{
    Certificate,
    der::{
        Decode, Reader, Tag, Tagged,
        asn1::{AnyRef, ObjectIdentifier, UintRef},
    },
    spki::AlgorithmIdentifierRef,
};

/// Kind of a key, with its size where it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyKind {
    /// RSA with this number of bits.
    Rsa(usize),
    /// RSA for RSASSA-PSS only.
    RsaPss,
    /// ECDSA over this curve.
    Ec(ObjectIdentifier),
    /// Another kind, by its object identifier.
    Other(ObjectIdentifier),
}

const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const RSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");
const EC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

const P256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.3.1.7");
const P384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.34");
const P521: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.132.0.35");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

/// Names of curves and of other kinds.
const NAMES: &[(&str, &str)] = &[
    ("1.2.840.10045.3.1.1", "P-192"),
    ("1.2.840.10045.3.1.7", "P-256"),
    ("1.3.132.0.10", "secp256k1"),
    ("1.3.132.0.33", "P-224"),
    ("1.3.132.0.34", "P-384"),
    ("1.3.132.0.35", "P-521"),
    ("1.3.36.3.3.2.8.1.1.7", "brainpoolP256r1"),
    ("1.3.36.3.3.2.8.1.1.11", "brainpoolP384r1"),
    ("1.3.36.3.3.2.8.1.1.13", "brainpoolP512r1"),
    ("1.2.840.10040.4.1", "DSA"),
    ("1.3.101.112", "Ed25519"),
    ("1.3.101.113", "Ed448"),
];

fn name(identifier: ObjectIdentifier) -> String {
    let text = identifier.to_string();
    NAMES.iter().find(|(known, _)| *known == text).map_or(text, |(_, name)| (*name).to_owned())
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rsa(bits) => write!(f, "RSA of {bits} bits"),
            Self::RsaPss => f.write_str("RSASSA-PSS"),
            Self::Ec(curve) => write!(f, "ECDSA over {}", name(*curve)),
            Self::Other(kind) => f.write_str(&name(*kind)),
        }
    }
}

impl KeyKind {
    /// The kinds that the gateway's own keys may have.
    pub(super) const SIGNING: &str = "RSA of 2048 to 4096 bits, ECDSA over P-256 or P-384, and Ed25519";
    /// The kinds that keys of servers may have.
    pub(super) const VERIFIED: &str =
        "RSA of 2048 to 8192 bits, also for RSASSA-PSS alone, ECDSA over P-256, P-384 or P-521, and Ed25519";

    /// Whether the gateway can use such a key.
    pub(super) fn can_sign(self) -> bool {
        match self {
            // The limits of ring.
            Self::Rsa(bits) => (2048..=4096).contains(&bits),
            Self::RsaPss => false,
            Self::Ec(curve) => [P256, P384].contains(&curve),
            Self::Other(kind) => kind == ED25519,
        }
    }

    /// Whether the key of a server can be verified.
    pub(super) fn is_verified(self) -> bool {
        match self {
            Self::Rsa(bits) => (2048..=8192).contains(&bits),
            Self::RsaPss => true,
            Self::Ec(curve) => [P256, P384, P521].contains(&curve),
            Self::Other(_) => self.can_sign(),
        }
    }

    /// The kind of the key in a DER certificate.
    pub(super) fn of_certificate(certificate: &[u8]) -> Option<Self> {
        let info = Certificate::from_der(certificate).ok()?.tbs_certificate.subject_public_key_info;
        let kind = info.algorithm.oid;
        if kind == RSA {
            // The modulus is the first number.
            return bits_of_modulus(info.subject_public_key.raw_bytes(), 0).map(Self::Rsa);
        }
        let curve = info.algorithm.parameters.as_ref().and_then(|any| any.decode_as().ok());
        Some(Self::of(kind, curve))
    }

    /// The kind of a private key.
    pub(super) fn of_private(key: &PrivateKeyDer<'_>) -> Option<Self> {
        match key {
            PrivateKeyDer::Pkcs1(key) => bits_of_modulus(key.secret_pkcs1_der(), 1).map(Self::Rsa),
            PrivateKeyDer::Sec1(key) => curve_of_sec1(key.secret_sec1_der()).map(Self::Ec),
            PrivateKeyDer::Pkcs8(key) => of_pkcs8(key.secret_pkcs8_der()),
            _ => None,
        }
    }

    fn of(kind: ObjectIdentifier, curve: Option<ObjectIdentifier>) -> Self {
        match (kind, curve) {
            (EC, Some(curve)) => Self::Ec(curve),
            (RSA_PSS, _) => Self::RsaPss,
            _ => Self::Other(kind),
        }
    }
}

/// Bits of the modulus of an RSA key, which is number `place` of its sequence.
fn bits_of_modulus(key: &[u8], place: usize) -> Option<usize> {
    let modulus = AnyRef::from_der(key).ok()?.sequence(|reader| {
        let mut bits = 0;
        for number in 0..=place {
            let value = UintRef::decode(reader)?;
            if number == place {
                let bytes = value.as_bytes();
                bits = bytes.len() * 8 - bytes.first().map_or(0, |first| first.leading_zeros() as usize);
            }
        }
        skip_rest(reader)?;
        Ok(bits)
    });
    modulus.ok()
}

/// PKCS #8 (RFC 5208): version, algorithm, key in the format of the algorithm.
fn of_pkcs8(key: &[u8]) -> Option<KeyKind> {
    let kind = AnyRef::from_der(key).ok()?.sequence(|reader| {
        UintRef::decode(reader)?;
        let algorithm = AlgorithmIdentifierRef::decode(reader)?;
        let inner = AnyRef::decode(reader)?;
        skip_rest(reader)?;
        if algorithm.oid == RSA {
            return Ok(bits_of_modulus(inner.value(), 1).map(KeyKind::Rsa));
        }
        let curve = algorithm.parameters.and_then(|any| any.decode_as().ok());
        Ok(Some(KeyKind::of(algorithm.oid, curve)))
    });
    kind.ok().flatten()
}

/// SEC 1 (RFC 5915): version, key, curve in a context-specific field.
fn curve_of_sec1(key: &[u8]) -> Option<ObjectIdentifier> {
    let curve = AnyRef::from_der(key).ok()?.sequence(|reader| {
        let mut curve = None;
        while !reader.is_finished() {
            let part = AnyRef::decode(reader)?;
            if matches!(part.tag(), Tag::ContextSpecific { number, .. } if number.value() == 0) {
                curve = ObjectIdentifier::from_der(part.value()).ok();
            }
        }
        Ok(curve)
    });
    curve.ok().flatten()
}

fn skip_rest<'r>(reader: &mut impl Reader<'r>) -> x509_cert::der::Result<()> {
    while !reader.is_finished() {
        AnyRef::decode(reader)?;
    }
    Ok(())
}
