//! Cipher suites and key exchange groups of a TLS configuration, by their OpenSSL names.

use super::raw::RawValue;
use super::setting::{Setting, ValueError, list, words};

words! {
    /// A cipher suite.
    pub enum CipherSuite {
        /// TLS 1.3 with AES-256.
        Tls13Aes256 = "TLS_AES_256_GCM_SHA384",
        /// TLS 1.3 with AES-128.
        Tls13Aes128 = "TLS_AES_128_GCM_SHA256",
        /// TLS 1.3 with ChaCha20.
        Tls13Chacha20 = "TLS_CHACHA20_POLY1305_SHA256",
        /// TLS 1.2 with an ECDSA certificate and AES-256.
        EcdsaAes256 = "ECDHE-ECDSA-AES256-GCM-SHA384",
        /// TLS 1.2 with an ECDSA certificate and AES-128.
        EcdsaAes128 = "ECDHE-ECDSA-AES128-GCM-SHA256",
        /// TLS 1.2 with an ECDSA certificate and ChaCha20.
        EcdsaChacha20 = "ECDHE-ECDSA-CHACHA20-POLY1305",
        /// TLS 1.2 with an RSA certificate and AES-256.
        RsaAes256 = "ECDHE-RSA-AES256-GCM-SHA384",
        /// TLS 1.2 with an RSA certificate and AES-128.
        RsaAes128 = "ECDHE-RSA-AES128-GCM-SHA256",
        /// TLS 1.2 with an RSA certificate and ChaCha20.
        RsaChacha20 = "ECDHE-RSA-CHACHA20-POLY1305",
    }

    /// A key exchange group.
    pub enum KeyGroup {
        /// Curve25519.
        X25519 = "X25519",
        /// NIST P-256.
        P256 = "prime256v1",
        /// NIST P-384.
        P384 = "secp384r1",
    }
}

impl CipherSuite {
    /// All suites in order of preference.
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

    /// Whether the suite belongs to TLS 1.3; the others belong to TLS 1.2.
    #[must_use]
    pub const fn is_tls13(self) -> bool {
        matches!(self, Self::Tls13Aes256 | Self::Tls13Aes128 | Self::Tls13Chacha20)
    }
}

impl Setting for Vec<CipherSuite> {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        list(value, "[\"TLS_AES_256_GCM_SHA384\"]", CipherSuite::read)
    }

    fn show(&self) -> String {
        self.iter().map(|suite| suite.as_str()).collect::<Vec<_>>().join(", ")
    }
}

impl Setting for Vec<KeyGroup> {
    fn read(value: &RawValue) -> Result<Self, ValueError> {
        list(value, "[\"X25519\"]", KeyGroup::read)
    }

    fn show(&self) -> String {
        self.iter().map(|group| group.as_str()).collect::<Vec<_>>().join(", ")
    }
}
