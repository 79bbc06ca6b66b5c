//! Cipher suites and key exchange groups that a TLS configuration can be narrowed to, by the names that OpenSSL has.

use super::raw::Value;
use super::setting::{Setting, Wrong, list, words};

words! {
    /// A cipher suite.
    pub enum CipherSuite {
        /// TLS 1.3 with AES of 256 bits.
        Tls13Aes256 = "TLS_AES_256_GCM_SHA384",
        /// TLS 1.3 with AES of 128 bits.
        Tls13Aes128 = "TLS_AES_128_GCM_SHA256",
        /// TLS 1.3 with ChaCha20.
        Tls13Chacha20 = "TLS_CHACHA20_POLY1305_SHA256",
        /// TLS 1.2 with an ECDSA certificate and AES of 256 bits.
        EcdsaAes256 = "ECDHE-ECDSA-AES256-GCM-SHA384",
        /// TLS 1.2 with an ECDSA certificate and AES of 128 bits.
        EcdsaAes128 = "ECDHE-ECDSA-AES128-GCM-SHA256",
        /// TLS 1.2 with an ECDSA certificate and ChaCha20.
        EcdsaChacha20 = "ECDHE-ECDSA-CHACHA20-POLY1305",
        /// TLS 1.2 with an RSA certificate and AES of 256 bits.
        RsaAes256 = "ECDHE-RSA-AES256-GCM-SHA384",
        /// TLS 1.2 with an RSA certificate and AES of 128 bits.
        RsaAes128 = "ECDHE-RSA-AES128-GCM-SHA256",
        /// TLS 1.2 with an RSA certificate and ChaCha20.
        RsaChacha20 = "ECDHE-RSA-CHACHA20-POLY1305",
    }

    /// A group for the key exchange.
    pub enum KeyGroup {
        /// Curve25519.
        X25519 = "X25519",
        /// The curve of NIST with 256 bits.
        P256 = "prime256v1",
        /// The curve of NIST with 384 bits.
        P384 = "secp384r1",
    }
}

impl CipherSuite {
    /// All of them, the first choice first.
    pub const ALL: &'static [Self] = &[
        Self::Tls13Aes256,
        Self::Tls13Aes128,
        Self::Tls13Chacha20,
        Self::EcdsaAes256,
        Self::EcdsaAes128,
        Self::EcdsaChacha20,
        Self::RsaAes256,
        Self::RsaAes128,
        Self::RsaChacha20,
    ];

    /// Whether it is one of TLS 1.3; the others are of TLS 1.2.
    #[must_use]
    pub const fn is_tls13(self) -> bool {
        matches!(self, Self::Tls13Aes256 | Self::Tls13Aes128 | Self::Tls13Chacha20)
    }
}

impl Setting for Vec<CipherSuite> {
    fn read(value: &Value) -> Result<Self, Wrong> {
        list(value, "[\"TLS_AES_256_GCM_SHA384\"]", CipherSuite::read)
    }

    fn show(&self) -> String {
        self.iter().map(|suite| suite.as_str()).collect::<Vec<_>>().join(", ")
    }
}

impl Setting for Vec<KeyGroup> {
    fn read(value: &Value) -> Result<Self, Wrong> {
        list(value, "[\"X25519\"]", KeyGroup::read)
    }

    fn show(&self) -> String {
        self.iter().map(|group| group.as_str()).collect::<Vec<_>>().join(", ")
    }
}
