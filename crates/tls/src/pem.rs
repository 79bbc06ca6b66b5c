//! PEM files in the encodings that editors write.

use std::{fs, io, path::Path};

use rustls::pki_types::{PrivateKeyDer, pem::PemObject};

/// Reads a PEM file. Windows editors write a byte order mark (U+FEFF), or UTF-16.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    fs::read(path).map(plain)
}

fn plain(mut text: Vec<u8>) -> Vec<u8> {
    let wide = |read: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = text[2..].chunks_exact(2).map(|pair| read([pair[0], pair[1]])).collect();
        String::from_utf16_lossy(&units).into_bytes()
    };
    match text.as_slice() {
        [0xff, 0xfe, ..] => wide(u16::from_le_bytes),
        [0xfe, 0xff, ..] => wide(u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, ..] => text.split_off(3),
        _ => text,
    }
}

/// Reads the private key in the text of a file.
///
/// # Errors
/// Why there is none, and what to do about it.
pub(super) fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    let has = |mark: &str| text.windows(mark.len()).any(|part| part == mark.as_bytes());
    // The header is the only sign of an encrypted key in the traditional format.
    if has("ENCRYPTED") {
        return Err("the key is encrypted, and the gateway cannot ask for its passphrase; write it without one \
                    (openssl pkey -in KEY -out PLAIN) into a file that its owner alone can read"
            .to_owned());
    }
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match () {
        () if has("BEGIN OPENSSH PRIVATE KEY") => {
            "the key has the form of OpenSSH; convert it: ssh-keygen -p -m PEM -f KEY".to_owned()
        }
        () if has("BEGIN DSA PRIVATE KEY") => "a DSA key cannot be used".to_owned(),
        () if has("BEGIN CERTIFICATE") => "the file holds a certificate and no key".to_owned(),
        () if has("BEGIN PUBLIC KEY") => "the file holds a public key and no private key".to_owned(),
        () if !has("-----BEGIN ") => "the file holds no key in PEM form".to_owned(),
        () => error.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_order_marks_are_removed() {
        let text = "-----BEGIN X-----\n";
        let wide = |mark: [u8; 2], write: fn(u16) -> [u8; 2]| {
            let units = text.encode_utf16().flat_map(write);
            mark.into_iter().chain(units).collect::<Vec<u8>>()
        };
        for written in [
            text.as_bytes().to_vec(),
            [b"\xef\xbb\xbf", text.as_bytes()].concat(),
            wide([0xff, 0xfe], u16::to_le_bytes),
            wide([0xfe, 0xff], u16::to_be_bytes),
        ] {
            assert_eq!(plain(written), text.as_bytes());
        }
        assert_eq!(plain(Vec::new()), b"");
    }

    #[test]
    fn files_without_a_key_get_a_specific_error() {
        for (text, reason) in [
            ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n", "encrypted"),
            ("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", "encrypted"),
            ("-----BEGIN OPENSSH PRIVATE KEY-----\n", "OpenSSH"),
            ("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n", "holds a certificate"),
            ("-----BEGIN PUBLIC KEY-----\nAA==\n-----END PUBLIC KEY-----\n", "public key"),
            ("0\u{82}", "no key in PEM form"),
        ] {
            let error = private_key(text.as_bytes()).expect_err(text);
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
