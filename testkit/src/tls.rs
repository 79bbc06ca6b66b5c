//! Certificates made on the spot, and a TLS client that counts the records it gets.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::client::{Lost, Stream, untagged};

/// The code of SSLRequest.
const SSL_REQUEST: u32 = 80_877_103;

/// A certificate authority whose files live in a temporary folder.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate.
    pub cert: PathBuf,
    /// Its private key, readable by the owner alone (Postgres insists).
    pub key: PathBuf,
}

impl Authority {
    /// A new authority.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "testkit authority");
        let key = KeyPair::generate().expect("a key can be made");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority can sign itself");
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("the folder can be written");
        Self { issuer, folder }
    }

    /// The authority's own certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate for these names, the first of which is its common name and the files' name.
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

    /// A certificate that has nothing but a common name, as older tools made them.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn issue_common_name(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        self.signed(name, &params)
    }

    fn signed(&self, name: &str, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key can be made");
        let cert = params.signed_by(&key, &self.issuer).expect("the authority can sign");
        self.write(name, &cert.pem(), &key)
    }

    /// A certificate that this authority has nothing to do with: it is its own, and has nothing but a common name. So are those
    /// that `openssl req -x509` makes.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn own_authority(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key can be made");
        let cert = params.self_signed(&key).expect("it can sign itself");
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
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("own files have permissions");
}

/// How a client speaks TLS.
#[derive(Clone, Debug, Default)]
pub enum TlsMode {
    /// Not at all.
    #[default]
    Off,
    /// SSLRequest first, then the handshake; the peer's certificate must be of this authority.
    Request(PathBuf),
    /// The handshake at once, with or without the ALPN name `postgresql`.
    Direct {
        /// The authority's certificate.
        ca: PathBuf,
        /// Whether ALPN is offered.
        alpn: bool,
    },
    /// [`Self::Request`] with a client certificate.
    Identified {
        /// The authority's certificate.
        ca: PathBuf,
        /// The client's own.
        identity: Identity,
    },
}

impl TlsMode {
    pub(crate) fn wrap(&self, mut tcp: TcpStream) -> Result<Stream, Lost> {
        tcp.set_read_timeout(Some(crate::PATIENCE))?;
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

fn request(tcp: &mut TcpStream) -> Result<(), Lost> {
    tcp.write_all(&untagged(&SSL_REQUEST.to_be_bytes()))?;
    let mut answer = [0];
    tcp.read_exact(&mut answer)?;
    match answer[0] {
        b'S' => Ok(()),
        other => Err(Lost::Garbage(format!("SSLRequest was answered with {:?}", char::from(other)))),
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

/// TLS over TCP. It reads record by record, so that it can tell how large they are.
pub(crate) struct TlsStream {
    session: ClientConnection,
    tcp: TcpStream,
    record_bytes_max: usize,
}

impl TlsStream {
    fn connect(tcp: TcpStream, config: ClientConfig) -> Result<Self, Lost> {
        let name = ServerName::try_from("localhost").expect("a valid name");
        let session =
            ClientConnection::new(Arc::new(config), name).map_err(|error| Lost::Garbage(format!("TLS: {error}")))?;
        let mut stream = Self { session, tcp, record_bytes_max: 0 };
        while stream.session.is_handshaking() {
            stream.write_pending()?;
            if stream.session.is_handshaking() && !stream.read_record()? {
                return Err(Lost::Closed);
            }
        }
        stream.write_pending()?;
        Ok(stream)
    }

    pub(crate) fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// What the peer has shown, in DER.
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

    /// Reads one record into the session; false at the end of the stream.
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
