//! A message of a server, neither validated nor interpreted.

use std::fmt;

/// A backend message: its type byte and its body without the length.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The type byte, such as `b'Z'`.
    pub tag: u8,
    /// Everything after the length word.
    pub body: Vec<u8>,
}

/// The fields of an ErrorResponse or NoticeResponse that tests use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorFields {
    /// `ERROR`, `FATAL`, `PANIC`, `NOTICE`, … The untranslated field if present, else the translated one.
    pub severity: String,
    /// The SQLSTATE; empty if the server sent none.
    pub code: String,
    /// The primary message.
    pub message: String,
    /// The detail, if any.
    pub detail: String,
    /// The hint, if any.
    pub hint: String,
}

impl Message {
    /// The text of the body up to the first zero byte.
    pub fn text(&self) -> String {
        c_string(&self.body).0
    }

    /// The transaction status of a ReadyForQuery.
    ///
    /// # Panics
    /// If this is not a ReadyForQuery.
    pub fn status(&self) -> char {
        assert_eq!(self.tag, b'Z', "not a ReadyForQuery: {self:?}");
        char::from(self.body[0])
    }

    /// The values of a DataRow.
    ///
    /// # Panics
    /// If this is not a DataRow.
    pub fn values(&self) -> Vec<Option<Vec<u8>>> {
        assert_eq!(self.tag, b'D', "not a DataRow: {self:?}");
        let mut rest = &self.body[2..];
        let count = u16::from_be_bytes([self.body[0], self.body[1]]);
        (0..count).map(|_| take_value(&mut rest)).collect()
    }

    /// The values of a DataRow as text; NULL is `\N`.
    pub fn texts(&self) -> Vec<String> {
        let text = |value: Option<Vec<u8>>| match value {
            None => "\\N".to_owned(),
            Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        };
        self.values().into_iter().map(text).collect()
    }

    /// The column names of a RowDescription.
    ///
    /// # Panics
    /// If this is not a RowDescription.
    pub fn columns(&self) -> Vec<String> {
        self.column_types().into_iter().map(|(name, _)| name).collect()
    }

    /// The column names and type OIDs of a RowDescription.
    ///
    /// # Panics
    /// If this is not a RowDescription.
    pub fn column_types(&self) -> Vec<(String, u32)> {
        assert_eq!(self.tag, b'T', "not a RowDescription: {self:?}");
        let count = u16::from_be_bytes([self.body[0], self.body[1]]);
        let mut at = 2;
        let mut columns = Vec::new();
        for _ in 0..count {
            let (name, used) = c_string(&self.body[at..]);
            columns.push((name, word(&self.body[at + used + 6..])));
            at += used + 18;
        }
        columns
    }

    /// The type OIDs of a ParameterDescription.
    ///
    /// # Panics
    /// If this is not a ParameterDescription.
    pub fn parameter_types(&self) -> Vec<u32> {
        assert_eq!(self.tag, b't', "not a ParameterDescription: {self:?}");
        self.body[2..].chunks(4).map(word).collect()
    }

    /// Name and value of a ParameterStatus.
    pub fn parameter(&self) -> (String, String) {
        let (name, used) = c_string(&self.body);
        (name, c_string(&self.body[used..]).0)
    }

    /// The fields of an ErrorResponse or NoticeResponse.
    pub fn error(&self) -> ErrorFields {
        let mut fields = ErrorFields::default();
        let mut rest = &self.body[..];
        while let Some((&key, tail)) = rest.split_first().filter(|(key, _)| **key != 0) {
            let (value, used) = c_string(tail);
            rest = &tail[used..];
            match key {
                b'V' => fields.severity = value,
                b'S' if fields.severity.is_empty() => fields.severity = value,
                b'C' => fields.code = value,
                b'M' => fields.message = value,
                b'D' => fields.detail = value,
                b'H' => fields.hint = value,
                _ => {}
            }
        }
        fields
    }

    /// Process id, channel and payload of a NotificationResponse.
    pub fn notification(&self) -> (u32, String, String) {
        let (channel, used) = c_string(&self.body[4..]);
        (word(&self.body), channel, c_string(&self.body[4 + used..]).0)
    }

    /// The detail that a pattern compares: see [`crate::RawClient::expect`].
    pub(crate) fn detail(&self) -> String {
        match self.tag {
            b'Z' => self.status().to_string(),
            b'E' | b'N' => self.error().code,
            b'C' => self.text().replace(' ', "_"),
            b'D' => self.texts().join(",").replace(' ', "_"),
            b'S' => {
                let (name, value) = self.parameter();
                format!("{name}={value}").replace(' ', "_")
            }
            b'T' => self.columns().join(","),
            b'A' => self.notification().1,
            b'd' => String::from_utf8_lossy(&self.body).trim_end().replace([' ', '\t'], "_"),
            _ => String::new(),
        }
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(self.tag))?;
        match self.tag {
            b'E' | b'N' => {
                let fields = self.error();
                write!(f, ":{} {} \"{}\"", fields.code, fields.severity, fields.message)
            }
            b'K' | b'R' | b'G' | b'H' | b'W' | b'v' => write!(f, "({} bytes)", self.body.len()),
            _ => {
                let detail = self.detail();
                let shown: String = detail.chars().take(60).collect();
                let dots = if shown.len() < detail.len() { "..." } else { "" };
                write!(f, ":{shown}{dots}")
            }
        }
    }
}

fn c_string(bytes: &[u8]) -> (String, usize) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (String::from_utf8_lossy(&bytes[..end]).into_owned(), (end + 1).min(bytes.len()))
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn take_value(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let length = rest.first_chunk().map_or(-1, |length| i32::from_be_bytes(*length));
    *rest = &rest[4.min(rest.len())..];
    let length = usize::try_from(length).ok()?;
    // A length beyond the end of the row is cut: the test prints what is there.
    let (value, tail) = rest.split_at(length.min(rest.len()));
    *rest = tail;
    Some(value.to_vec())
}
