//! Signatures by keys for RSASSA-PSS only (`openssl genpkey -algorithm RSA-PSS`). rustls lacks the signature schemes of TLS for
//! them (RFC 8446, 4.2.3).

use ring::signature::{
    RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, UnparsedPublicKey,
};
use rustls::{
    CertificateError, DigitallySignedStruct, Error, SignatureScheme, client::danger::HandshakeSignatureValid,
};

use super::certificate;

const SHA256: SignatureScheme = SignatureScheme::Unknown(0x0809);
const SHA384: SignatureScheme = SignatureScheme::Unknown(0x080a);
const SHA512: SignatureScheme = SignatureScheme::Unknown(0x080b);

/// The signature schemes of such keys.
pub(super) const SCHEMES: [SignatureScheme; 3] = [SHA256, SHA384, SHA512];

/// Verifies the signature of a handshake if it uses one of these schemes.
pub(super) fn verify(
    message: &[u8],
    certificate: &[u8],
    signed: &DigitallySignedStruct,
) -> Option<Result<HandshakeSignatureValid, Error>> {
    let algorithm = match signed.scheme {
        SHA256 => &RSA_PSS_2048_8192_SHA256,
        SHA384 => &RSA_PSS_2048_8192_SHA384,
        SHA512 => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    };
    let verified = certificate::pss_key(certificate).is_some_and(|key| {
        let key = UnparsedPublicKey::new(algorithm, key);
        key.verify(message, signed.signature()).is_ok()
    });
    let bad = Error::InvalidCertificate(CertificateError::BadSignature);
    Some(if verified { Ok(HandshakeSignatureValid::assertion()) } else { Err(bad) })
}
