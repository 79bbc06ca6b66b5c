//! The grammar of the four messages: `a=value`, separated by commas.

use base64::{Engine, engine::general_purpose::STANDARD};

use super::{ChannelBinding, ITERATIONS_MAX, MESSAGE_MAX, ScramError};

const END_POINT: &str = "p=tls-server-end-point";

/// A string that is used once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nonce(String);

impl Nonce {
    /// Encodes random bytes as printable characters. Postgres uses 18 bytes.
    #[must_use]
    pub fn from_random(bytes: &[u8]) -> Self {
        Self(STANDARD.encode(bytes))
    }

    /// Creates a nonce from text; `None` unless it is 1 to 256 printable ASCII characters without a comma.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        ((1..=256).contains(&text.len()) && is_printable(text)).then(|| Self(text.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_printable(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b',')
}

pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

pub(super) fn decode_key(text: &str) -> Option<[u8; 32]> {
    decode(text)?.try_into().ok()
}

/// `n`, `y` or `p=`..., and the empty authorization identity.
pub(super) fn gs2_header(binding: &ChannelBinding) -> String {
    let flag = match binding {
        ChannelBinding::None => "n",
        ChannelBinding::Unused => "y",
        ChannelBinding::EndPoint(_) => END_POINT,
    };
    format!("{flag},,")
}

/// The attribute `c` of the final client message: its GS2 header, and the data of the binding.
pub(super) fn binding_attribute(header: &str, binding: &ChannelBinding) -> String {
    let mut bytes = header.as_bytes().to_vec();
    if let ChannelBinding::EndPoint(hash) = binding {
        bytes.extend_from_slice(hash);
    }
    encode(&bytes)
}

/// Reads the attributes of a message in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttributeReader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> AttributeReader<'a> {
    pub(super) fn new(message: &'a [u8]) -> Result<Self, ScramError> {
        if message.len() > MESSAGE_MAX {
            return Err(ScramError::TooLong { len: message.len() });
        }
        let text = str::from_utf8(message)
            .map_err(|error| ScramError::Malformed { offset: error.valid_up_to(), expected: "UTF-8" })?;
        Ok(Self { text, at: 0 })
    }

    pub(super) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(super) const fn malformed(&self, expected: &'static str) -> ScramError {
        ScramError::Malformed { offset: self.at, expected }
    }

    /// Reads up to the next comma and skips it, or reads the rest.
    pub(super) fn field(&mut self) -> &'a str {
        let (field, _) = self.rest().split_once(',').unwrap_or((self.rest(), ""));
        self.at = (self.at + field.len() + 1).min(self.text.len());
        field
    }

    /// Reads the value of the next attribute, which must have this name (such as `"r="`).
    pub(super) fn attribute(&mut self, name: &'static str) -> Result<&'a str, ScramError> {
        let before = *self;
        self.field().strip_prefix(name).ok_or(before.malformed(name))
    }

    pub(super) fn nonce(&mut self) -> Result<&'a str, ScramError> {
        let before = *self;
        let nonce = self.attribute("r=")?;
        if nonce.is_empty() || !is_printable(nonce) {
            return Err(before.malformed("a nonce"));
        }
        Ok(nonce)
    }

    /// Refuses a mandatory extension, which precedes all attributes.
    pub(super) fn refuse_mandatory_extension(&self) -> Result<(), ScramError> {
        if self.rest().starts_with("m=") { Err(ScramError::Unsupported("extension")) } else { Ok(()) }
    }

    pub(super) fn end(&self) -> Result<(), ScramError> {
        if self.rest().is_empty() { Ok(()) } else { Err(self.malformed("the end")) }
    }
}

/// The first client message.
pub(super) struct ClientFirst<'a> {
    pub(super) header: &'a str,
    pub(super) bare: &'a str,
    pub(super) nonce: &'a str,
}

impl<'a> ClientFirst<'a> {
    pub(super) fn parse(message: &'a [u8], binding: &ChannelBinding) -> Result<Self, ScramError> {
        let mut reader = AttributeReader::new(message)?;
        check_flag(reader.field(), binding)?;
        if !reader.field().is_empty() {
            return Err(ScramError::Unsupported("authorization identity"));
        }
        let header = reader.text.get(..reader.at).unwrap_or_default();
        let bare = reader.rest();
        reader.refuse_mandatory_extension()?;
        reader.attribute("n=")?;
        let nonce = reader.nonce()?;
        // Optional extensions may follow.
        Ok(Self { header, bare, nonce })
    }
}

fn check_flag(flag: &str, binding: &ChannelBinding) -> Result<(), ScramError> {
    match (flag, binding) {
        ("n", ChannelBinding::None | ChannelBinding::Unused)
        | ("y", ChannelBinding::None)
        | (END_POINT, ChannelBinding::EndPoint(_)) => Ok(()),
        ("n" | "y" | END_POINT, _) => Err(ScramError::WrongBinding),
        (other, _) if other.starts_with("p=") => Err(ScramError::Unsupported("channel binding type")),
        _ => Err(ScramError::Malformed { offset: 0, expected: "n, y or p=" }),
    }
}

/// The first server message.
pub(super) struct ServerFirst<'a> {
    pub(super) nonce: &'a str,
    pub(super) salt: Vec<u8>,
    pub(super) iterations: u32,
}

impl<'a> ServerFirst<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Result<Self, ScramError> {
        let mut reader = AttributeReader::new(message)?;
        reader.refuse_mandatory_extension()?;
        let nonce = reader.nonce()?;
        let before = reader;
        let salt = decode(reader.attribute("s=")?).filter(|salt| !salt.is_empty());
        let salt = salt.ok_or(before.malformed("a salt in base64"))?;
        let iterations = parse_iterations(reader.attribute("i=")?)?;
        reader.end()?;
        Ok(Self { nonce, salt, iterations })
    }
}

pub(super) fn parse_iterations(text: &str) -> Result<u32, ScramError> {
    // `parse` alone would accept a plus sign.
    let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let iterations = digits.and_then(|text| text.parse().ok()).unwrap_or(0);
    if (1..=ITERATIONS_MAX).contains(&iterations) { Ok(iterations) } else { Err(ScramError::Iterations) }
}

/// The final client message.
pub(super) struct ClientFinal<'a> {
    pub(super) binding: &'a str,
    pub(super) nonce: &'a str,
    pub(super) without_proof: &'a str,
    pub(super) proof: [u8; 32],
}

impl<'a> ClientFinal<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Result<Self, ScramError> {
        let mut reader = AttributeReader::new(message)?;
        let binding = reader.attribute("c=")?;
        let nonce = reader.nonce()?;
        loop {
            let before = reader;
            if reader.rest().is_empty() {
                return Err(reader.malformed("p="));
            }
            // Extensions may precede the proof.
            let Some(proof) = reader.field().strip_prefix("p=") else {
                continue;
            };
            let proof = decode_key(proof).ok_or(before.malformed("a proof in base64"))?;
            reader.end()?;
            let without_proof = before.text.get(..before.at.saturating_sub(1)).unwrap_or_default();
            return Ok(Self { binding, nonce, without_proof, proof });
        }
    }
}

/// The final server message: its signature.
pub(super) fn parse_server_final(message: &[u8]) -> Result<[u8; 32], ScramError> {
    let mut reader = AttributeReader::new(message)?;
    if let Some(reason) = reader.rest().strip_prefix("e=") {
        return Err(ScramError::Refused(reason.to_owned()));
    }
    let before = reader;
    let signature = decode_key(reader.attribute("v=")?).ok_or(before.malformed("a signature in base64"))?;
    reader.end()?;
    Ok(signature)
}
