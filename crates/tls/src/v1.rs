//! Certificates of X.509 version 1: `openssl x509 -req` makes them without a file of extensions, so that private authorities
//! often have them. webpki refuses them (RFC 5280 asks for version 3); OpenSSL, and so PgBouncer and libpq, accept them.
//!
//! They are accepted only below authorities of a file that the user named. An authority of version 1 has to be in that file, as
//! with OpenSSL, because the certificate has no field for the right of its key to sign others.

use rustls::{
    CertificateError, DigitallySignedStruct, Error,
    client::danger::HandshakeSignatureValid,
    crypto::WebPkiSupportedAlgorithms,
    pki_types::{CertificateDer, UnixTime},
};
use x509_cert::{
    Certificate, Version,
    der::{Decode, Encode, Header, Reader, SliceReader, asn1::ObjectIdentifier},
    ext::pkix::{BasicConstraints, KeyUsage},
    spki::AlgorithmIdentifierOwned,
};

use super::certificate;

/// Limit of authorities between a certificate and the named one.
const INTERMEDIATES_MAX: usize = 6;

/// Whether a certificate has version 1. False for a malformed certificate.
pub(super) fn is_v1(certificate: &[u8]) -> bool {
    Certificate::from_der(certificate).is_ok_and(|parsed| parsed.tbs_certificate.version == Version::V1)
}

/// The public key of a certificate with its algorithm, as DER.
pub(super) fn public_key_info(certificate: &[u8]) -> Option<Vec<u8>> {
    Certificate::from_der(certificate).ok()?.tbs_certificate.subject_public_key_info.to_der().ok()
}

/// Verifies that a certificate of version 1 is valid now and signed by one of `named`, directly or through authorities of
/// `chain`.
pub(super) fn verify(
    own: &CertificateDer<'_>,
    chain: &[CertificateDer<'_>],
    named: &[CertificateDer<'_>],
    algorithms: &WebPkiSupportedAlgorithms,
    now: UnixTime,
) -> Result<(), Error> {
    certificate::check_validity(own, now)?;
    let mut signed = ParsedCertificate::new(own)?;
    for below in 0..=INTERMEDIATES_MAX {
        let issues = |issuer: &&CertificateDer<'_>| {
            ParsedCertificate::new(issuer).is_ok_and(|issuer| issuer.has_signed(&signed, algorithms))
        };
        if named.iter().any(|issuer| issues(&issuer)) {
            return Ok(());
        }
        let is_authority = |issuer: &&CertificateDer<'_>| is_authority(issuer, below, now);
        let Some(next) = chain.iter().find(|issuer| is_authority(issuer) && issues(issuer)) else { break };
        signed = ParsedCertificate::new(next)?;
    }
    Err(CertificateError::UnknownIssuer.into())
}

/// Verifies the signature of a handshake by the key of a certificate of version 1.
pub(super) fn verify_handshake(
    message: &[u8],
    own: &[u8],
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let parsed = ParsedCertificate::new(own)?;
    let (key_algorithm, key) = parsed.public_key().ok_or(CertificateError::BadEncoding)?;
    let of_scheme = algorithms.mapping.iter().filter(|(scheme, _)| *scheme == signed.scheme);
    let mut candidates = of_scheme.flat_map(|(_, candidates)| candidates.iter());
    let verified = candidates.any(|candidate| {
        candidate.public_key_alg_id().as_ref() == key_algorithm
            && candidate.verify_signature(key, message, signed.signature()).is_ok()
    });
    if verified { Ok(HandshakeSignatureValid::assertion()) } else { Err(CertificateError::BadSignature.into()) }
}

/// A certificate with the bytes that its signature covers.
struct ParsedCertificate<'a> {
    signed_bytes: &'a [u8],
    parsed: Certificate,
}

impl<'a> ParsedCertificate<'a> {
    fn new(der: &'a [u8]) -> Result<Self, Error> {
        let parsed = Certificate::from_der(der).map_err(|_| CertificateError::BadEncoding)?;
        // As received, because another encoding would have another signature.
        let signed_bytes = SliceReader::new(der).and_then(|mut reader| {
            Header::decode(&mut reader)?;
            reader.tlv_bytes()
        });
        Ok(Self { signed_bytes: signed_bytes.map_err(|_| CertificateError::BadEncoding)?, parsed })
    }

    /// Algorithm and bytes of the public key.
    fn public_key(&self) -> Option<(Vec<u8>, &[u8])> {
        let info = &self.parsed.tbs_certificate.subject_public_key_info;
        Some((identifier(&info.algorithm)?, info.subject_public_key.as_bytes()?))
    }

    /// Whether the key of this certificate has signed the other one.
    fn has_signed(&self, other: &ParsedCertificate<'_>, algorithms: &WebPkiSupportedAlgorithms) -> bool {
        let signed = &other.parsed;
        if self.parsed.tbs_certificate.subject != signed.tbs_certificate.issuer
            || signed.signature_algorithm != signed.tbs_certificate.signature
        {
            return false;
        }
        let (Some((key_algorithm, key)), Some(signature_algorithm), Some(signature)) =
            (self.public_key(), identifier(&signed.signature_algorithm), signed.signature.as_bytes())
        else {
            return false;
        };
        algorithms.all.iter().any(|candidate| {
            candidate.public_key_alg_id().as_ref() == key_algorithm
                && candidate.signature_alg_id().as_ref() == signature_algorithm
                && candidate.verify_signature(key, other.signed_bytes, signature).is_ok()
        })
    }
}

/// The content of an AlgorithmIdentifier, without its outer SEQUENCE, as rustls compares it.
fn identifier(algorithm: &AlgorithmIdentifierOwned) -> Option<Vec<u8>> {
    let mut bytes = algorithm.oid.to_der().ok()?;
    if let Some(parameters) = &algorithm.parameters {
        bytes.extend(parameters.to_der().ok()?);
    }
    Some(bytes)
}

/// Whether a certificate that the peer sent may sign others, with this number of authorities below it. Constraints that are not
/// evaluated here, such as those of names, make it unusable.
fn is_authority(der: &CertificateDer<'_>, below: usize, now: UnixTime) -> bool {
    let Ok(parsed) = Certificate::from_der(der) else { return false };
    let fields = &parsed.tbs_certificate;
    let Ok(Some((_, basic))) = fields.get::<BasicConstraints>() else { return false };
    let may_sign = match fields.get::<KeyUsage>() {
        Ok(usage) => usage.is_none_or(|(_, usage)| usage.key_cert_sign()),
        Err(_) => false,
    };
    let is_within = basic.path_len_constraint.is_none_or(|most| below <= usize::from(most));
    let mut extensions = fields.extensions.iter().flatten();
    let is_evaluated = |identifier: &ObjectIdentifier| EVALUATED.contains(&identifier.to_string().as_str());
    let is_understood = extensions.all(|extension| !extension.critical || is_evaluated(&extension.extn_id));
    fields.version == Version::V3
        && basic.ca
        && may_sign
        && is_within
        && is_understood
        && certificate::check_validity(der, now).is_ok()
}

/// Basic constraints and key usage. Name constraints must be critical (RFC 5280, 4.2.1.10), so that they are refused.
const EVALUATED: [&str; 2] = ["2.5.29.19", "2.5.29.15"];

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::pem::PemObject as _;

    use super::*;

    macro_rules! pem {
        ($name:literal) => {
            include_bytes!(concat!("../../tidegate/tests/pgbouncer/certificates/", $name))
        };
    }

    fn chain(pem: &[u8]) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(pem).map(|found| found.expect("a certificate")).collect()
    }

    #[test]
    fn v1_certificates_need_a_named_authority() {
        let unknown = Err(Error::from(CertificateError::UnknownIssuer));
        for (case, presented, named, expected) in [
            ("of a v1 authority", &pem!("v1-server.pem")[..], &pem!("v1-ca.pem")[..], Ok(())),
            ("of an intermediate", pem!("v1-chain.pem"), pem!("v1-root.pem"), Ok(())),
            ("of another authority", pem!("v1-server.pem"), pem!("v1-root.pem"), unknown.clone()),
            ("of a server certificate", pem!("v1-not-a-ca.pem"), pem!("v1-ca.pem"), unknown.clone()),
            ("without authorities", pem!("v1-server.pem"), b"", unknown),
        ] {
            let (presented, named) = (chain(presented), chain(named));
            assert!(is_v1(&presented[0]), "{case}");
            let found =
                verify(&presented[0], &presented[1..], &named, &super::super::p521::ALGORITHMS, UnixTime::now());
            assert_eq!(found, expected, "{case}");
        }
    }

    #[test]
    fn v1_certificates_expire() {
        let (own, named) = (chain(pem!("v1-server.pem")), chain(pem!("v1-ca.pem")));
        for (at, expected) in [(1, CertificateError::NotValidYet), (6_000_000_000, CertificateError::Expired)] {
            let now = UnixTime::since_unix_epoch(Duration::from_secs(at));
            let found = verify(&own[0], &[], &named, &super::super::p521::ALGORITHMS, now);
            assert_eq!(found, Err(expected.into()));
        }
    }

    #[test]
    fn changed_v1_certificate_is_refused() {
        let (own, named) = (chain(pem!("v1-server.pem")), chain(pem!("v1-ca.pem")));
        for at in 0..own[0].len() {
            let mut changed = own[0].to_vec();
            changed[at] ^= 1;
            let changed = CertificateDer::from(changed);
            let found = verify(&changed, &[], &named, &super::super::p521::ALGORITHMS, UnixTime::now());
            assert!(found.is_err(), "byte {at}");
        }
    }
}
