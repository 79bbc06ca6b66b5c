//! A connection to Postgres on tokio, for replication commands and simple queries.
//!
//! tokio-postgres has no CopyBoth. This client has what a replication connection needs: TLS, logins, simple queries with
//! values in text form, and CopyBoth. It has neither prepared statements nor types.

mod login;
mod options;
mod paced;

use std::{collections::BTreeMap, io, time::Duration};

use bytes::{Bytes, BytesMut};
use tidegate_wire::{
    backend::{self, DataRow, ErrorFields, ParameterStatus, RowDescription},
    frame::{HEADER, MessageHeader},
    frontend,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub use options::{ConnectOptions, ReplicationMode};
use paced::PacedSocket;
use tidegate_config::{Route, SessionAttrs};
use tidegate_tls::{ByteStream, ServerSocket, ServerSocketError};

/// Bytes of a receive buffer. Changes refer to it, so it also bounds what a single change keeps in memory.
const RECEIVE: usize = 256 * 1024;

/// An error or notice of the server.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ServerReport {
    /// `ERROR`, `FATAL`, `WARNING` and so on.
    pub severity: String,
    /// The SQLSTATE.
    pub code: String,
    /// The message.
    pub message: String,
    /// Details.
    pub detail: String,
    /// The hint of the server.
    pub hint: String,
}

impl std::fmt::Display for ServerReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {} (SQLSTATE {})", self.severity, self.message, self.code)?;
        for more in [&self.detail, &self.hint].into_iter().filter(|text| !text.is_empty()) {
            write!(f, "; {more}")?;
        }
        Ok(())
    }
}

impl ServerReport {
    pub(crate) fn decode(body: &[u8]) -> Result<Self, ClientError> {
        let fields = ErrorFields::decode(body).map_err(ClientError::protocol)?;
        let text = |code| fields.get(code).map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default();
        let severity = fields.severity().unwrap_or("ERROR").to_owned();
        Ok(Self { severity, code: text(b'C'), message: text(b'M'), detail: text(b'D'), hint: text(b'H') })
    }
}

/// Why a connection failed.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server could not be reached, or the connection broke.
    #[error("connection to {address} failed: {source}")]
    Io {
        /// Host and port.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The server closed the connection without an error message.
    #[error("{address} closed the connection without an error message")]
    Closed {
        /// Host and port.
        address: String,
    },
    /// TLS failed.
    #[error("TLS with {address} failed: {reason}")]
    Tls {
        /// Host and port.
        address: String,
        /// The cause.
        reason: String,
    },
    /// The server answered with an error.
    #[error("{0}")]
    Server(Box<ServerReport>),
    /// The login needs something that the options do not have.
    #[error("cannot log in: {0}")]
    Login(String),
    /// The server violates the protocol.
    #[error("the server sent an invalid message: {0}")]
    Protocol(String),
    /// The server did not answer in time.
    #[error("no answer from {address} within {limit:?}")]
    Timeout {
        /// Host and port.
        address: String,
        /// The limit.
        limit: Duration,
    },
    /// An earlier command of the connection was given up before its answer ended, by a timeout or because its future was
    /// dropped. The next answer would be that of the earlier command.
    #[error("an earlier command to {address} was given up before its answer ended; open a new connection")]
    Unanswered {
        /// Host and port.
        address: String,
    },
    /// The URL or another option is invalid.
    #[error("invalid connection option: {0}")]
    Option(String),
}

impl ClientError {
    pub(crate) fn protocol(error: impl std::fmt::Display) -> Self {
        Self::Protocol(error.to_string())
    }

    /// The SQLSTATE of an error of the server.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Server(report) => Some(&report.code),
            _ => None,
        }
    }
}

/// A row of a simple query, in text form; `None` is NULL.
pub type QueryRow = Vec<Option<String>>;

/// The result of a query, in text form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryTable {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// OIDs of their types.
    pub types: Vec<u32>,
    /// The rows, each with a value per column.
    pub rows: Vec<QueryRow>,
}

/// Bodies of the rows of a query.
#[derive(Debug, Default)]
pub(crate) struct RowBodies {
    /// Bodies of DataRow.
    pub(crate) rows: Vec<Bytes>,
    /// Bytes of the bodies.
    pub(crate) bytes: usize,
    /// Whether further rows were left out.
    pub(crate) is_cut: bool,
}

/// A message of the server.
#[derive(Debug)]
pub(crate) struct ServerFrame {
    pub(crate) tag: u8,
    pub(crate) body: Bytes,
}

/// A connection after its login.
pub struct PgConnection {
    socket: Box<dyn ByteStream>,
    address: String,
    received: BytesMut,
    parameters: BTreeMap<String, String>,
    pid: u32,
    /// Limit for each answer to a command that does not wait for other transactions.
    timeout: Duration,
    /// A command was sent whose answer has not ended.
    is_answer_due: bool,
}

impl std::fmt::Debug for PgConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgConnection").field("address", &self.address).field("pid", &self.pid).finish_non_exhaustive()
    }
}

impl PgConnection {
    /// Connects to the first host that accepts the login and has the role of [`ConnectOptions::server`]. If no host has the
    /// role, the first host that accepts the login is used: the caller checks the role where it matters.
    ///
    /// # Errors
    /// The error of the last host, if none accepts the login.
    pub async fn connect(options: &ConnectOptions, replication: ReplicationMode) -> Result<Self, ClientError> {
        let mut last = ClientError::Option("the URL has no host".to_owned());
        let mut other_role = None;
        for host in options.hosts() {
            let limit = options.connect_timeout;
            match tokio::time::timeout(limit, Self::connect_to(options, host, replication)).await {
                Ok(Ok(connection)) if connection.has_role(options.server) => return Ok(connection),
                Ok(Ok(connection)) => other_role = other_role.or(Some(connection)),
                Ok(Err(error)) => last = error,
                Err(_) => last = ClientError::Timeout { address: host.to_string(), limit },
            }
        }
        other_role.ok_or(last)
    }

    /// Whether the server has reported that it is a standby (`in_hot_standby`, Postgres 14).
    #[must_use]
    pub fn is_standby(&self) -> bool {
        self.parameter("in_hot_standby") == Some("on")
    }

    fn has_role(&self, role: SessionAttrs) -> bool {
        match role.route() {
            Route::Any => true,
            Route::Primary => !self.is_standby(),
            Route::Replica | Route::PreferReplica => self.is_standby(),
        }
    }

    async fn connect_to(
        options: &ConnectOptions,
        host: &tidegate_config::Host,
        replication: ReplicationMode,
    ) -> Result<Self, ClientError> {
        let tls = tidegate_tls::for_servers(&options.tls).map_err(|error| ClientError::Option(error.to_string()))?;
        let address = host.to_string();
        let opened = match ServerSocket::open_with(host, tls.as_ref(), &options.tls, PacedSocket::new).await {
            Ok(opened) => opened,
            Err(ServerSocketError::Io(source)) => return Err(ClientError::Io { address, source }),
            Err(ServerSocketError::Tls(reason)) => return Err(ClientError::Tls { address, reason }),
        };
        let mut connection = Self {
            socket: opened.stream,
            address,
            received: BytesMut::new(),
            parameters: BTreeMap::new(),
            pid: 0,
            timeout: options.command_timeout,
            is_answer_due: false,
        };
        login::log_in(&mut connection, options, replication, opened.end_point).await?;
        Ok(connection)
    }

    /// Process id of the server process.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Host and port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// A parameter that the server reported, such as `server_version`.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// The major version of the server, such as 18.
    ///
    /// # Errors
    /// The server has reported no version.
    pub fn major_version(&self) -> Result<u32, ClientError> {
        let version = self.parameter("server_version").unwrap_or_default();
        let digits: String = version.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().map_err(|_| ClientError::Protocol(format!("server_version is \"{version}\"")))
    }

    /// Runs statements by the simple protocol, and returns the rows of all of them.
    ///
    /// # Errors
    /// The first error of the server, after which the connection can be used again; or the connection broke.
    ///
    /// # Cancel safety
    /// If the future is dropped, the statements may have been executed, and further commands of the connection fail with
    /// [`ClientError::Unanswered`].
    pub async fn query(&mut self, sql: &str) -> Result<Vec<QueryRow>, ClientError> {
        let limit = self.timeout;
        self.query_within(sql, limit).await
    }

    /// Runs statements like [`PgConnection::query`], with another limit.
    ///
    /// # Errors
    /// As [`PgConnection::query`]. After a timeout, further commands fail with [`ClientError::Unanswered`].
    ///
    /// # Cancel safety
    /// As [`PgConnection::query`].
    pub async fn query_within(&mut self, sql: &str, limit: Duration) -> Result<Vec<QueryRow>, ClientError> {
        let address = self.address.clone();
        let answer = tokio::time::timeout(limit, self.run_query(sql)).await;
        answer.unwrap_or(Err(ClientError::Timeout { address, limit }))
    }

    /// Runs one statement like [`PgConnection::query_within`], and returns the names of its columns too.
    ///
    /// # Errors
    /// As [`PgConnection::query_within`].
    ///
    /// # Cancel safety
    /// As [`PgConnection::query`].
    pub async fn query_table(&mut self, sql: &str, limit: Duration) -> Result<QueryTable, ClientError> {
        let address = self.address.clone();
        let answer = tokio::time::timeout(limit, self.run_query_table(sql)).await;
        answer.unwrap_or(Err(ClientError::Timeout { address, limit }))
    }

    async fn run_query(&mut self, sql: &str) -> Result<Vec<QueryRow>, ClientError> {
        self.run_query_table(sql).await.map(|table| table.rows)
    }

    async fn run_query_table(&mut self, sql: &str) -> Result<QueryTable, ClientError> {
        self.send_query(sql).await?;
        let (mut table, mut failure) = (QueryTable::default(), None);
        loop {
            let frame = self.read_frame().await?;
            match frame.tag {
                backend::ROW_DESCRIPTION => {
                    let columns = RowDescription::decode(&frame.body).map_err(ClientError::protocol)?;
                    table.types = columns.clone().map(|column| column.type_oid).collect();
                    table.columns = columns.map(|column| String::from_utf8_lossy(column.name).into_owned()).collect();
                }
                backend::DATA_ROW => table.rows.push(text_row(&frame.body)?),
                backend::ERROR_RESPONSE => failure = Some(ServerReport::decode(&frame.body)?),
                backend::READY_FOR_QUERY => {
                    self.is_answer_due = false;
                    return failure.map_or(Ok(table), |report| Err(ClientError::Server(Box::new(report))));
                }
                backend::COPY_BOTH_RESPONSE | backend::COPY_IN_RESPONSE | backend::COPY_OUT_RESPONSE => {
                    return Err(ClientError::Protocol("COPY in a simple query".to_owned()));
                }
                _ => {}
            }
        }
    }

    /// Runs one query, and returns the bodies of its rows, checked and not copied. Rows behind `bytes_max` are received, and
    /// left out.
    pub(crate) async fn query_rows(
        &mut self,
        sql: &str,
        bytes_max: usize,
        limit: Duration,
    ) -> Result<RowBodies, ClientError> {
        let address = self.address.clone();
        let work = async {
            self.send_query(sql).await?;
            let (mut found, mut failure) = (RowBodies::default(), None);
            loop {
                let frame = self.read_frame().await?;
                match frame.tag {
                    backend::DATA_ROW if found.bytes >= bytes_max => found.is_cut = true,
                    backend::DATA_ROW => {
                        DataRow::decode(&frame.body).map_err(ClientError::protocol)?;
                        found.bytes += frame.body.len();
                        found.rows.push(frame.body);
                    }
                    backend::ERROR_RESPONSE => failure = Some(ServerReport::decode(&frame.body)?),
                    backend::READY_FOR_QUERY => {
                        self.is_answer_due = false;
                        return failure.map_or(Ok(found), |report| Err(ClientError::Server(Box::new(report))));
                    }
                    _ => {}
                }
            }
        };
        tokio::time::timeout(limit, work).await.unwrap_or(Err(ClientError::Timeout { address, limit }))
    }

    /// Sends START_REPLICATION or another command, and waits until the server begins CopyBoth.
    pub(crate) async fn begin_copy(&mut self, command: &str) -> Result<Vec<ServerReport>, ClientError> {
        let (limit, address) = (self.timeout, self.address.clone());
        let begin = async {
            self.send_query(command).await?;
            let (mut notices, mut failure) = (Vec::new(), None);
            loop {
                let frame = self.read_frame().await?;
                match frame.tag {
                    backend::COPY_BOTH_RESPONSE => {
                        self.is_answer_due = false;
                        return Ok(notices);
                    }
                    backend::NOTICE_RESPONSE => notices.push(ServerReport::decode(&frame.body)?),
                    backend::ERROR_RESPONSE => failure = Some(ServerReport::decode(&frame.body)?),
                    backend::READY_FOR_QUERY => {
                        self.is_answer_due = false;
                        let report = failure.unwrap_or_default();
                        return Err(ClientError::Server(Box::new(report)));
                    }
                    _ => {}
                }
            }
        };
        tokio::time::timeout(limit, begin).await.unwrap_or(Err(ClientError::Timeout { address, limit }))
    }

    async fn send_query(&mut self, sql: &str) -> Result<(), ClientError> {
        if self.is_answer_due {
            return Err(ClientError::Unanswered { address: self.address.clone() });
        }
        self.is_answer_due = true;
        let mut out = Vec::new();
        frontend::query(sql.as_bytes(), &mut out);
        self.write(&out).await
    }

    /// Sends a CopyData message with this payload.
    pub(crate) async fn copy_data(&mut self, payload: &[u8]) -> Result<(), ClientError> {
        let mut out = Vec::new();
        frontend::copy_data(payload, &mut out);
        self.write(&out).await
    }

    /// Ends CopyBoth, and the session.
    pub(crate) async fn end_copy(&mut self) -> Result<(), ClientError> {
        let mut out = Vec::new();
        frontend::copy_done(&mut out);
        frontend::terminate(&mut out);
        self.write(&out).await
    }

    /// Ends the session. An error is of no interest, because the connection is dropped.
    pub async fn close(mut self) {
        let mut out = Vec::new();
        frontend::terminate(&mut out);
        drop(self.write(&out).await);
    }

    /// Writes all bytes. Not cancel-safe.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        let (limit, address) = (self.timeout, self.address.clone());
        let write = async {
            self.socket.write_all(bytes).await?;
            self.socket.flush().await
        };
        match tokio::time::timeout(limit, write).await {
            Ok(written) => written.map_err(|source| ClientError::Io { address, source }),
            Err(_) => Err(ClientError::Timeout { address, limit }),
        }
    }

    /// Receives the next message. Cancel-safe.
    pub(crate) async fn read_frame(&mut self) -> Result<ServerFrame, ClientError> {
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok(frame);
            }
            self.receive().await?;
        }
    }

    /// Returns the next received message. Stores reported parameters.
    pub(crate) fn next_frame(&mut self) -> Result<Option<ServerFrame>, ClientError> {
        let Some(header) = MessageHeader::peek(&self.received).map_err(ClientError::protocol)? else {
            return Ok(None);
        };
        if self.received.len() < header.total() {
            return Ok(None);
        }
        let mut frame = self.received.split_to(header.total());
        let body = frame.split_off(HEADER).freeze();
        if header.tag == backend::PARAMETER_STATUS {
            let status = ParameterStatus::decode(&body).map_err(ClientError::protocol)?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            self.parameters.insert(text(status.name), text(status.value));
        }
        Ok(Some(ServerFrame { tag: header.tag, body }))
    }

    /// Returns all whole messages that were received, with their headers; none if the first one is not complete.
    pub(crate) fn take_messages(&mut self) -> Result<Bytes, ClientError> {
        let mut end = 0;
        loop {
            match MessageHeader::peek(self.received.get(end..).unwrap_or_default()) {
                Ok(Some(header)) if self.received.len() - end >= header.total() => end += header.total(),
                // The messages before a malformed one are handled first.
                Err(error) if end == 0 => return Err(ClientError::protocol(error)),
                _ => break,
            }
        }
        Ok(self.received.split_to(end).freeze())
    }

    /// Waits for bytes. Cancel-safe.
    ///
    /// The buffer grows with what has arrived, never by the length that a message declares.
    pub(crate) async fn receive(&mut self) -> Result<(), ClientError> {
        if self.received.capacity() - self.received.len() < RECEIVE / 8 {
            let more = self.received.len().max(RECEIVE);
            self.received.reserve(more);
        }
        match self.socket.read_buf(&mut self.received).await {
            Ok(0) => Err(ClientError::Closed { address: self.address.clone() }),
            Ok(_) => Ok(()),
            Err(source) => Err(ClientError::Io { address: self.address.clone(), source }),
        }
    }
}

fn text_row(body: &[u8]) -> Result<QueryRow, ClientError> {
    let row = DataRow::decode(body).map_err(ClientError::protocol)?;
    Ok(row.map(|value| value.map(|bytes| String::from_utf8_lossy(bytes).into_owned())).collect())
}
