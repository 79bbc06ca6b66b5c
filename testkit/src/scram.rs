//! The client's side of password authentication, written apart from the gateway's own so that the two can disagree.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac};
use md5::Md5;
use sha2::{Digest, Sha256};

const FIRST_BARE: &str = "n=,r=testkit-nonce-0123456789";

/// What a SCRAM login says of the server's certificate (RFC 5929, `tls-server-end-point`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// Nothing.
    #[default]
    No,
    /// That it would be bound to it, but SCRAM-SHA-256-PLUS was not offered.
    NotOffered,
    /// Its hash.
    ToCertificate,
    /// Another hash, as a client says whose connection somebody has cut in two.
    ToAnother,
    /// That it says its hash, in an exchange that has no place for it.
    Misplaced,
}

impl Bound {
    pub(crate) const fn mechanism(self) -> &'static str {
        match self {
            Self::ToCertificate | Self::ToAnother => "SCRAM-SHA-256-PLUS",
            Self::No | Self::NotOffered | Self::Misplaced => "SCRAM-SHA-256",
        }
    }

    const fn header(self) -> &'static str {
        match self {
            Self::No => "n,,",
            Self::NotOffered => "y,,",
            Self::ToCertificate | Self::ToAnother | Self::Misplaced => "p=tls-server-end-point,,",
        }
    }
}

/// One SCRAM-SHA-256 exchange (RFC 5802).
pub(crate) struct Scram {
    password: String,
    bound: Bound,
    /// The peer's certificate in DER; empty without TLS.
    certificate: Vec<u8>,
}

impl Scram {
    pub(crate) fn new(password: &str, bound: Bound, certificate: Vec<u8>) -> Self {
        Self { password: password.to_owned(), bound, certificate }
    }

    /// What is said of the certificate: the header, and behind it the hash.
    fn binding(&self) -> Vec<u8> {
        let mut bytes = self.bound.header().as_bytes().to_vec();
        match self.bound {
            // All certificates of tests are signed with SHA-256.
            Bound::ToCertificate | Bound::Misplaced => bytes.extend(Sha256::digest(&self.certificate)),
            Bound::ToAnother => bytes.extend(Sha256::digest(b"another certificate")),
            Bound::No | Bound::NotOffered => {}
        }
        bytes
    }

    /// SASLInitialResponse.
    pub(crate) fn first(&self) -> Vec<u8> {
        let message = format!("{}{FIRST_BARE}", self.bound.header());
        let mut body = format!("{}\0", self.bound.mechanism()).into_bytes();
        body.extend(u32::try_from(message.len()).expect("short").to_be_bytes());
        body.extend(message.bytes());
        body
    }

    /// SASLResponse to the server's first message.
    pub(crate) fn last(&self, server_first: &[u8]) -> Vec<u8> {
        let server_first = String::from_utf8_lossy(server_first).into_owned();
        let field = |key: &str| server_first.split(',').find_map(|part| part.strip_prefix(key)).unwrap_or_default();
        let salt = BASE64.decode(field("s=")).expect("the salt is base64");
        let rounds = field("i=").parse().expect("the iteration count is a number");
        let without_proof = format!("c={},r={}", BASE64.encode(self.binding()), field("r="));
        let signed = format!("{FIRST_BARE},{server_first},{without_proof}");
        let proof = self.proof(&salt, rounds, &signed);
        format!("{without_proof},p={}", BASE64.encode(proof)).into_bytes()
    }

    fn proof(&self, salt: &[u8], rounds: u32, signed: &str) -> Vec<u8> {
        let mut salted = [0; 32];
        pbkdf2::pbkdf2::<Hmac<Sha256>>(self.password.as_bytes(), salt, rounds, &mut salted).expect("32 bytes fit");
        let client_key = mac(&salted, b"Client Key");
        let signature = mac(&Sha256::digest(&client_key), signed.as_bytes());
        client_key.iter().zip(signature).map(|(key, byte)| key ^ byte).collect()
    }
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key length fits");
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

/// The text of the answer to AuthenticationMD5Password.
pub(crate) fn md5_answer(user: &str, password: &str, salt: &[u8]) -> String {
    let inner = hex(&Md5::digest([password.as_bytes(), user.as_bytes()].concat()));
    format!("md5{}", hex(&Md5::digest([inner.as_bytes(), salt].concat())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
