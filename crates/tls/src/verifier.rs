//! Verifies certificates: those of servers like libpq and PgBouncer, those of clients like rustls.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, WebPkiSupportedAlgorithms},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        ParsedCertificate,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use super::{certificate, key::KeyKind, p521, pss, v1};

/// Whether the name of the server is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameCheck {
    /// `verify-full`.
    Checked,
    /// `verify-ca`.
    Ignored,
}

/// Verifies the certificate of a server: only that the server holds the key (libpq's `require`), or also its signature.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    trust: Option<TrustPolicy>,
    provider: Arc<CryptoProvider>,
}

/// Requirements for certificates.
#[derive(Debug)]
pub(super) struct TrustPolicy {
    /// Verifies the signatures of authorities.
    pub(super) authorities: Arc<WebPkiServerVerifier>,
    /// The certificates of the configured file. A server may present one of them: a certificate made by `openssl req -x509` is an
    /// authority, is copied to the clients, and OpenSSL accepts it.
    pub(super) named: Vec<CertificateDer<'static>>,
    pub(super) names: NameCheck,
}

impl ServerVerifier {
    pub(super) fn new(trust: Option<TrustPolicy>, provider: Arc<CryptoProvider>) -> Self {
        Self { trust, provider }
    }
}

impl TrustPolicy {
    fn verify(
        &self,
        own: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<(), Error> {
        let outcome = if self.named.contains(own) || v1::is_v1(own) {
            self.verify_named(own, chain, name, now)
        } else {
            // The name is verified last, so another error takes precedence.
            self.authorities.verify_server_cert(own, chain, name, ocsp_response, now).map(drop)
        };
        match outcome {
            Err(error)
                if is_name_mismatch(&error) && (self.names == NameCheck::Ignored || has_common_name(own, name)) =>
            {
                Ok(())
            }
            outcome => outcome,
        }
    }
}

impl TrustPolicy {
    /// Verifies a certificate of the configured file, or one of version 1 that is signed by one of them. webpki refuses both.
    fn verify_named(
        &self,
        own: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
    ) -> Result<(), Error> {
        if self.named.contains(own) {
            certificate::check_validity(own, now)?;
        } else {
            v1::verify(own, chain, &self.named, &p521::ALGORITHMS, now)?;
        }
        if v1::is_v1(own) {
            // Version 1 has no alternative names: the caller compares the common name.
            return Err(CertificateError::NotValidForName.into());
        }
        verify_server_name(&ParsedCertificate::try_from(own)?, name)
    }
}

fn is_name_mismatch(error: &Error) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    matches!(error, Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
}

/// Whether the common name matches. It counts only without alternative names (RFC 6125, 6.4.4).
fn has_common_name(own: &[u8], name: &ServerName<'_>) -> bool {
    let common = certificate::subject(own).and_then(|subject| subject.common_name);
    !certificate::has_alternative_names(own) && common.is_some_and(|common| matches_name(&common, &name.to_str()))
}

/// Matches a common name. `*` stands for the first label if at least two labels follow, and never in an address.
fn matches_name(common: &str, name: &str) -> bool {
    match common.strip_prefix("*.") {
        Some(_) if name.parse::<std::net::IpAddr>().is_ok() => false,
        Some(rest) if rest.contains('.') && !rest.contains('*') => {
            name.split_once('.').is_some_and(|(first, domain)| !first.is_empty() && domain.eq_ignore_ascii_case(rest))
        }
        _ => common.eq_ignore_ascii_case(name),
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(trust) = &self.trust {
            trust.verify(end_entity, intermediates, server_name, ocsp_response, now)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let verified = verify_refused_by_webpki(message, cert, dss, algorithms)
            .unwrap_or_else(|| rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms));
        verified.map_err(|error| explain_key_kind(error, cert))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let verified = verify_refused_by_webpki(message, cert, dss, algorithms)
            .unwrap_or_else(|| rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms));
        verified.map_err(|error| explain_key_kind(error, cert))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.provider.signature_verification_algorithms.supported_schemes();
        schemes.extend(pss::SCHEMES);
        // A server with an Ed448 key presents its certificate only if this scheme is offered, and the error can then name the
        // kind of the key. Last, because the order is the preference.
        schemes.push(SignatureScheme::ED448);
        schemes
    }
}

/// Verifies the signature of a handshake by a certificate or key that webpki does not support; `None` for all others.
fn verify_refused_by_webpki(
    message: &[u8],
    own: &[u8],
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Option<Result<HandshakeSignatureValid, Error>> {
    let by_pss_key = pss::verify(message, own, signed);
    by_pss_key.or_else(|| v1::is_v1(own).then(|| v1::verify_handshake(message, own, signed, algorithms)))
}

/// Verifies certificates of clients like rustls, and also certificates of version 1, certificates of the configured file, and
/// signatures of keys that are restricted to RSASSA-PSS alone; in TLS 1.2 rustls does not offer clients their schemes, so that
/// these keys work in TLS 1.3.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    pub(super) webpki: Arc<dyn ClientCertVerifier>,
    /// The certificates of the configured file.
    pub(super) named: Vec<CertificateDer<'static>>,
}

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.webpki.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.webpki.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.webpki.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.named.contains(end_entity) {
            certificate::check_validity(end_entity, now)?;
        } else if v1::is_v1(end_entity) {
            v1::verify(end_entity, intermediates, &self.named, &p521::ALGORITHMS, now)?;
        } else {
            return self.webpki.verify_client_cert(end_entity, intermediates, now);
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verified = verify_refused_by_webpki(message, cert, dss, &p521::ALGORITHMS);
        verified.unwrap_or_else(|| self.webpki.verify_tls12_signature(message, cert, dss))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let verified = verify_refused_by_webpki(message, cert, dss, &p521::ALGORITHMS);
        verified.unwrap_or_else(|| self.webpki.verify_tls13_signature(message, cert, dss))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.webpki.supported_verify_schemes();
        schemes.extend(pss::SCHEMES);
        schemes
    }
}

/// Names the kind of the key if it is the reason why a signature cannot be verified.
fn explain_key_kind(error: Error, certificate: &[u8]) -> Error {
    match KeyKind::of_certificate(certificate).filter(|kind| !kind.is_verified()) {
        Some(kind) => {
            let supported = KeyKind::VERIFIED;
            Error::General(format!(
                "the key of its certificate is {kind}, which is not supported; supported are {supported}"
            ))
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_names_may_contain_a_wildcard() {
        for (common, name, meant) in [
            ("db.example.com", "db.example.com", true),
            ("DB.example.com", "db.EXAMPLE.com", true),
            ("*.example.com", "db.example.com", true),
            ("*.example.com", "a.db.example.com", false),
            ("*.example.com", "example.com", false),
            ("*.example.com", ".example.com", false),
            ("*.com", "example.com", false),
            ("*.0.0.1", "127.0.0.1", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("*", "db", false),
            ("*.*.com", "db.example.com", false),
            ("d*.example.com", "db.example.com", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("db", "db.example.com", false),
        ] {
            assert_eq!(matches_name(common, name), meant, "{common} for {name}");
        }
    }
}
