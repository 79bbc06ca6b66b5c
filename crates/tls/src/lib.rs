//! rustls configurations for clients, servers and web requests.
//!
//! Postgres' `sslmode`, client certificates and PgBouncer's TLS keys are mapped to [`rustls`] configurations, once per start or
//! reload. Certificates are verified as libpq and PgBouncer do: common names count if there are no alternative names, a server
//! may present a certificate from the file of authorities, and keys for RSASSA-PSS or over P-521 and certificates of X.509
//! version 1 are accepted.
//!
//! Errors name the file and what to do, because rustls often reports only that it cannot use a key ([`TlsError`]).
//!
//! ```
//! let config = tidegate_tls::for_web()?;
//! assert!(config.alpn_protocols.is_empty());
//! # Ok::<(), tidegate_tls::TlsError>(())
//! ```

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, InconsistentKeys, RootCertStore, ServerConfig, SupportedCipherSuite,
    client::WebPkiServerVerifier,
    crypto::{
        CryptoProvider, SupportedKxGroup,
        ring::{self, cipher_suite as suite, kx_group},
    },
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
    sign::{CertifiedKey, SingleCertAndKey},
};

use tidegate_config::{
    CipherSuite, ClientCertificate, ClientTls, KeyGroup, ListenConfig, ServerTls, SslMode, SslNegotiation,
};
use tidegate_link::TlsInfo;

mod certificate;
mod expiry;
mod key;
mod p521;
mod pem;
mod pss;
#[cfg(feature = "tokio")]
mod server_socket;
mod v1;
mod verifier;

use key::KeyKind;
use verifier::{ClientVerifier, NameCheck, ServerVerifier, TrustPolicy};

pub use certificate::{CertificateSubject, end_point, subject};
pub use expiry::{CertificateExpiry, expiries};
#[cfg(feature = "tokio")]
pub use server_socket::{ByteStream, ServerSocket, ServerSocketError};

/// ALPN protocol name that Postgres 17 and newer require for direct TLS negotiation.
pub const ALPN: &[u8] = b"postgresql";

/// TLS records stay below the size of libpq's reads: an asynchronous client that waits for its socket would wait forever while a
/// part of a record is in its buffer.
const FRAGMENT_MAX: usize = 8 * 1024;

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{what} {path}: {reason}")]
pub struct TlsError {
    what: &'static str,
    path: String,
    reason: String,
}

impl TlsError {
    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Describes the file without its content.
    #[must_use]
    pub fn outline(&self) -> String {
        format!("{} {}: the file cannot be used", self.what, self.path)
    }
}

fn tls_error(what: &'static str, path: &Path, reason: impl std::fmt::Display) -> TlsError {
    TlsError { what, path: path.display().to_string(), reason: format!("{reason}") }
}

fn provider() -> Arc<CryptoProvider> {
    provider_with(&[], &[])
}

/// The provider with the given cipher suites and groups; an empty list means all.
fn provider_with(suites: &[CipherSuite], groups: &[KeyGroup]) -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.signature_verification_algorithms = *p521::ALGORITHMS;
    if !suites.is_empty() {
        provider.cipher_suites = suites.iter().copied().map(rustls_suite).collect();
    }
    if !groups.is_empty() {
        provider.kx_groups = groups.iter().copied().map(rustls_group).collect();
    }
    Arc::new(provider)
}

/// Version and cipher suite of a connection, with the OpenSSL name of the suite: `TLSv1.3/TLS_AES_256_GCM_SHA384`.
#[must_use]
pub fn version_and_cipher(info: &TlsInfo) -> String {
    let of = |cipher: &&CipherSuite| rustls_suite(**cipher).suite().as_str() == Some(info.cipher);
    let cipher = CipherSuite::ALL.iter().find(of).map_or(info.cipher, |cipher| cipher.as_str());
    format!("{}/{cipher}", info.version)
}

fn rustls_suite(cipher: CipherSuite) -> SupportedCipherSuite {
    match cipher {
        CipherSuite::Tls13Aes256 => suite::TLS13_AES_256_GCM_SHA384,
        CipherSuite::Tls13Aes128 => suite::TLS13_AES_128_GCM_SHA256,
        CipherSuite::Tls13Chacha20 => suite::TLS13_CHACHA20_POLY1305_SHA256,
        CipherSuite::EcdsaAes256 => suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        CipherSuite::EcdsaAes128 => suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        CipherSuite::EcdsaChacha20 => suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        CipherSuite::RsaAes256 => suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        CipherSuite::RsaAes128 => suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        CipherSuite::RsaChacha20 => suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    }
}

fn rustls_group(group: KeyGroup) -> &'static dyn SupportedKxGroup {
    match group {
        KeyGroup::X25519 => kx_group::X25519,
        KeyGroup::P256 => kx_group::SECP256R1,
        KeyGroup::P384 => kx_group::SECP384R1,
    }
}

/// TLS for clients.
#[derive(Debug)]
pub struct TlsAcceptor {
    /// The rustls configuration.
    pub config: Arc<ServerConfig>,
    /// Hash of the certificate for channel binding (RFC 5929, `tls-server-end-point`). `None` if its signature has no hash.
    pub end_point: Option<Arc<[u8]>>,
}

/// Builds the configuration for clients; `None` if TLS is off.
///
/// # Errors
/// The file that cannot be used, and why.
pub fn for_clients(listen: &ListenConfig) -> Result<Option<Arc<TlsAcceptor>>, TlsError> {
    if listen.tls == ClientTls::Off {
        return Ok(None);
    }
    let (chain, key) = identity(&listen.tls_cert, &listen.tls_key)?;
    let kind = KeyKind::of_private(&key);
    let end_point = chain.first().and_then(|own| end_point(own)).map(Arc::from);
    let builder = ServerConfig::builder_with_provider(provider_with(&listen.tls_ciphers, &listen.tls_groups))
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error("TLS versions for", &listen.tls_cert, error))?;
    let builder = if listen.tls_client_ca.as_os_str().is_empty() {
        builder.with_no_client_auth()
    } else {
        let named = read_authorities(&listen.tls_client_ca)?;
        let roots = Arc::new(roots(&named, &listen.tls_client_ca)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
        let verifier = match listen.tls_client_cert {
            ClientCertificate::Require => verifier,
            ClientCertificate::Allow => verifier.allow_unauthenticated(),
        };
        let verifier = verifier.build().map_err(|error| tls_error("authorities in", &listen.tls_client_ca, error))?;
        builder.with_client_cert_verifier(Arc::new(ClientVerifier { webpki: verifier, named }))
    };
    let identity =
        certified(chain, key).map_err(|error| unusable_identity(&listen.tls_cert, &listen.tls_key, kind, &error))?;
    let mut config = builder.with_cert_resolver(Arc::new(identity));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.max_fragment_size = Some(FRAGMENT_MAX);
    Ok(Some(Arc::new(TlsAcceptor { config: Arc::new(config), end_point })))
}

/// Versions of HTTP that an endpoint offers (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpAlpn {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2 and HTTP/1.1.
    Http1And2,
}

/// Builds the configuration of an HTTPS endpoint with these versions of HTTP; `None` without a certificate.
///
/// # Errors
/// The file that cannot be used, and why.
pub fn for_http(cert: &Path, key: &Path, versions: HttpAlpn) -> Result<Option<Arc<ServerConfig>>, TlsError> {
    if cert.as_os_str().is_empty() {
        return Ok(None);
    }
    let (chain, private) = identity(cert, key)?;
    let kind = KeyKind::of_private(&private);
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error("TLS versions for", cert, error))?
        .with_no_client_auth()
        .with_single_cert(chain, private);
    let mut config = config.map_err(|error| unusable_identity(cert, key, kind, &error))?;
    let names: &[&str] = match versions {
        HttpAlpn::Http1 => &["http/1.1"],
        HttpAlpn::Http1And2 => &["h2", "http/1.1"],
    };
    config.alpn_protocols = names.iter().map(|name| name.as_bytes().to_vec()).collect();
    Ok(Some(Arc::new(config)))
}

/// Builds the configuration for the servers of a database; `None` if its `sslmode` never uses TLS.
///
/// # Errors
/// The file that cannot be used, and why.
pub fn for_servers(tls: &ServerTls) -> Result<Option<Arc<ClientConfig>>, TlsError> {
    if tls.mode == SslMode::Disable {
        return Ok(None);
    }
    let builder = ClientConfig::builder_with_provider(provider_with(&tls.ciphers, &[]))
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error("TLS versions for", &tls.cert, error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerVerifier::new(trust(tls)?, provider())));
    let mut config = if tls.cert.as_os_str().is_empty() {
        builder.with_no_client_auth()
    } else {
        let (chain, key) = identity(&tls.cert, &tls.key)?;
        let kind = KeyKind::of_private(&key);
        let identity = certified(chain, key);
        let identity = identity.map_err(|error| unusable_identity(&tls.cert, &tls.key, kind, &error))?;
        builder.with_client_cert_resolver(Arc::new(identity))
    };
    if tls.negotiation == SslNegotiation::Direct {
        config.alpn_protocols = vec![ALPN.to_vec()];
    }
    Ok(Some(Arc::new(config)))
}

/// Builds the configuration for web servers: the certificate needs the name of the server and an authority that the system
/// trusts.
///
/// # Errors
/// If TLS cannot be set up.
pub fn for_web() -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error("TLS versions for", Path::new("the web"), error))?;
    Ok(builder.with_root_certificates(machine_roots()).with_no_client_auth())
}

/// Like [`for_web`], with the authorities of a file in place of the system's, and with a client certificate. An empty path stands
/// for none.
///
/// # Errors
/// The file that cannot be used, and why.
pub fn for_web_with(authorities: &Path, cert: &Path, key: &Path) -> Result<ClientConfig, TlsError> {
    let roots = if authorities.as_os_str().is_empty() {
        machine_roots()
    } else {
        roots(&read_authorities(authorities)?, authorities)?
    };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error("TLS versions for", Path::new("the web"), error))?
        .with_root_certificates(roots);
    if cert.as_os_str().is_empty() {
        return Ok(builder.with_no_client_auth());
    }
    let (chain, private) = identity(cert, key)?;
    let kind = KeyKind::of_private(&private);
    builder.with_client_auth_cert(chain, private).map_err(|error| unusable_identity(cert, key, kind, &error))
}

/// How certificates of servers are verified; `None` if they are not.
fn trust(tls: &ServerTls) -> Result<Option<TrustPolicy>, TlsError> {
    let explicit = !tls.root_cert.as_os_str().is_empty();
    let names = match tls.mode {
        SslMode::VerifyFull => NameCheck::Checked,
        SslMode::VerifyCa => NameCheck::Ignored,
        // As in libpq, a root certificate makes "require" behave like "verify-ca".
        SslMode::Require if explicit => NameCheck::Ignored,
        _ => return Ok(None),
    };
    let named = if explicit { read_authorities(&tls.root_cert)? } else { Vec::new() };
    let roots = if explicit { roots(&named, &tls.root_cert)? } else { machine_roots() };
    let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| tls_error("authorities in", &tls.root_cert, error))?;
    Ok(Some(TrustPolicy { authorities, named, names }))
}

fn identity(cert: &Path, key: &Path) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let text = pem::read(cert).map_err(|error| tls_error("certificate", cert, error))?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| tls_error("certificate", cert, error))?;
    if chain.is_empty() {
        return Err(tls_error("certificate", cert, "the file holds no certificate in PEM form"));
    }
    let text = pem::read(key).map_err(|error| tls_error("key", key, error))?;
    let key = pem::private_key(&text).map_err(|error| tls_error("key", key, error))?;
    Ok((chain, key))
}

/// Combines a certificate with its key. rustls' own constructors refuse certificates of version 1.
fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<SingleCertAndKey, rustls::Error> {
    let certified = CertifiedKey::new(chain, provider().key_provider.load_private_key(key)?);
    let own = certified.end_entity_cert()?;
    if v1::is_v1(own) {
        let key_info = certified.key.public_key();
        if key_info.is_some_and(|info| v1::public_key_info(own).as_deref() != Some(info.as_ref())) {
            return Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch));
        }
    } else {
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(SingleCertAndKey::from(certified))
}

/// Explains why a certificate and its key cannot be used. rustls does not name the kind of an unsupported key.
fn unusable_identity(cert: &Path, key: &Path, kind: Option<KeyKind>, error: &rustls::Error) -> TlsError {
    match (error, kind) {
        (rustls::Error::InconsistentKeys(_), _) => {
            tls_error("key", key, format!("it is not the key of the certificate {}", cert.display()))
        }
        (_, Some(kind)) if !kind.can_sign() => {
            tls_error("key", key, format!("a key of kind {kind} is not supported; supported are {}", KeyKind::SIGNING))
        }
        _ => tls_error("certificate", cert, error),
    }
}

/// Reads the certificates of a file of authorities.
fn read_authorities(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = pem::read(path).map_err(|error| tls_error("authorities in", path, error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(found) if found.is_empty() => {
            Err(tls_error("authorities in", path, "the file holds no certificate in PEM form"))
        }
        found => found.map_err(|error| tls_error("authorities in", path, error)),
    }
}

fn roots(named: &[CertificateDer<'static>], path: &Path) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for certificate in named {
        store.add(certificate.clone()).map_err(|error| tls_error("authorities in", path, error))?;
    }
    Ok(store)
}

/// The authorities that the system trusts. Damaged entries are skipped.
fn machine_roots() -> RootCertStore {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    store
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ::ring::{rand::SystemRandom, rsa, signature::RSA_PSS_SHA256};
    use rustls::{
        ClientConnection, Error, ServerConnection, SignatureAlgorithm, SignatureScheme,
        sign::{Signer, SigningKey},
        version::TLS13,
    };

    use super::*;

    macro_rules! file {
        ($name:literal) => {
            concat!(env!("CARGO_MANIFEST_DIR"), "/../tidegate/tests/pgbouncer/certificates/", $name)
        };
    }

    const PSS_SHA256: SignatureScheme = SignatureScheme::Unknown(0x0809);

    /// A key restricted to RSASSA-PSS. rustls has no such keys, and hides the schemes of them that a server offers.
    #[derive(Clone, Debug)]
    struct PssKey(Arc<rsa::KeyPair>);

    impl SigningKey for PssKey {
        fn choose_scheme(&self, _: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
            Some(Box::new(self.clone()))
        }

        fn algorithm(&self) -> SignatureAlgorithm {
            SignatureAlgorithm::RSA
        }
    }

    impl Signer for PssKey {
        fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
            let mut signature = vec![0; self.0.public().modulus_len()];
            self.0.sign(&RSA_PSS_SHA256, &SystemRandom::new(), message, &mut signature).expect("the key signs");
            Ok(signature)
        }

        fn scheme(&self) -> SignatureScheme {
            PSS_SHA256
        }
    }

    fn client_with(certificate: &str, key: &str) -> ClientConfig {
        let PrivateKeyDer::Pkcs1(key) = PrivateKeyDer::from_pem_file(key).expect("a key") else {
            panic!("not PKCS #1")
        };
        let key = PssKey(Arc::new(rsa::KeyPair::from_der(key.secret_pkcs1_der()).expect("a key of RSA")));
        let chain = vec![CertificateDer::from_pem_file(certificate).expect("a certificate")];
        let identity = SingleCertAndKey::from(CertifiedKey::new(chain, Arc::new(key)));
        ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("TLS 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(ServerVerifier::new(None, provider())))
            .with_client_cert_resolver(Arc::new(identity))
    }

    #[test]
    fn client_may_have_a_key_for_rsassa_pss() {
        let listen = ListenConfig {
            tls: ClientTls::Require,
            tls_cert: PathBuf::from(file!("rsa-2048.pem")),
            tls_key: PathBuf::from(file!("rsa-2048.key")),
            tls_client_ca: PathBuf::from(file!("ca-p256.pem")),
            tls_client_cert: ClientCertificate::Require,
            ..ListenConfig::default()
        };
        let acceptor = for_clients(&listen).expect("the files are good").expect("TLS is on");
        let mut server = ServerConnection::new(Arc::clone(&acceptor.config)).expect("a connection");
        let client = client_with(file!("client-pss.pem"), file!("client-pss.key"));
        let name = "localhost".try_into().expect("a name");
        let mut client = ClientConnection::new(Arc::new(client), name).expect("a connection");
        while client.is_handshaking() || server.is_handshaking() {
            let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
            client.write_tls(&mut to_server).expect("memory takes everything");
            let mut rest = &to_server[..];
            while !rest.is_empty() {
                server.read_tls(&mut rest).expect("memory is read");
                server.process_new_packets().expect("the server takes the certificate");
            }
            server.write_tls(&mut to_client).expect("memory takes everything");
            let mut rest = &to_client[..];
            while !rest.is_empty() {
                client.read_tls(&mut rest).expect("memory is read");
                client.process_new_packets().expect("the client goes on");
            }
        }
        let own = server.peer_certificates().and_then(|chain| chain.first()).expect("the client has shown one");
        assert_eq!(subject(own).and_then(|subject| subject.common_name).as_deref(), Some("client"));
    }
}
