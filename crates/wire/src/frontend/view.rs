//! Bodies of client messages, borrowed.

use crate::cursor::Cursor;
use crate::error::{DecodeError, DecodeErrorKind};

/// The body of Query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query<'a> {
    /// The SQL, without its zero byte.
    pub text: &'a [u8],
}

impl<'a> Query<'a> {
    /// Decodes the body.
    ///
    /// # Errors
    /// The text has no terminator, or bytes follow it.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let text = fields.text()?;
        fields.end()?;
        Ok(Self { text })
    }
}

/// The body of Parse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parse<'a> {
    /// Name of the statement, empty for the unnamed one.
    pub name: &'a [u8],
    /// The SQL.
    pub query: &'a [u8],
    /// Type OIDs of the parameters as sent, four bytes each; 0 leaves a type unspecified.
    pub param_types: &'a [u8],
}

impl<'a> Parse<'a> {
    /// Decodes the body.
    ///
    /// # Errors
    /// A string has no terminator, or the list of types differs from its count.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let (name, query) = (fields.text()?, fields.text()?);
        let count = usize::from(fields.u16()?);
        let param_types = fields.take(count * 4)?;
        fields.end()?;
        Ok(Self { name, query, param_types })
    }

    /// The type OIDs as numbers.
    #[must_use]
    pub fn types(&self) -> impl ExactSizeIterator<Item = u32> + use<'a> {
        self.param_types.as_chunks().0.iter().map(|oid| u32::from_be_bytes(*oid))
    }
}

/// The body of Bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bind<'a> {
    /// Name of the portal, empty for the unnamed one.
    pub portal: &'a [u8],
    /// Name of the statement, empty for the unnamed one.
    pub statement: &'a [u8],
    /// The unchecked rest: formats of the values, the values, formats of the results.
    pub tail: &'a [u8],
}

impl<'a> Bind<'a> {
    /// Decodes the names at the cost of two searches for a zero byte. [`Bind::values`] checks the rest.
    ///
    /// # Errors
    /// A name has no terminator.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        Ok(Self { portal: fields.text()?, statement: fields.text()?, tail: fields.rest() })
    }

    /// Offset of the tail in the body.
    #[must_use]
    pub const fn rest(&self) -> usize {
        self.portal.len() + self.statement.len() + 2
    }

    /// Checks the whole tail and returns the values.
    ///
    /// # Errors
    /// A list differs from its count. The offset counts from the start of the body.
    pub fn values(&self) -> Result<BindValues<'a>, DecodeError> {
        self.read_values().map_err(|error| DecodeError { offset: error.offset + self.rest(), ..error })
    }

    fn read_values(&self) -> Result<BindValues<'a>, DecodeError> {
        let mut fields = Cursor::new(self.tail);
        let formats = read_formats(&mut fields)?;
        let count = fields.u16()?;
        let values = fields;
        for _ in 0..count {
            fields.value()?;
        }
        let results = read_formats(&mut fields)?;
        fields.end()?;
        Ok(BindValues { formats, results, left: count, values })
    }
}

fn read_formats<'a>(fields: &mut Cursor<'a>) -> Result<&'a [u8], DecodeError> {
    let count = usize::from(fields.u16()?);
    fields.take(count * 2)
}

/// Iterator over the values of a [`Bind`]; `None` is NULL.
#[derive(Debug, Clone)]
pub struct BindValues<'a> {
    formats: &'a [u8],
    results: &'a [u8],
    left: u16,
    values: Cursor<'a>,
}

impl BindValues<'_> {
    /// Format codes of the values: none (all text), one for all, or one each. 0 is text, 1 binary.
    pub fn formats(&self) -> impl ExactSizeIterator<Item = u16> {
        self.formats.as_chunks().0.iter().map(|code| u16::from_be_bytes(*code))
    }

    /// Format codes of the result columns, by the same rule.
    pub fn result_formats(&self) -> impl ExactSizeIterator<Item = u16> {
        self.results.as_chunks().0.iter().map(|code| u16::from_be_bytes(*code))
    }
}

impl<'a> Iterator for BindValues<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        self.values.value().ok()
    }
}

/// The kind of object that Describe or Close names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ObjectKind {
    /// A prepared statement.
    Statement = b'S',
    /// A portal.
    Portal = b'P',
}

/// The body of Describe and of Close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectName<'a> {
    /// The kind of object.
    pub kind: ObjectKind,
    /// Name of the object, empty for the unnamed one.
    pub name: &'a [u8],
}

impl<'a> ObjectName<'a> {
    /// Decodes the body of a Describe or Close.
    ///
    /// # Errors
    /// The kind is neither `S` nor `P`, the name has no terminator, or bytes follow it.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let kind = match fields.u8()? {
            b'S' => ObjectKind::Statement,
            b'P' => ObjectKind::Portal,
            other => {
                return Err(DecodeError::new(0, DecodeErrorKind::Value { field: "object kind", value: other.into() }));
            }
        };
        let name = fields.text()?;
        fields.end()?;
        Ok(Self { kind, name })
    }
}

/// The body of Execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Execute<'a> {
    /// Name of the portal, empty for the unnamed one.
    pub portal: &'a [u8],
    /// Row limit; 0 or less is no limit.
    pub max_rows: i32,
}

impl<'a> Execute<'a> {
    /// Decodes the body.
    ///
    /// # Errors
    /// The name has no terminator, or not exactly four bytes follow it.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let (portal, max_rows) = (fields.text()?, fields.i32()?);
        fields.end()?;
        Ok(Self { portal, max_rows })
    }
}

/// The body of SASLInitialResponse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaslInitial<'a> {
    /// The chosen mechanism.
    pub mechanism: &'a [u8],
    /// The first message of the client, if any.
    pub data: Option<&'a [u8]>,
}

impl<'a> SaslInitial<'a> {
    /// Decodes the body. The body of a later SASLResponse is the SASL message itself.
    ///
    /// # Errors
    /// The name has no terminator, or the length differs from that of the rest.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut fields = Cursor::new(body);
        let (mechanism, data) = (fields.text()?, fields.value()?);
        fields.end()?;
        Ok(Self { mechanism, data })
    }
}

/// Decodes the body of a PasswordMessage that responds to a request for a cleartext or md5 password.
///
/// # Errors
/// The password has no terminator, or bytes follow it.
pub fn password_text(body: &[u8]) -> Result<&[u8], DecodeError> {
    Query::decode(body).map(|message| message.text)
}
