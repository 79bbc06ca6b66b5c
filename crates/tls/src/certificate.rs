//! Reads certificates: subject, validity, and the hash for channel binding.

use std::time::Duration;

use rustls::{CertificateError, Error, pki_types::UnixTime};
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::{
    Certificate,
    der::{
        Decode, Reader, Tag, TagNumber, Tagged,
        asn1::{AnyRef, ContextSpecific, ObjectIdentifier},
    },
    spki::{AlgorithmIdentifierOwned, AlgorithmIdentifierRef},
};

/// Subject of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSubject {
    /// The first common name; `None` if it is empty or not text.
    pub common_name: Option<String>,
    /// The distinguished name in the format of RFC 4514, last part first: `CN=app,O=Example`.
    pub distinguished_name: String,
}

/// Reads the subject of a DER certificate; `None` if it is malformed.
#[must_use]
pub fn subject(certificate: &[u8]) -> Option<CertificateSubject> {
    let certificate = Certificate::from_der(certificate).ok()?;
    let name = &certificate.tbs_certificate.subject;
    let mut attributes = name.0.iter().flat_map(|part| part.0.iter());
    let common_name = attributes.find(|attribute| attribute.oid == COMMON_NAME).and_then(|attribute| {
        let is_text = matches!(
            attribute.value.tag(),
            Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::TeletexString
        );
        let text = str::from_utf8(attribute.value.value()).ok().filter(|_| is_text)?;
        // A zero byte would end the name for a C program.
        (!text.is_empty() && !text.contains('\0')).then(|| text.to_owned())
    });
    Some(CertificateSubject { common_name, distinguished_name: name.to_string() })
}

const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
const RSASSA_PSS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.10");
const ALTERNATIVE_NAMES: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");

/// Validity period of a certificate, as durations since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: Duration,
    pub(super) until: Duration,
}

/// Reads the validity period of a DER certificate; `None` if it is malformed.
pub(super) fn validity(certificate: &[u8]) -> Option<Validity> {
    let validity = Certificate::from_der(certificate).ok()?.tbs_certificate.validity;
    Some(Validity { from: validity.not_before.to_unix_duration(), until: validity.not_after.to_unix_duration() })
}

/// Whether the certificate is within its validity period.
pub(super) fn check_validity(own: &[u8], now: UnixTime) -> Result<(), Error> {
    let Validity { from, until } = validity(own).ok_or(CertificateError::BadEncoding)?;
    let now = Duration::from_secs(now.as_secs());
    match now {
        _ if now < from => Err(CertificateError::NotValidYet.into()),
        _ if now > until => Err(CertificateError::Expired.into()),
        _ => Ok(()),
    }
}

/// Returns the key of a certificate if it is for RSASSA-PSS only.
pub(super) fn pss_key(certificate: &[u8]) -> Option<Vec<u8>> {
    let info = Certificate::from_der(certificate).ok()?.tbs_certificate.subject_public_key_info;
    (info.algorithm.oid == RSASSA_PSS).then(|| info.subject_public_key.raw_bytes().to_vec())
}

/// Whether a certificate has alternative names. True for a malformed certificate.
pub(super) fn has_alternative_names(certificate: &[u8]) -> bool {
    let Ok(certificate) = Certificate::from_der(certificate) else { return true };
    let extensions = certificate.tbs_certificate.extensions.unwrap_or_default();
    extensions.iter().any(|extension| extension.extn_id == ALTERNATIVE_NAMES)
}

/// Returns the hash of a DER certificate for channel binding (RFC 5929, `tls-server-end-point`). `None` if its signature has no
/// hash, as with Ed25519.
#[must_use]
pub fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let parsed = Certificate::from_der(certificate).ok()?;
    Some(match hash_function(&parsed.signature_algorithm)? {
        HashFunction::Sha256 => Sha256::digest(certificate).to_vec(),
        HashFunction::Sha384 => Sha384::digest(certificate).to_vec(),
        HashFunction::Sha512 => Sha512::digest(certificate).to_vec(),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HashFunction {
    Sha256,
    Sha384,
    Sha512,
}

/// Hash function of a signature algorithm; SHA-256 in place of weak ones.
fn hash_function(algorithm: &AlgorithmIdentifierOwned) -> Option<HashFunction> {
    match algorithm.oid.to_string().as_str() {
        // RSA with MD5 and with SHA-1, ECDSA with SHA-1.
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.10045.4.1" => Some(HashFunction::Sha256),
        "1.2.840.113549.1.1.11" | "1.2.840.10045.4.3.2" => Some(HashFunction::Sha256),
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => Some(HashFunction::Sha384),
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => Some(HashFunction::Sha512),
        "1.2.840.113549.1.1.10" => pss_hash_function(algorithm),
        _ => None,
    }
}

/// RSASSA-PSS names the hash function in its parameters (RFC 4055); SHA-1 by default.
fn pss_hash_function(algorithm: &AlgorithmIdentifierOwned) -> Option<HashFunction> {
    let named = algorithm.parameters.as_ref()?.sequence(|reader| {
        let named = ContextSpecific::<AlgorithmIdentifierRef<'_>>::decode_explicit(reader, TagNumber::N0)?;
        while !reader.is_finished() {
            AnyRef::decode(reader)?;
        }
        Ok(named.map(|named| named.value.oid.to_string()))
    });
    match named.ok()?.as_deref() {
        None | Some("1.3.14.3.2.26" | "2.16.840.1.101.3.4.2.1") => Some(HashFunction::Sha256),
        Some("2.16.840.1.101.3.4.2.2") => Some(HashFunction::Sha384),
        Some("2.16.840.1.101.3.4.2.3") => Some(HashFunction::Sha512),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::{CertificateDer, pem::PemObject};
    use x509_cert::der::Any;

    use super::*;

    #[test]
    fn subject_and_end_point_of_a_certificate() {
        let authority = tidegate_testkit::Authority::new();
        let own = CertificateDer::from_pem_file(authority.issue(&["app"]).cert).expect("a certificate");
        let subject_of = subject(&own).expect("it can be read");
        assert_eq!(subject_of.common_name.as_deref(), Some("app"));
        assert_eq!(subject_of.distinguished_name, "CN=app");
        assert_eq!(end_point(&own), Some(Sha256::digest(&own).to_vec()));
        assert_eq!((subject(b"no certificate"), end_point(b"")), (None, None));
    }

    #[test]
    fn weak_hash_functions_are_replaced() {
        /// RSASSA-PSS with SHA-384 for both hash functions, and a salt of 48 bytes.
        const PSS_SHA384: &[u8] = b"\x30\x34\
            \xa0\x0f\x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x02\x05\x00\
            \xa1\x1c\x30\x1a\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x08\
            \x30\x0d\x06\x09\x60\x86\x48\x01\x65\x03\x04\x02\x02\x05\x00\
            \xa2\x03\x02\x01\x30";
        let of = |oid: &str, parameters: Option<&[u8]>| {
            let parameters = parameters.map(|der| Any::from_der(der).expect("parameters"));
            hash_function(&AlgorithmIdentifierOwned {
                oid: ObjectIdentifier::new(oid).expect("an identifier"),
                parameters,
            })
        };
        for (oid, parameters, hash) in [
            ("1.2.840.113549.1.1.5", None, Some(HashFunction::Sha256)),
            ("1.2.840.113549.1.1.11", None, Some(HashFunction::Sha256)),
            ("1.2.840.10045.4.3.3", None, Some(HashFunction::Sha384)),
            ("1.2.840.113549.1.1.13", None, Some(HashFunction::Sha512)),
            ("1.2.840.113549.1.1.10", Some(PSS_SHA384), Some(HashFunction::Sha384)),
            ("1.2.840.113549.1.1.10", Some(&b"\x30\x00"[..]), Some(HashFunction::Sha256)),
            ("1.2.840.113549.1.1.10", None, None),
            ("1.3.101.112", None, None),
        ] {
            assert_eq!(of(oid, parameters), hash, "{oid}");
        }
    }
}
