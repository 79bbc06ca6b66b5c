//! Client messages as bytes, several in one write.

/// A sequence of frontend messages that is sent in one write.
///
/// The encoders follow the documentation of the protocol and do not use the gateway's library, so that an error there
/// is not repeated here.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// An empty sequence.
    pub fn new() -> Self {
        Self::default()
    }

    /// The bytes so far.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Any message: type byte and body.
    pub fn message(mut self, tag: u8, body: &[u8]) -> Self {
        let length = u32::try_from(body.len() + 4).expect("a test's message fits in 4 GB");
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&length.to_be_bytes());
        self.bytes.extend_from_slice(body);
        self
    }

    /// Any bytes, also invalid ones.
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The messages of another sequence.
    pub fn then(self, other: &Self) -> Self {
        self.raw(&other.bytes)
    }

    /// Query.
    pub fn query(self, sql: &str) -> Self {
        self.message(b'Q', &c_strings(&[sql]))
    }

    /// Parse without parameter types.
    pub fn parse(self, name: &str, sql: &str) -> Self {
        self.parse_typed(name, sql, &[])
    }

    /// Parse with parameter types.
    pub fn parse_typed(self, name: &str, sql: &str, types: &[u32]) -> Self {
        let mut body = c_strings(&[name, sql]);
        body.extend(count(types.len()));
        body.extend(types.iter().flat_map(|oid| oid.to_be_bytes()));
        self.message(b'P', &body)
    }

    /// Bind of text values to a portal; results as text.
    pub fn bind_portal(self, portal: &str, statement: &str, values: &[&str]) -> Self {
        let mut body = c_strings(&[portal, statement]);
        body.extend(count(0));
        body.extend(count(values.len()));
        for value in values {
            body.extend(u32::try_from(value.len()).expect("a test's value fits").to_be_bytes());
            body.extend_from_slice(value.as_bytes());
        }
        body.extend(count(0));
        self.message(b'B', &body)
    }

    /// Bind to the unnamed portal.
    pub fn bind(self, statement: &str, values: &[&str]) -> Self {
        self.bind_portal("", statement, values)
    }

    /// Describe of a statement.
    pub fn describe_statement(self, name: &str) -> Self {
        self.message(b'D', &prefixed(b'S', name))
    }

    /// Describe of a portal.
    pub fn describe_portal(self, name: &str) -> Self {
        self.message(b'D', &prefixed(b'P', name))
    }

    /// Execute of the unnamed portal, all rows.
    pub fn execute(self) -> Self {
        self.execute_portal("", 0)
    }

    /// Execute of a portal with a row limit; 0 is no limit.
    pub fn execute_portal(self, portal: &str, rows: u32) -> Self {
        let mut body = c_strings(&[portal]);
        body.extend(rows.to_be_bytes());
        self.message(b'E', &body)
    }

    /// Bind and Execute of a statement without values.
    pub fn run(self, statement: &str) -> Self {
        self.bind(statement, &[]).execute()
    }

    /// Parse, Bind and Execute of the unnamed statement.
    pub fn once(self, sql: &str) -> Self {
        self.parse("", sql).run("")
    }

    /// Close of a statement.
    pub fn close_statement(self, name: &str) -> Self {
        self.message(b'C', &prefixed(b'S', name))
    }

    /// Close of a portal.
    pub fn close_portal(self, name: &str) -> Self {
        self.message(b'C', &prefixed(b'P', name))
    }

    /// Sync.
    pub fn sync(self) -> Self {
        self.message(b'S', &[])
    }

    /// Flush.
    pub fn flush(self) -> Self {
        self.message(b'H', &[])
    }

    /// CopyData.
    pub fn copy_data(self, data: &[u8]) -> Self {
        self.message(b'd', data)
    }

    /// CopyDone.
    pub fn copy_done(self) -> Self {
        self.message(b'c', &[])
    }

    /// CopyFail.
    pub fn copy_fail(self, reason: &str) -> Self {
        self.message(b'f', &c_strings(&[reason]))
    }

    /// Terminate.
    pub fn terminate(self) -> Self {
        self.message(b'X', &[])
    }
}

pub(crate) fn c_strings(texts: &[&str]) -> Vec<u8> {
    texts.iter().flat_map(|text| text.bytes().chain([0])).collect()
}

fn prefixed(kind: u8, name: &str) -> Vec<u8> {
    let mut body = vec![kind];
    body.extend(c_strings(&[name]));
    body
}

fn count(length: usize) -> [u8; 2] {
    u16::try_from(length).expect("a test's list is short").to_be_bytes()
}
