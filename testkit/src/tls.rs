//! Generated certificates, and a TLS client that measures the records it receives.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::client::{ClientError, Stream, untagged};

/// The code of SSLRequest.
const SSL_REQUEST: u32 = 80_877_103;

/// A certificate authority with its files in a temporary folder.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub cert: PathBuf,
    /// The private key, readable by the owner only, as Postgres requires.
    pub key: PathBuf,
}

impl Authority {
    /// Creates an authority.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "testkit authority");
        let key = KeyPair::generate().expect("a key can be generated");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority can sign its certificate");
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("the folder can be written");
        Self { issuer, folder }
    }

    /// The certificate of the authority.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Issues a certificate for these names. The first name is the common name and the file name.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn issue(&self, names: &[&str]) -> Identity {
        let owned: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(owned).expect("the names are valid");
        params.distinguished_name.push(rcgen::DnType::CommonName, names[0]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.signed(names[0], &params)
    }

    /// Issues a certificate with a common name and no subject alternative names, as older tools do.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn issue_common_name(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        self.signed(name, &params)
    }

    fn signed(&self, name: &str, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key can be generated");
        let cert = params.signed_by(&key, &self.issuer).expect("the authority can sign");
        self.write(name, &cert.pem(), &key)
    }

    /// Creates a self-signed certificate with a common name only, as `openssl req -x509` does. Only its files belong to
    /// this authority.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn self_signed(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key can be generated");
        let cert = params.self_signed(&key).expect("a certificate can be self-signed");
        self.write(name, &cert.pem(), &key)
    }

    fn write(&self, name: &str, pem: &str, key: &KeyPair) -> Identity {
        let path = |end: &str| self.folder.path().join(format!("{name}.{end}"));
        let identity = Identity { cert: path("crt"), key: path("key") };
        fs::write(&identity.cert, pem).expect("the folder can be written");
        write_private(&identity.key, &key.serialize_pem());
        identity
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

fn write_private(path: &Path, pem: &str) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, pem).expect("the folder can be written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("the permissions of the file can be set");
}

/// The TLS mode of a client.
#[derive(Clone, Debug, Default)]
pub enum TlsMode {
    /// No TLS.
    #[default]
    Off,
    /// SSLRequest, then the handshake. The certificate of the peer must be signed by this authority.
    Request(PathBuf),
    /// The handshake without SSLRequest (direct TLS), with or without the ALPN name `postgresql`.
    Direct {
        /// The certificate of the authority.
        ca: PathBuf,
        /// Whether ALPN is offered.
        alpn: bool,
    },
    /// [`Self::Request`] with a client certificate.
    Identified {
        /// The certificate of the authority.
        ca: PathBuf,
        /// The certificate of the client.
        identity: Identity,
    },
}

impl TlsMode {
    pub(crate) fn wrap(&self, mut tcp: TcpStream) -> Result<Stream, ClientError> {
        tcp.set_read_timeout(Some(crate::TIMEOUT))?;
        let config = match self {
            Self::Off => return Ok(Stream::Tcp(tcp)),
            Self::Request(ca) => {
                request(&mut tcp)?;
                anonymous(ca)
            }
            Self::Identified { ca, identity } => {
                request(&mut tcp)?;
                identified(ca, identity)
            }
            Self::Direct { ca, alpn } => {
                let mut config = anonymous(ca);
                if *alpn {
                    config.alpn_protocols = vec![b"postgresql".to_vec()];
                }
                config
            }
        };
        Ok(Stream::Tls(Box::new(TlsStream::connect(tcp, config)?)))
    }
}

fn request(tcp: &mut TcpStream) -> Result<(), ClientError> {
    tcp.write_all(&untagged(&SSL_REQUEST.to_be_bytes()))?;
    let mut answer = [0];
    tcp.read_exact(&mut answer)?;
    match answer[0] {
        b'S' => Ok(()),
        other => Err(ClientError::Garbage(format!("reply to SSLRequest is {:?}", char::from(other)))),
    }
}

fn builder(ca: &Path) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_file(ca).expect("the authority's file is PEM");
    roots.add(ca).expect("the authority's certificate is valid");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_root_certificates(roots)
}

fn anonymous(ca: &Path) -> ClientConfig {
    builder(ca).with_no_client_auth()
}

fn identified(ca: &Path, identity: &Identity) -> ClientConfig {
    let cert = CertificateDer::from_pem_file(&identity.cert).expect("the certificate's file is PEM");
    let key = PrivateKeyDer::from_pem_file(&identity.key).expect("the key's file is PEM");
    builder(ca).with_client_auth_cert(vec![cert], key).expect("the key belongs to the certificate")
}

/// TLS over TCP. The stream reads record by record to measure their lengths.
pub(crate) struct TlsStream {
    session: ClientConnection,
    tcp: TcpStream,
    record_bytes_max: usize,
}

impl TlsStream {
    fn connect(tcp: TcpStream, config: ClientConfig) -> Result<Self, ClientError> {
        let name = ServerName::try_from("localhost").expect("a valid name");
        let session = ClientConnection::new(Arc::new(config), name)
            .map_err(|error| ClientError::Garbage(format!("TLS: {error}")))?;
        let mut stream = Self { session, tcp, record_bytes_max: 0 };
        while stream.session.is_handshaking() {
            stream.write_pending()?;
            if stream.session.is_handshaking() && !stream.read_record()? {
                return Err(ClientError::Closed);
            }
        }
        stream.write_pending()?;
        Ok(stream)
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// The certificate of the peer in DER.
    pub(crate) fn certificate(&self) -> Vec<u8> {
        let chain = self.session.peer_certificates().unwrap_or_default();
        chain.first().map(|own| own.to_vec()).unwrap_or_default()
    }

    pub(crate) fn record_bytes_max(&self) -> usize {
        self.record_bytes_max
    }

    fn write_pending(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut self.tcp)?;
        }
        Ok(())
    }

    /// Reads one record into the session; returns `false` at the end of the stream.
    fn read_record(&mut self) -> io::Result<bool> {
        let mut record = vec![0; 5];
        match self.tcp.read(&mut record[..1])? {
            0 => return Ok(false),
            _ => self.tcp.read_exact(&mut record[1..])?,
        }
        let length = usize::from(u16::from_be_bytes([record[3], record[4]]));
        record.resize(5 + length, 0);
        self.tcp.read_exact(&mut record[5..])?;
        self.record_bytes_max = self.record_bytes_max.max(length);
        let mut rest = &record[..];
        while !rest.is_empty() {
            self.session.read_tls(&mut rest)?;
            self.session.process_new_packets().map_err(io::Error::other)?;
        }
        Ok(true)
    }
}

impl Read for TlsStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            self.write_pending()?;
            if !self.read_record()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.session.writer().write(bytes)?;
        self.write_pending()?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_pending()
    }
}
