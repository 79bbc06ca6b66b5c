//! A minimal client: simple queries over a trusted unix socket.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::Error;

/// A row in text format; `None` is NULL.
pub type TextRow = Vec<Option<String>>;

/// A session of the superuser, over the unix socket.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Logs in as `postgres`. Fails while the server is still starting.
    pub(crate) fn connect(socket: &Path, database: &str) -> Result<Self, Error> {
        let stream = UnixStream::connect(socket).map_err(Error::path("connect to", socket))?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).map_err(Error::io("set a timeout"))?;
        let mut client = Self { stream: BufReader::new(stream) };
        client.send(&startup(database))?;
        client.read_rows()?;
        Ok(client)
    }

    /// Runs `sql` with the simple protocol and returns the rows of all its statements.
    pub(crate) fn query(&mut self, sql: &str) -> Result<Vec<TextRow>, Error> {
        let mut message = vec![b'Q'];
        message.extend(length_of(sql.len() + 5));
        message.extend(sql.as_bytes());
        message.push(0);
        self.send(&message)?;
        self.read_rows()
    }

    fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        self.stream.get_mut().write_all(message).map_err(Error::io("write to Postgres"))
    }

    /// Reads until ReadyForQuery. A fatal error ends the session without that message, so the end of the stream returns
    /// the error.
    fn read_rows(&mut self) -> Result<Vec<TextRow>, Error> {
        let mut rows = Vec::new();
        let mut failure = None;
        loop {
            match (self.read_message(), failure.take()) {
                (Ok((b'Z', _)), None) => return Ok(rows),
                (Ok((b'Z', _)) | Err(_), Some(error)) => return Err(error),
                (Err(source), None) => return Err(Error::io("read from Postgres")(source)),
                (Ok((b'D', body)), None) => rows.push(row(&body).map_err(Error::io("read a row"))?),
                (Ok((b'E', body)), None) => failure = Some(error(&body)),
                (Ok(_), earlier) => failure = earlier,
            }
        }
    }

    fn read_message(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.stream.read_exact(&mut head)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]).saturating_sub(4);
        let mut body = Vec::new();
        (&mut self.stream).take(u64::from(length)).read_to_end(&mut body)?;
        Ok((head[0], body))
    }
}

fn startup(database: &str) -> Vec<u8> {
    let version_3_0 = 196_608_u32.to_be_bytes();
    let body = [
        &version_3_0[..],
        b"user\0postgres\0database\0",
        database.as_bytes(),
        b"\0application_name\0tidegate-sandbox\0\0",
    ]
    .concat();
    [&length_of(body.len() + 4)[..], &body].concat()
}

fn length_of(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes).expect("a message of a test is below 4 GiB").to_be_bytes()
}

fn row(body: &[u8]) -> io::Result<TextRow> {
    let mut rest = body;
    let mut count = [0; 2];
    rest.read_exact(&mut count)?;
    (0..u16::from_be_bytes(count)).map(|_| column(&mut rest)).collect()
}

fn column(rest: &mut &[u8]) -> io::Result<Option<String>> {
    let mut length = [0; 4];
    rest.read_exact(&mut length)?;
    // A negative length is NULL.
    let Ok(length) = usize::try_from(i32::from_be_bytes(length)) else {
        return Ok(None);
    };
    let (value, after) = rest.split_at_checked(length).ok_or(io::ErrorKind::UnexpectedEof)?;
    *rest = after;
    Ok(Some(String::from_utf8_lossy(value).into_owned()))
}

fn error(body: &[u8]) -> Error {
    let field = |code| {
        let mut fields = body.split(|&byte| byte == 0).filter_map(|field| field.split_first());
        let value = fields.find(|&(&key, _)| key == code).map(|(_, value)| value);
        String::from_utf8_lossy(value.unwrap_or_default()).into_owned()
    };
    Error::Query { sqlstate: field(b'C'), message: field(b'M') }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_and_empty_differ() {
        let body = b"\0\x03\0\0\0\x01a\xff\xff\xff\xff\0\0\0\0";
        assert_eq!(row(body).unwrap(), vec![Some("a".to_owned()), None, Some(String::new())]);
    }

    #[test]
    fn row_shorter_than_its_length_is_an_error() {
        assert!(row(b"\0\x01\0\0\0\x09abc").is_err());
    }

    #[test]
    fn error_fields_are_found_by_their_code() {
        let Error::Query { sqlstate, message } = error(b"SERROR\0VERROR\0C42P01\0Mno such relation\0\0") else {
            panic!("an ErrorResponse is a query error");
        };
        assert_eq!((sqlstate.as_str(), message.as_str()), ("42P01", "no such relation"));
    }
}
