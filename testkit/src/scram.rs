//! The client side of password authentication. It is independent of the gateway's implementation, so that an error in
//! one of them shows.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, Mac};
use md5::Md5;
use sha2::{Digest, Sha256};

const FIRST_BARE: &str = "n=,r=testkit-nonce-0123456789";

/// The channel binding of a SCRAM login (RFC 5929, `tls-server-end-point`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChannelBinding {
    /// The client does not support channel binding (`n`).
    #[default]
    None,
    /// The client supports channel binding, but the server did not offer SCRAM-SHA-256-PLUS (`y`).
    NotOffered,
    /// The hash of the server certificate.
    Certificate,
    /// The hash of another certificate, as after a man-in-the-middle attack.
    OtherCertificate,
    /// The hash of the server certificate, but without a `-PLUS` mechanism.
    WithoutPlus,
}

impl ChannelBinding {
    pub(crate) const fn mechanism(self) -> &'static str {
        match self {
            Self::Certificate | Self::OtherCertificate => "SCRAM-SHA-256-PLUS",
            Self::None | Self::NotOffered | Self::WithoutPlus => "SCRAM-SHA-256",
        }
    }

    const fn header(self) -> &'static str {
        match self {
            Self::None => "n,,",
            Self::NotOffered => "y,,",
            Self::Certificate | Self::OtherCertificate | Self::WithoutPlus => "p=tls-server-end-point,,",
        }
    }
}

/// A SCRAM-SHA-256 exchange (RFC 5802).
pub(crate) struct Scram {
    password: String,
    channel_binding: ChannelBinding,
    /// The certificate of the peer in DER; empty without TLS.
    certificate: Vec<u8>,
}

impl Scram {
    pub(crate) fn new(password: &str, channel_binding: ChannelBinding, certificate: Vec<u8>) -> Self {
        Self { password: password.to_owned(), channel_binding, certificate }
    }

    /// The `cbind-input` of RFC 5802: the GS2 header and the hash.
    fn binding(&self) -> Vec<u8> {
        let mut bytes = self.channel_binding.header().as_bytes().to_vec();
        match self.channel_binding {
            // All test certificates are signed with SHA-256.
            ChannelBinding::Certificate | ChannelBinding::WithoutPlus => {
                bytes.extend(Sha256::digest(&self.certificate));
            }
            ChannelBinding::OtherCertificate => bytes.extend(Sha256::digest(b"another certificate")),
            ChannelBinding::None | ChannelBinding::NotOffered => {}
        }
        bytes
    }

    /// SASLInitialResponse.
    pub(crate) fn first_message(&self) -> Vec<u8> {
        let message = format!("{}{FIRST_BARE}", self.channel_binding.header());
        let mut body = format!("{}\0", self.channel_binding.mechanism()).into_bytes();
        body.extend(u32::try_from(message.len()).expect("short").to_be_bytes());
        body.extend(message.bytes());
        body
    }

    /// SASLResponse to the server's first message.
    pub(crate) fn final_message(&self, server_first: &[u8]) -> Vec<u8> {
        let server_first = String::from_utf8_lossy(server_first).into_owned();
        let field = |key: &str| server_first.split(',').find_map(|part| part.strip_prefix(key)).unwrap_or_default();
        let salt = BASE64.decode(field("s=")).expect("the salt is base64");
        let rounds = field("i=").parse().expect("the iteration count is a number");
        let without_proof = format!("c={},r={}", BASE64.encode(self.binding()), field("r="));
        let auth_message = format!("{FIRST_BARE},{server_first},{without_proof}");
        let proof = self.proof(&salt, rounds, &auth_message);
        format!("{without_proof},p={}", BASE64.encode(proof)).into_bytes()
    }

    fn proof(&self, salt: &[u8], rounds: u32, auth_message: &str) -> Vec<u8> {
        let mut salted = [0; 32];
        pbkdf2::pbkdf2::<Hmac<Sha256>>(self.password.as_bytes(), salt, rounds, &mut salted).expect("32 bytes fit");
        let client_key = mac(&salted, b"Client Key");
        let signature = mac(&Sha256::digest(&client_key), auth_message.as_bytes());
        client_key.iter().zip(signature).map(|(key, byte)| key ^ byte).collect()
    }
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key length fits");
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

/// The response to AuthenticationMD5Password.
pub(crate) fn md5_response(user: &str, password: &str, salt: &[u8]) -> String {
    let inner = hex(&Md5::digest([password.as_bytes(), user.as_bytes()].concat()));
    format!("md5{}", hex(&Md5::digest([inner.as_bytes(), salt].concat())))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
