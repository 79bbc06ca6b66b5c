//! Format of one record of the query log: its keys, the encoder and the decoder.
//!
//! A record is one JSON object on one line. Its keys are in the order of the fields of [`LogRecord`]; unknown values are
//! absent. [`RecordDraft`] encodes a record on the path of a query, into a reused buffer. [`LogRecord`] decodes it.

use std::fmt;

use serde::{Deserialize, Deserializer, de};
use tidegate_sql::trace_parent::TraceParent;

use super::json::{self, JsonKey, numbers};

const SESSION: JsonKey = JsonKey::new("session");
const TRANSACTION: JsonKey = JsonKey::new("transaction");
const SERVER_PID: JsonKey = JsonKey::new("server_pid");
const WAIT_US: JsonKey = JsonKey::new("wait_us");
const SERVER_US: JsonKey = JsonKey::new("server_us");
const TOTAL_US: JsonKey = JsonKey::new("total_us");
const QUERIES: JsonKey = JsonKey::new("queries");
const ROWS: JsonKey = JsonKey::new("rows");
const BYTES_IN: JsonKey = JsonKey::new("bytes_in");
const BYTES_OUT: JsonKey = JsonKey::new("bytes_out");

/// Kind of event that a record describes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordKind {
    /// A simple query (which may contain several statements), an execution of a prepared statement, or a FunctionCall.
    Query,
    /// A transaction with all its queries, with `journal.per = "transaction"`.
    Transaction,
    /// A client logged in.
    Login,
    /// A login was refused.
    LoginFailed,
    /// A client that had logged in disconnected, or was disconnected by the gateway.
    Disconnect,
}

impl RecordKind {
    /// The value of the key `kind`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Transaction => "transaction",
            Self::Login => "login",
            Self::LoginFailed => "login_failed",
            Self::Disconnect => "disconnect",
        }
    }
}

/// End of an event in microseconds since 1970-01-01T00:00:00Z, without leap seconds.
///
/// A record contains it as `2026-03-01T12:00:00.000042Z`: always of this length and in UTC, so that the text sorts by
/// time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RecordTimestamp(u64);

impl RecordTimestamp {
    /// Creates a timestamp from microseconds since 1970.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Parses `2026-03-01T12:00:00.000042Z`: UTC, with up to six digits of a fraction.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('Z')?;
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let (date, clock) = whole.split_once('T')?;
        let [year, month, day] = split_three(date, '-')?;
        let [hour, minute, second] = split_three(clock, ':')?;
        let fits = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
        if !fits || hour > 23 || minute > 59 || second > 60 || fraction.len() > 6 {
            return None;
        }
        let scale = 10_u64.pow(6 - u32::try_from(fraction.len()).ok()?);
        let micros = if fraction.is_empty() { 0 } else { digits(fraction)? * scale };
        let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
        Some(Self(seconds * 1_000_000 + micros))
    }
}

impl fmt::Display for RecordTimestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = Vec::with_capacity(TIMESTAMP_BYTES);
        TimestampEncoder::default().write(&mut out, *self);
        f.write_str(&String::from_utf8_lossy(&out))
    }
}

impl<'de> Deserialize<'de> for RecordTimestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimestampVisitor;
        impl de::Visitor<'_> for TimestampVisitor {
            type Value = RecordTimestamp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as 2026-03-01T12:00:00.000042Z")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RecordTimestamp, E> {
                RecordTimestamp::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(TimestampVisitor)
    }
}

fn digits(text: &str) -> Option<u64> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| text.parse().ok()).flatten()
}

fn split_three(text: &str, separator: char) -> Option<[u64; 3]> {
    let mut parts = text.split(separator).map(digits);
    let split_three = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(split_three)
}

/// Algorithm: `days_from_civil` in Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", for years from 1970.
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468
}

/// Inverse of [`days_since_epoch`]: `civil_from_days` of the same paper.
fn date_of(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

const TIMESTAMP_BYTES: usize = "2026-03-01T12:00:00.000042Z".len();

/// Encodes timestamps. Caches the text of the last second, because the date is the expensive part.
#[derive(Debug)]
pub struct TimestampEncoder {
    second: u64,
    text: [u8; TIMESTAMP_BYTES],
}

impl Default for TimestampEncoder {
    fn default() -> Self {
        Self { second: 0, text: *b"1970-01-01T00:00:00.000000Z" }
    }
}

impl TimestampEncoder {
    /// Appends a timestamp.
    pub fn write(&mut self, out: &mut Vec<u8>, time: RecordTimestamp) {
        let (second, micros) = (time.0 / 1_000_000, time.0 % 1_000_000);
        if second != self.second {
            self.set_second(second);
        }
        json::put_digits(&mut self.text[20..26], micros);
        out.extend_from_slice(&self.text);
    }

    fn set_second(&mut self, second: u64) {
        let (year, month, day) = date_of(second / 86_400);
        let second_of_day = second % 86_400;
        let parts = [
            (0, 4, year),
            (5, 7, month),
            (8, 10, day),
            (11, 13, second_of_day / 3600),
            (14, 16, second_of_day / 60 % 60),
            (17, 19, second_of_day % 60),
        ];
        for (from, to, number) in parts {
            json::put_digits(&mut self.text[from..to], number);
        }
        self.second = second;
    }
}

/// A decoded record. Unknown keys are ignored, so that records of later versions can be read.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct LogRecord {
    /// End of the query; it started `total_us` earlier.
    pub time: RecordTimestamp,
    /// Kind of event.
    pub kind: RecordKind,
    /// Address of the client: `10.1.2.3:4567`, or `unix`.
    pub client: Option<String>,
    /// User of the client.
    pub user: Option<String>,
    /// Database, as the client names it.
    pub database: Option<String>,
    /// `application_name` of the client.
    pub application: Option<String>,
    /// Number of the session, unique until the gateway restarts; the `id` of `SHOW CLIENTS`.
    pub session: Option<u64>,
    /// Number of the transaction in its session, from 1.
    pub transaction: Option<u64>,
    /// Text of the statement, or its text with literals as `?`, as configured. The statements of a transaction are joined
    /// by `; `. A statement that was truncated to `journal.statement_bytes` ends with `…`.
    pub statement: Option<String>,
    /// 16 hexadecimal digits, equal for statements that differ only in literals, whitespace and comments.
    pub fingerprint: Option<String>,
    /// Name of the prepared statement.
    pub prepared: Option<String>,
    /// Bound parameters in order; `None` is NULL. A binary value is `\x` and hexadecimal digits.
    pub parameters: Option<Vec<Option<String>>>,
    /// Position in a distributed trace that the client sent with the statement, as in W3C's header of that name.
    pub traceparent: Option<String>,
    /// Address of the server: `host:port`.
    pub server: Option<String>,
    /// Process ID of the server connection.
    pub server_pid: Option<u32>,
    /// Wait for a server connection, in microseconds; for a transaction, the wait of its first query.
    pub wait_us: Option<u64>,
    /// Execution time on the server, in microseconds.
    pub server_us: Option<u64>,
    /// Time from the arrival of the client's message to the end of the reply, in microseconds. For a disconnect: the
    /// duration of the session.
    pub total_us: Option<u64>,
    /// Number of queries in a transaction.
    pub queries: Option<u64>,
    /// Number of rows returned or changed, from the command tags.
    pub rows: Option<u64>,
    /// Bytes of the client's messages.
    pub bytes_in: Option<u64>,
    /// Bytes of the reply.
    pub bytes_out: Option<u64>,
    /// Command tags such as `SELECT 1`, joined by `; `.
    pub tag: Option<String>,
    /// SQLSTATE of the error.
    pub sqlstate: Option<String>,
    /// Text of the error; quoted values are replaced unless parameters are recorded.
    pub message: Option<String>,
    /// Why the client disconnected, or why the query was aborted.
    pub reason: Option<String>,
}

impl LogRecord {
    /// Decodes the payload of a record.
    ///
    /// # Errors
    /// If the payload is not a record of the query log, such as a gap in the JSON format (`{"gap":...}`).
    pub fn from_json(payload: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(payload)
    }
}

/// A record to encode. Texts are bytes as received; empty ones are omitted.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordDraft<'a> {
    /// See [`LogRecord::time`].
    pub time: RecordTimestamp,
    /// See [`LogRecord::kind`].
    pub kind: Option<RecordKind>,
    /// Output of [`write_session_fields`]; constant for a session.
    pub session_fields: &'a [u8],
    /// See [`LogRecord::transaction`].
    pub transaction: Option<u64>,
    /// See [`LogRecord::statement`].
    pub statement: &'a [u8],
    /// Whether the statement was truncated.
    pub is_truncated: bool,
    /// See [`LogRecord::fingerprint`].
    pub fingerprint: Option<u64>,
    /// See [`LogRecord::prepared`].
    pub prepared: &'a [u8],
    /// A JSON array, or empty.
    pub parameters: &'a [u8],
    /// See [`LogRecord::traceparent`].
    pub traceparent: Option<TraceParent>,
    /// Output of [`write_server_fields`].
    pub server: &'a [u8],
    /// See [`LogRecord::wait_us`].
    pub wait_us: Option<u64>,
    /// See [`LogRecord::server_us`].
    pub server_us: Option<u64>,
    /// See [`LogRecord::total_us`].
    pub total_us: Option<u64>,
    /// See [`LogRecord::queries`].
    pub queries: Option<u64>,
    /// See [`LogRecord::rows`].
    pub rows: Option<u64>,
    /// See [`LogRecord::bytes_in`].
    pub bytes_in: Option<u64>,
    /// See [`LogRecord::bytes_out`].
    pub bytes_out: Option<u64>,
    /// See [`LogRecord::tag`].
    pub tag: &'a [u8],
    /// See [`LogRecord::sqlstate`].
    pub sqlstate: &'a [u8],
    /// See [`LogRecord::message`].
    pub message: &'a [u8],
    /// See [`LogRecord::reason`].
    pub reason: &'a [u8],
}

/// Typical size of a record without session fields and statement.
const RECORD_BYTES_TYPICAL: usize = 384;

impl RecordDraft<'_> {
    /// Appends the record, without a line break.
    pub fn write(&self, timestamps: &mut TimestampEncoder, out: &mut Vec<u8>) {
        out.reserve(RECORD_BYTES_TYPICAL + self.session_fields.len() + self.statement.len());
        out.extend_from_slice(b"{\"time\":\"");
        timestamps.write(out, self.time);
        out.extend_from_slice(b"\",\"kind\":\"");
        out.extend_from_slice(self.kind.unwrap_or(RecordKind::Query).name().as_bytes());
        out.push(b'"');
        out.extend_from_slice(self.session_fields);
        numbers(out, &[(TRANSACTION, self.transaction)]);
        self.write_statement(out);
        if let Some(parent) = &self.traceparent {
            text(out, b",\"traceparent\":", parent.to_string().as_bytes());
        }
        out.extend_from_slice(self.server);
        let all = [
            (WAIT_US, self.wait_us),
            (SERVER_US, self.server_us),
            (TOTAL_US, self.total_us),
            (QUERIES, self.queries),
            (ROWS, self.rows),
            (BYTES_IN, self.bytes_in),
            (BYTES_OUT, self.bytes_out),
        ];
        numbers(out, &all);
        text(out, b",\"tag\":", self.tag);
        text(out, b",\"sqlstate\":", self.sqlstate);
        text(out, b",\"message\":", self.message);
        text(out, b",\"reason\":", self.reason);
        out.push(b'}');
    }

    fn write_statement(&self, out: &mut Vec<u8>) {
        if !self.statement.is_empty() {
            out.extend_from_slice(b",\"statement\":\"");
            json::string_body(out, self.statement);
            out.extend_from_slice(if self.is_truncated { "…\"".as_bytes() } else { b"\"" });
        }
        if let Some(fingerprint) = self.fingerprint {
            out.extend_from_slice(b",\"fingerprint\":");
            json::hex16(out, fingerprint);
        }
        text(out, b",\"prepared\":", self.prepared);
        if !self.parameters.is_empty() {
            out.extend_from_slice(b",\"parameters\":");
            out.extend_from_slice(self.parameters);
        }
    }
}

/// Client and session of a record, for [`write_session_fields`].
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionFields<'a> {
    /// See [`LogRecord::client`].
    pub client: &'a [u8],
    /// See [`LogRecord::user`].
    pub user: &'a [u8],
    /// See [`LogRecord::database`].
    pub database: &'a [u8],
    /// See [`LogRecord::application`].
    pub application: &'a [u8],
    /// See [`LogRecord::session`].
    pub session: Option<u64>,
}

/// Appends the fields that all records of a session share, for [`RecordDraft::session_fields`].
pub fn write_session_fields(session_fields: &SessionFields<'_>, out: &mut Vec<u8>) {
    text(out, b",\"client\":", session_fields.client);
    text(out, b",\"user\":", session_fields.user);
    text(out, b",\"database\":", session_fields.database);
    text(out, b",\"application\":", session_fields.application);
    numbers(out, &[(SESSION, session_fields.session)]);
}

/// Appends the fields that all records of a server connection share, for [`RecordDraft::server`].
pub fn write_server_fields(address: &[u8], pid: u64, out: &mut Vec<u8>) {
    text(out, b",\"server\":", address);
    numbers(out, &[(SERVER_PID, Some(pid))]);
}

/// A value bound to a parameter of a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BoundParameter<'a> {
    /// NULL.
    Null,
    /// A value in Postgres' text format.
    Text(&'a [u8]),
    /// A value in the binary format of its type, which the gateway does not know.
    Binary(&'a [u8]),
    /// A value that must not be recorded.
    Redacted,
}

/// Appends an element of [`RecordDraft::parameters`].
pub fn write_parameter(parameter: BoundParameter<'_>, out: &mut Vec<u8>) {
    match parameter {
        BoundParameter::Null => out.extend_from_slice(b"null"),
        BoundParameter::Text(bytes) => json::string(out, bytes),
        BoundParameter::Binary(bytes) => {
            out.extend_from_slice(br#""\\x"#);
            json::hex(out, bytes);
            out.push(b'"');
        }
        BoundParameter::Redacted => out.extend_from_slice(br#""***""#),
    }
}

#[inline]
fn text(out: &mut Vec<u8>, key: &[u8], text: &[u8]) {
    if !text.is_empty() {
        out.extend_from_slice(key);
        json::string(out, text);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(draft: &RecordDraft<'_>) -> String {
        let mut out = Vec::new();
        draft.write(&mut TimestampEncoder::default(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_record_is_encoded_as_documented() {
        let mut session_fields = Vec::new();
        let session = SessionFields {
            client: b"10.1.2.3:4567",
            user: b"ann",
            database: b"shop",
            application: b"psql",
            session: Some(7),
        };
        write_session_fields(&session, &mut session_fields);
        let mut server = Vec::new();
        write_server_fields(b"db:5432", 99, &mut server);
        let draft = RecordDraft {
            time: RecordTimestamp::parse("2026-03-01T12:00:00.000042Z").unwrap(),
            kind: Some(RecordKind::Query),
            session_fields: &session_fields,
            transaction: Some(3),
            statement: b"select \"a\"\nfrom b",
            fingerprint: Some(0xfeed),
            parameters: br#"["1",null]"#,
            server: &server,
            total_us: Some(12),
            rows: Some(1),
            tag: b"SELECT 1",
            ..RecordDraft::default()
        };
        let expected = concat!(
            r#"{"time":"2026-03-01T12:00:00.000042Z","kind":"query","client":"10.1.2.3:4567","user":"ann","database":"shop","#,
            r#""application":"psql","session":7,"transaction":3,"statement":"select \"a\"\nfrom b","#,
            r#""fingerprint":"000000000000feed","#,
            r#""parameters":["1",null],"server":"db:5432","server_pid":99,"total_us":12,"rows":1,"tag":"SELECT 1"}"#,
        );
        assert_eq!(written(&draft), expected);
        let record = LogRecord::from_json(expected.as_bytes()).unwrap();
        assert_eq!(record.parameters, Some(vec![Some("1".to_owned()), None]));
        assert_eq!((record.session, record.sqlstate, record.kind), (Some(7), None, RecordKind::Query));
    }

    #[test]
    fn parameters_of_all_formats_are_decoded() {
        let mut out = b"[".to_vec();
        for parameter in [
            BoundParameter::Null,
            BoundParameter::Text(b"a\"b"),
            BoundParameter::Binary(&[0, 255]),
            BoundParameter::Redacted,
        ] {
            write_parameter(parameter, &mut out);
            out.push(b',');
        }
        out.pop();
        out.push(b']');
        let read: Vec<Option<String>> = serde_json::from_slice(&out).unwrap();
        assert_eq!(read, [None, Some("a\"b".to_owned()), Some("\\x00ff".to_owned()), Some("***".to_owned())]);
    }

    #[test]
    fn unknown_keys_are_ignored() {
        let line = br#"{"time":"2026-03-01T12:00:00Z","kind":"login_failed","colour":"blue"}"#;
        assert_eq!(LogRecord::from_json(line).unwrap().kind, RecordKind::LoginFailed);
        assert!(LogRecord::from_json(br#"{"gap":{"records":3}}"#).is_err());
    }

    #[test]
    fn an_invalid_timestamp_is_refused() {
        for text in [
            "",
            "Z",
            "2026-03-01",
            "2026-13-01T00:00:00Z",
            "2026-03-01T24:00:00Z",
            "2026-03-01T12:00:00.1234567Z",
            "2026-03-01T12:00:00.+1Z",
        ] {
            assert_eq!(RecordTimestamp::parse(text), None, "{text}");
        }
    }

    const YEAR_10_000: u64 = 253_402_300_800_000_000;

    proptest! {
        #[test]
        fn a_timestamp_is_parsed_and_sorts_as_text(one in 0..YEAR_10_000, other in 0..YEAR_10_000) {
            let (one, other) = (RecordTimestamp::from_micros(one), RecordTimestamp::from_micros(other));
            prop_assert_eq!(RecordTimestamp::parse(&one.to_string()), Some(one));
            prop_assert_eq!(one.to_string().cmp(&other.to_string()), one.cmp(&other));
        }
    }
}
