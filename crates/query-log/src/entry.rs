//! One record of the query journal: which keys it has, how it is written, and how it is read back.
//!
//! A record is one JSON object on one line, its keys in the order of [`Entry`]'s fields; what is not known is absent.
//! [`Draft`] writes it on the path of a query, into a buffer that is used again; [`Entry`] reads it, off that path.

use std::fmt;

use serde::{Deserialize, Deserializer, de};

use super::json::{self, Key, numbers};

const SESSION: Key = Key::new("session");
const TRANSACTION: Key = Key::new("transaction");
const SERVER_PID: Key = Key::new("server_pid");
const WAIT_US: Key = Key::new("wait_us");
const SERVER_US: Key = Key::new("server_us");
const TOTAL_US: Key = Key::new("total_us");
const QUERIES: Key = Key::new("queries");
const ROWS: Key = Key::new("rows");
const BYTES_IN: Key = Key::new("bytes_in");
const BYTES_OUT: Key = Key::new("bytes_out");

/// What a record tells of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A query: a simple one (which may have several statements), an execution of a prepared one, or a call of a function.
    Query,
    /// A transaction with all its queries, where the journal is kept per transaction.
    Transaction,
    /// A client has logged in.
    Login,
    /// A client was refused.
    LoginFailed,
    /// A client that had logged in has left, or was sent away.
    Disconnect,
}

impl Kind {
    /// The word in the record.
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

/// When something ended: microseconds since 1970-01-01T00:00:00Z, without leap seconds.
///
/// In a record it stands as `2026-03-01T12:00:00.000042Z`, always of this length and in UTC, so that records sort by it as
/// text. The date is worked out once per second, the rest is six digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(u64);

impl Moment {
    /// From microseconds since 1970.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970.
    #[must_use]
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Reads `2026-03-01T12:00:00.000042Z`: UTC, with no or up to six digits of the second's fraction.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_suffix('Z')?;
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let (date, clock) = whole.split_once('T')?;
        let [year, month, day] = three(date, '-')?;
        let [hour, minute, second] = three(clock, ':')?;
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

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = Vec::with_capacity(LENGTH);
        Calendar::default().write(&mut out, *self);
        f.write_str(&String::from_utf8_lossy(&out))
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Moment;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as 2026-03-01T12:00:00.000042Z")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Moment, E> {
                Moment::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

fn digits(text: &str) -> Option<u64> {
    let all_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| text.parse().ok()).flatten()
}

fn three(text: &str, separator: char) -> Option<[u64; 3]> {
    let mut parts = text.split(separator).map(digits);
    let three = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(three)
}

/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`, for years from 1970.
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468
}

/// The inverse, `civil_from_days`.
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

const LENGTH: usize = "2026-03-01T12:00:00.000042Z".len();

/// Writes times, and keeps the text of the second that it wrote last.
#[derive(Debug)]
pub struct Calendar {
    second: u64,
    text: [u8; LENGTH],
}

impl Default for Calendar {
    fn default() -> Self {
        Self { second: 0, text: *b"1970-01-01T00:00:00.000000Z" }
    }
}

impl Calendar {
    /// Appends a time.
    pub fn write(&mut self, out: &mut Vec<u8>, time: Moment) {
        let (second, micros) = (time.0 / 1_000_000, time.0 % 1_000_000);
        if second != self.second {
            self.turn_to(second);
        }
        json::put(&mut self.text[20..26], micros);
        out.extend_from_slice(&self.text);
    }

    fn turn_to(&mut self, second: u64) {
        let (year, month, day) = date_of(second / 86_400);
        let of_day = second % 86_400;
        let places = [
            (0, 4, year),
            (5, 7, month),
            (8, 10, day),
            (11, 13, of_day / 3600),
            (14, 16, of_day / 60 % 60),
            (17, 19, of_day % 60),
        ];
        for (from, to, number) in places {
            json::put(&mut self.text[from..to], number);
        }
        self.second = second;
    }
}

/// One record, read back. A key that this version does not know is passed over.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct Entry {
    /// When it ended; it began `total_us` before.
    pub time: Moment,
    /// What it tells of.
    pub kind: Kind,
    /// Where the client comes from: `10.1.2.3:4567`, or `unix`.
    pub client: Option<String>,
    /// The client's user.
    pub user: Option<String>,
    /// The database, as the client names it.
    pub database: Option<String>,
    /// The client's `application_name`.
    pub application: Option<String>,
    /// Tells the client's session from all others since the gateway was started; the `id` of `SHOW CLIENTS`.
    pub session: Option<u64>,
    /// Which transaction of its session, from 1.
    pub transaction: Option<u64>,
    /// The statement: its text, or its text with literals as `?`, as configured. Statements of a transaction are joined
    /// by `; `. One that was cut to `journal.statement_bytes` ends with `…`.
    pub statement: Option<String>,
    /// 16 hexadecimal digits, equal for statements that differ in literals, blanks and comments only.
    pub fingerprint: Option<String>,
    /// The client's name for a prepared statement.
    pub prepared: Option<String>,
    /// What was bound, in order; `None` is NULL. Binary values are `\x` and hexadecimal digits.
    pub parameters: Option<Vec<Option<String>>>,
    /// Which server: `host:port`.
    pub server: Option<String>,
    /// The process there.
    pub server_pid: Option<u32>,
    /// How long the client waited for a server, in microseconds; of the first query of a transaction.
    pub wait_us: Option<u64>,
    /// How long the server took, in microseconds.
    pub server_us: Option<u64>,
    /// From the arrival of the client's message to the end of the reply, in microseconds. Of a disconnect: how long the
    /// session lasted.
    pub total_us: Option<u64>,
    /// How many queries a transaction had.
    pub queries: Option<u64>,
    /// Rows given back or changed, as the command tags count them.
    pub rows: Option<u64>,
    /// Bytes of the client's messages.
    pub bytes_in: Option<u64>,
    /// Bytes of the reply.
    pub bytes_out: Option<u64>,
    /// The command tags, such as `SELECT 1`, joined by `; ` if there are several.
    pub tag: Option<String>,
    /// The error's SQLSTATE.
    pub sqlstate: Option<String>,
    /// The error's text; without the values it quotes, where parameters are not written down.
    pub message: Option<String>,
    /// Why a client left, or why a query has no end.
    pub reason: Option<String>,
}

impl Entry {
    /// Reads a record's payload.
    ///
    /// # Errors
    /// When it is no record of the query journal, such as a gap in the JSON format (`{"gap":...}`).
    pub fn from_json(payload: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(payload)
    }
}

/// One record, to be written. Texts are bytes as they came over the wire; empty ones are left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Draft<'a> {
    /// See [`Entry::time`].
    pub time: Moment,
    /// See [`Entry::kind`].
    pub kind: Option<Kind>,
    /// What [`write_who`] made of the client: it stays the same for a session.
    pub who: &'a [u8],
    /// See [`Entry::transaction`].
    pub transaction: Option<u64>,
    /// See [`Entry::statement`].
    pub statement: &'a [u8],
    /// The statement was cut.
    pub is_cut: bool,
    /// See [`Entry::fingerprint`].
    pub fingerprint: Option<u64>,
    /// See [`Entry::prepared`].
    pub prepared: &'a [u8],
    /// A JSON array, or nothing.
    pub parameters: &'a [u8],
    /// What [`write_server`] made of the server.
    pub server: &'a [u8],
    /// See [`Entry::wait_us`].
    pub wait_us: Option<u64>,
    /// See [`Entry::server_us`].
    pub server_us: Option<u64>,
    /// See [`Entry::total_us`].
    pub total_us: Option<u64>,
    /// See [`Entry::queries`].
    pub queries: Option<u64>,
    /// See [`Entry::rows`].
    pub rows: Option<u64>,
    /// See [`Entry::bytes_in`].
    pub bytes_in: Option<u64>,
    /// See [`Entry::bytes_out`].
    pub bytes_out: Option<u64>,
    /// See [`Entry::tag`].
    pub tag: &'a [u8],
    /// See [`Entry::sqlstate`].
    pub sqlstate: &'a [u8],
    /// See [`Entry::message`].
    pub message: &'a [u8],
    /// See [`Entry::reason`].
    pub reason: &'a [u8],
}

/// What a record takes besides who and what, mostly.
const LENGTH_USUAL: usize = 384;

impl Draft<'_> {
    /// Appends the record, without a line break.
    pub fn write(&self, calendar: &mut Calendar, out: &mut Vec<u8>) {
        out.reserve(LENGTH_USUAL + self.who.len() + self.statement.len());
        out.extend_from_slice(b"{\"time\":\"");
        calendar.write(out, self.time);
        out.extend_from_slice(b"\",\"kind\":\"");
        out.extend_from_slice(self.kind.unwrap_or(Kind::Query).name().as_bytes());
        out.push(b'"');
        out.extend_from_slice(self.who);
        numbers(out, &[(TRANSACTION, self.transaction)]);
        self.write_statement(out);
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
            json::inside(out, self.statement);
            out.extend_from_slice(if self.is_cut { "…\"".as_bytes() } else { b"\"" });
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

/// Who a session belongs to, for [`write_who`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Who<'a> {
    /// See [`Entry::client`].
    pub client: &'a [u8],
    /// See [`Entry::user`].
    pub user: &'a [u8],
    /// See [`Entry::database`].
    pub database: &'a [u8],
    /// See [`Entry::application`].
    pub application: &'a [u8],
    /// See [`Entry::session`].
    pub session: Option<u64>,
}

/// Appends what all records of a session have in common, for [`Draft::who`].
pub fn write_who(who: &Who<'_>, out: &mut Vec<u8>) {
    text(out, b",\"client\":", who.client);
    text(out, b",\"user\":", who.user);
    text(out, b",\"database\":", who.database);
    text(out, b",\"application\":", who.application);
    numbers(out, &[(SESSION, who.session)]);
}

/// Appends what all records of a server have in common, for [`Draft::server`].
pub fn write_server(address: &[u8], pid: u64, out: &mut Vec<u8>) {
    text(out, b",\"server\":", address);
    numbers(out, &[(SERVER_PID, Some(pid))]);
}

/// What a client has bound to one place of a statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parameter<'a> {
    /// NULL.
    Null,
    /// In Postgres' text format.
    Text(&'a [u8]),
    /// In the binary format of its type, which the gateway does not know.
    Binary(&'a [u8]),
    /// Not to be written down.
    Redacted,
}

/// Appends an element of [`Draft::parameters`].
pub fn write_parameter(parameter: Parameter<'_>, out: &mut Vec<u8>) {
    match parameter {
        Parameter::Null => out.extend_from_slice(b"null"),
        Parameter::Text(bytes) => json::string(out, bytes),
        Parameter::Binary(bytes) => {
            out.extend_from_slice(br#""\\x"#);
            json::hex(out, bytes);
            out.push(b'"');
        }
        Parameter::Redacted => out.extend_from_slice(br#""***""#),
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

    fn written(draft: &Draft<'_>) -> String {
        let mut out = Vec::new();
        draft.write(&mut Calendar::default(), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_record_reads_as_documented() {
        let mut who = Vec::new();
        let session =
            Who { client: b"10.1.2.3:4567", user: b"ann", database: b"shop", application: b"psql", session: Some(7) };
        write_who(&session, &mut who);
        let mut server = Vec::new();
        write_server(b"db:5432", 99, &mut server);
        let draft = Draft {
            time: Moment::parse("2026-03-01T12:00:00.000042Z").unwrap(),
            kind: Some(Kind::Query),
            who: &who,
            transaction: Some(3),
            statement: b"select \"a\"\nfrom b",
            fingerprint: Some(0xfeed),
            parameters: br#"["1",null]"#,
            server: &server,
            total_us: Some(12),
            rows: Some(1),
            tag: b"SELECT 1",
            ..Draft::default()
        };
        let expected = concat!(
            r#"{"time":"2026-03-01T12:00:00.000042Z","kind":"query","client":"10.1.2.3:4567","user":"ann","database":"shop","#,
            r#""application":"psql","session":7,"transaction":3,"statement":"select \"a\"\nfrom b","#,
            r#""fingerprint":"000000000000feed","#,
            r#""parameters":["1",null],"server":"db:5432","server_pid":99,"total_us":12,"rows":1,"tag":"SELECT 1"}"#,
        );
        assert_eq!(written(&draft), expected);
        let entry = Entry::from_json(expected.as_bytes()).unwrap();
        assert_eq!(entry.parameters, Some(vec![Some("1".to_owned()), None]));
        assert_eq!((entry.session, entry.sqlstate, entry.kind), (Some(7), None, Kind::Query));
    }

    #[test]
    fn parameters_of_any_format_are_read_back() {
        let mut out = b"[".to_vec();
        for parameter in [Parameter::Null, Parameter::Text(b"a\"b"), Parameter::Binary(&[0, 255]), Parameter::Redacted]
        {
            write_parameter(parameter, &mut out);
            out.push(b',');
        }
        out.pop();
        out.push(b']');
        let read: Vec<Option<String>> = serde_json::from_slice(&out).unwrap();
        assert_eq!(read, [None, Some("a\"b".to_owned()), Some("\\x00ff".to_owned()), Some("***".to_owned())]);
    }

    #[test]
    fn a_key_of_a_later_version_is_passed_over() {
        let line = br#"{"time":"2026-03-01T12:00:00Z","kind":"login_failed","colour":"blue"}"#;
        assert_eq!(Entry::from_json(line).unwrap().kind, Kind::LoginFailed);
        assert!(Entry::from_json(br#"{"gap":{"records":3}}"#).is_err());
    }

    #[test]
    fn a_date_that_is_none_is_refused() {
        for text in [
            "",
            "Z",
            "2026-03-01",
            "2026-13-01T00:00:00Z",
            "2026-03-01T24:00:00Z",
            "2026-03-01T12:00:00.1234567Z",
            "2026-03-01T12:00:00.+1Z",
        ] {
            assert_eq!(Moment::parse(text), None, "{text}");
        }
    }

    const YEAR_10_000: u64 = 253_402_300_800_000_000;

    proptest! {
        #[test]
        fn a_time_is_read_back_and_sorts_as_text(one in 0..YEAR_10_000, other in 0..YEAR_10_000) {
            let (one, other) = (Moment::from_micros(one), Moment::from_micros(other));
            prop_assert_eq!(Moment::parse(&one.to_string()), Some(one));
            prop_assert_eq!(one.to_string().cmp(&other.to_string()), one.cmp(&other));
        }
    }
}
