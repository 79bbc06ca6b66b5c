//! Bodies of server messages, borrowed.

use crate::cursor::Cursor;
use crate::error::{DecodeError, DecodeErrorKind};
use crate::startup::{CANCEL_KEY_MAX, CANCEL_KEY_MIN};

/// The body of an authentication message: the next request of the server.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authentication<'a> {
    /// The login succeeded.
    Ok,
    /// Send the password in clear text.
    Cleartext,
    /// Send the password hashed with md5.
    Md5 {
        /// Salt of this challenge.
        salt: [u8; 4],
    },
    /// Choose a SASL mechanism.
    Sasl {
        /// The offered mechanisms.
        mechanisms: Mechanisms<'a>,
    },
    /// The next message of the SASL exchange.
    SaslContinue(&'a [u8]),
    /// The last message of the SASL exchange.
    SaslFinal(&'a [u8]),
    /// An unsupported method: Kerberos, GSSAPI, SSPI.
    Other {
        /// The code of the method.
        code: u32,
    },
}

impl<'a> Authentication<'a> {
    /// Decodes the body.
    ///
    /// # Errors
    /// The body is truncated, or bytes follow its fields.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let code = fields.u32()?;
        let found = match code {
            0 => Self::Ok,
            3 => Self::Cleartext,
            5 => Self::Md5 { salt: fields.u32()?.to_be_bytes() },
            10 => return Mechanisms::decode(fields).map(|mechanisms| Self::Sasl { mechanisms }),
            11 => return Ok(Self::SaslContinue(fields.rest())),
            12 => return Ok(Self::SaslFinal(fields.rest())),
            _ => return Ok(Self::Other { code }),
        };
        fields.end()?;
        Ok(found)
    }
}

/// The offered SASL mechanisms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mechanisms<'a> {
    /// The names with their zero bytes, without the empty name at the end.
    names: &'a [u8],
}

impl<'a> Mechanisms<'a> {
    fn decode(mut fields: Cursor<'a>) -> Result<Self, DecodeError> {
        let names = fields.rest();
        while !fields.text()?.is_empty() {}
        fields.end()?;
        Ok(Self { names: names.strip_suffix(&[0]).unwrap_or_default() })
    }

    /// The names in the server's order of preference.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut names = Cursor::new(self.names);
        std::iter::from_fn(move || names.text().ok())
    }

    /// Whether this mechanism is offered.
    #[must_use]
    pub fn offer(&self, name: &str) -> bool {
        self.iter().any(|found| found == name.as_bytes())
    }
}

/// The body of ParameterStatus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParameterStatus<'a> {
    /// Name of the parameter.
    pub name: &'a [u8],
    /// The new value.
    pub value: &'a [u8],
}

impl<'a> ParameterStatus<'a> {
    /// Decodes the body.
    ///
    /// # Errors
    /// A string has no terminator, or bytes follow.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let (name, value) = (fields.text()?, fields.text()?);
        fields.end()?;
        Ok(Self { name, value })
    }
}

/// The body of BackendKeyData.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendKeyData<'a> {
    /// Process ID of the server process.
    pub pid: u32,
    /// The secret key for cancel requests, 4 to 256 bytes.
    pub key: &'a [u8],
}

impl<'a> BackendKeyData<'a> {
    /// Decodes the body.
    ///
    /// # Errors
    /// The key is shorter than 4 or longer than 256 bytes.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let pid = fields.u32()?;
        let key = fields.rest();
        if (CANCEL_KEY_MIN..=CANCEL_KEY_MAX).contains(&key.len()) {
            return Ok(Self { pid, key });
        }
        Err(fields.error(DecodeErrorKind::Length { len: key.len(), min: CANCEL_KEY_MIN, max: CANCEL_KEY_MAX }))
    }
}

/// Transaction status of a session: the body of ReadyForQuery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TxStatus {
    /// Outside a transaction.
    Idle = b'I',
    /// Inside a transaction.
    InTransaction = b'T',
    /// Inside a failed transaction, which ignores commands until its end.
    Failed = b'E',
}

impl TxStatus {
    /// The status for a byte.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'I' => Some(Self::Idle),
            b'T' => Some(Self::InTransaction),
            b'E' => Some(Self::Failed),
            _ => None,
        }
    }
}

/// Decodes the body of ReadyForQuery.
///
/// # Errors
/// The body is not exactly one of the three status bytes.
pub fn ready_for_query_status(body: &[u8]) -> Result<TxStatus, DecodeError> {
    let mut fields = Cursor::new(body);
    let byte = fields.u8()?;
    fields.end()?;
    let kind = DecodeErrorKind::Value { field: "transaction status", value: byte.into() };
    TxStatus::from_byte(byte).ok_or(DecodeError::new(0, kind))
}

/// The body of CommandComplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandComplete<'a> {
    /// The command tag: `INSERT 0 5`.
    pub tag: &'a [u8],
}

impl<'a> CommandComplete<'a> {
    /// Decodes the body.
    ///
    /// # Errors
    /// The text has no terminator, or bytes follow it.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let tag = fields.text()?;
        fields.end()?;
        Ok(Self { tag })
    }

    /// The row count at the end of the tag, for commands with a count.
    #[must_use]
    pub fn rows(&self) -> Option<u64> {
        // The tag is short, so a scan from its end costs little.
        let start = self.tag.iter().rposition(|byte| *byte == b' ')? + 1;
        let (first, rest) = self.tag[start..].split_first()?;
        let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
        rest.iter().try_fold(digit(first)?, |rows, byte| rows.checked_mul(10)?.checked_add(digit(byte)?))
    }
}

/// A column of a RowDescription.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldDescription<'a> {
    /// The name.
    pub name: &'a [u8],
    /// OID of the table; 0 if the column is not a table column.
    pub table: u32,
    /// Attribute number in that table; 0 if the column is not a table column.
    pub number: i16,
    /// OID of the type.
    pub type_oid: u32,
    /// Size of a value in bytes; negative if it varies.
    pub type_size: i16,
    /// Type modifier, such as the length of a `varchar`.
    pub type_modifier: i32,
    /// Format code: 0 is text, 1 is binary.
    pub format: i16,
}

impl<'a> FieldDescription<'a> {
    fn read(fields: &mut Cursor<'a>) -> Result<Self, DecodeError> {
        Ok(Self {
            name: fields.text()?,
            table: fields.u32()?,
            number: fields.i16()?,
            type_oid: fields.u32()?,
            type_size: fields.i16()?,
            type_modifier: fields.i32()?,
            format: fields.i16()?,
        })
    }
}

/// The body of ParameterDescription: an iterator over type OIDs.
#[derive(Debug, Clone)]
pub struct ParameterDescription<'a> {
    types: &'a [[u8; 4]],
}

impl<'a> ParameterDescription<'a> {
    /// Decodes the body. Postgres describes statements of more than 65535 parameters, which only Bind refuses: the count is
    /// the number of parameters modulo 65536.
    ///
    /// # Errors
    /// The list differs from its count.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let count = fields.u16()?;
        let (types, rest) = body[size_of::<u16>()..].as_chunks();
        if rest.is_empty() && types.len() & usize::from(u16::MAX) == usize::from(count) {
            return Ok(Self { types });
        }
        for _ in 0..count {
            fields.u32()?;
        }
        fields.end()?;
        Ok(Self { types: &types[..count.into()] })
    }
}

impl Iterator for ParameterDescription<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<Self::Item> {
        let (first, rest) = self.types.split_first()?;
        self.types = rest;
        Some(u32::from_be_bytes(*first))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.types.len(), Some(self.types.len()))
    }
}

/// The body of RowDescription: an iterator over columns.
#[derive(Debug, Clone)]
pub struct RowDescription<'a> {
    left: u16,
    fields: Cursor<'a>,
}

impl<'a> RowDescription<'a> {
    /// Decodes the body.
    ///
    /// # Errors
    /// The list differs from its count.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let count = fields.u16()?;
        let columns = Self { left: count, fields };
        for _ in 0..count {
            FieldDescription::read(&mut fields)?;
        }
        fields.end()?;
        Ok(columns)
    }
}

impl<'a> Iterator for RowDescription<'a> {
    type Item = FieldDescription<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        FieldDescription::read(&mut self.fields).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

/// The body of DataRow: an iterator over values; `None` is NULL.
#[derive(Debug, Clone)]
pub struct DataRow<'a> {
    left: u16,
    fields: Cursor<'a>,
}

impl<'a> DataRow<'a> {
    /// Decodes the body.
    ///
    /// # Errors
    /// The list differs from its count, or a value extends beyond the body.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let count = fields.u16()?;
        let values = Self { left: count, fields };
        for _ in 0..count {
            fields.value()?;
        }
        fields.end()?;
        Ok(values)
    }
}

impl<'a> Iterator for DataRow<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.fields.value().ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.into(), Some(self.left.into()))
    }
}

/// The body of NotificationResponse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification<'a> {
    /// Process ID of the notifying server process.
    pub pid: u32,
    /// The channel.
    pub channel: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

impl<'a> Notification<'a> {
    /// Decodes the body.
    ///
    /// # Errors
    /// The body is truncated, a string has no terminator, or bytes follow.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let found = Self { pid: fields.u32()?, channel: fields.text()?, payload: fields.text()? };
        fields.end()?;
        Ok(found)
    }
}
