//! Signatures of ECDSA keys over P-521, which ring lacks.

use std::sync::LazyLock;

use p521::ecdsa::{Signature, VerifyingKey, signature::hazmat::PrehashVerifier as _};
use rustls::{
    SignatureScheme,
    crypto::{WebPkiSupportedAlgorithms, ring},
    pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm, alg_id},
};
use sha2::{Digest, Sha384, Sha512};

/// ring's algorithms and these. Leaked once: rustls requires lists with static lifetime.
pub(super) static ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| {
    let known = ring::default_provider().signature_verification_algorithms;
    let all: Vec<_> = known.all.iter().copied().chain([WITH_SHA512, WITH_SHA384]).collect();
    let scheme: (_, &[_]) = (SignatureScheme::ECDSA_NISTP521_SHA512, &[WITH_SHA512]);
    let mapping: Vec<_> = known.mapping.iter().copied().chain([scheme]).collect();
    WebPkiSupportedAlgorithms { all: all.leak(), mapping: mapping.leak() }
});

/// The scheme of TLS, and the most frequent one in certificates.
const WITH_SHA512: &dyn SignatureVerificationAlgorithm =
    &P521Verification { signature: alg_id::ECDSA_SHA512, digest: |message| Sha512::digest(message).to_vec() };
/// Used for certificates only.
const WITH_SHA384: &dyn SignatureVerificationAlgorithm =
    &P521Verification { signature: alg_id::ECDSA_SHA384, digest: |message| Sha384::digest(message).to_vec() };

#[derive(Debug)]
struct P521Verification {
    signature: AlgorithmIdentifier,
    digest: fn(&[u8]) -> Vec<u8>,
}

impl SignatureVerificationAlgorithm for P521Verification {
    fn verify_signature(&self, public_key: &[u8], message: &[u8], signature: &[u8]) -> Result<(), InvalidSignature> {
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = Signature::from_der(signature).map_err(|_| InvalidSignature)?;
        key.verify_prehash(&(self.digest)(message), &signature).map_err(|_| InvalidSignature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P521
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.signature
    }
}
