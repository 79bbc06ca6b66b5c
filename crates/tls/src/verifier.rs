//! Whether the certificate of a server is one to be trusted, as libpq and PgBouncer have it; and that of a client.

use std::{sync::Arc, time::Duration};

use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::{
        ParsedCertificate,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use super::{
    certificate::{self, Validity},
    key::KeyKind,
    pss,
};

/// Whether the server has to have the name that it was looked for under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// `verify-full`.
    Checked,
    /// `verify-ca`.
    Ignored,
}

/// Checks a server's certificate: nothing but that the peer holds its key (libpq's `require`), or who has signed it.
#[derive(Debug)]
pub(super) struct Verifier {
    trust: Option<Trust>,
    provider: Arc<CryptoProvider>,
}

/// Whom certificates have to be of.
#[derive(Debug)]
pub(super) struct Trust {
    /// Asks for the signature of an authority.
    pub(super) authorities: Arc<WebPkiServerVerifier>,
    /// The certificates of the file that the user names. A server may have one of them itself: whoever makes a certificate
    /// by `openssl req -x509` copies it to the clients, and OpenSSL does not mind that it is an authority's.
    pub(super) named: Vec<CertificateDer<'static>>,
    pub(super) names: Names,
}

impl Verifier {
    pub(super) fn new(trust: Option<Trust>, provider: Arc<CryptoProvider>) -> Self {
        Self { trust, provider }
    }
}

impl Trust {
    fn verify(
        &self,
        own: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<(), Error> {
        let outcome = if self.named.contains(own) {
            is_valid(own, now).and_then(|()| verify_server_name(&ParsedCertificate::try_from(own)?, name))
        } else {
            // The name is looked at last.
            self.authorities.verify_server_cert(own, chain, name, ocsp_response, now).map(drop)
        };
        match outcome {
            Err(error) if is_of_name(&error) && (self.names == Names::Ignored || has_common_name(own, name)) => Ok(()),
            outcome => outcome,
        }
    }
}

fn is_of_name(error: &Error) -> bool {
    use CertificateError::{NotValidForName, NotValidForNameContext};
    matches!(error, Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
}

/// Whether the certificate is in force.
fn is_valid(own: &[u8], now: UnixTime) -> Result<(), Error> {
    let Validity { from, until } = certificate::validity(own).ok_or(CertificateError::BadEncoding)?;
    let now = Duration::from_secs(now.as_secs());
    match now {
        _ if now < from => Err(CertificateError::NotValidYet.into()),
        _ if now > until => Err(CertificateError::Expired.into()),
        _ => Ok(()),
    }
}

/// Whether its common name is that name: it counts as long as there are no alternative names (RFC 6125, 6.4.4).
fn has_common_name(own: &[u8], name: &ServerName<'_>) -> bool {
    let common = certificate::subject(own).and_then(|subject| subject.common_name);
    !certificate::has_alternative_names(own) && common.is_some_and(|common| is_meant(&common, &name.to_str()))
}

/// `*` stands for the first part of a name, if at least two follow, and for nothing in an address.
fn is_meant(common: &str, name: &str) -> bool {
    match common.strip_prefix("*.") {
        Some(_) if name.parse::<std::net::IpAddr>().is_ok() => false,
        Some(rest) if rest.contains('.') && !rest.contains('*') => {
            name.split_once('.').is_some_and(|(first, domain)| !first.is_empty() && domain.eq_ignore_ascii_case(rest))
        }
        _ => common.eq_ignore_ascii_case(name),
    }
}

impl ServerCertVerifier for Verifier {
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
        let verified = pss::verify(message, cert, dss)
            .unwrap_or_else(|| rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms));
        verified.map_err(|error| because_of_key(error, cert))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let verified = pss::verify(message, cert, dss)
            .unwrap_or_else(|| rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms));
        verified.map_err(|error| because_of_key(error, cert))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.provider.signature_verification_algorithms.supported_schemes();
        schemes.extend(pss::SCHEMES);
        // A server with such a key shows its certificate only if it is asked for one: then the reason is known. Last, as those
        // that are preferred come first.
        schemes.push(SignatureScheme::ED448);
        schemes
    }
}

/// Checks the certificate of a client. rustls does, but for signatures of keys for RSASSA-PSS alone.
#[derive(Debug)]
pub(super) struct ClientVerifier(pub(super) Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for ClientVerifier {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.0.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        pss::verify(message, cert, dss).unwrap_or_else(|| self.0.verify_tls12_signature(message, cert, dss))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        pss::verify(message, cert, dss).unwrap_or_else(|| self.0.verify_tls13_signature(message, cert, dss))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.0.supported_verify_schemes();
        schemes.extend(pss::SCHEMES);
        schemes
    }
}

/// rustls says no more than that it cannot check a signature; the reason may be the kind of the key.
fn because_of_key(error: Error, certificate: &[u8]) -> Error {
    match KeyKind::of_certificate(certificate).filter(|kind| !kind.is_verified()) {
        Some(kind) => {
            let supported = KeyKind::VERIFIED;
            Error::General(format!("the key of its certificate is {kind}, which is not supported; {supported} are"))
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_common_name_may_begin_with_anything() {
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
            assert_eq!(is_meant(common, name), meant, "{common} for {name}");
        }
    }
}
