//! A blocking client that sends given bytes and reads messages.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{self, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::frames::c_strings;
use crate::message::ErrorFields;
use crate::pattern::{self, Expected};
use crate::scram::{ChannelBinding, Scram};
use crate::tls::{TlsMode, TlsStream};
use crate::{Frames, Message, TIMEOUT};

/// Maximum number of messages that a failing test prints.
const RECENT_MAX: usize = 40;
/// Maximum message length; a longer one is treated as garbage.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// The reason why no message was received.
#[derive(Debug)]
#[non_exhaustive]
pub enum ClientError {
    /// The peer closed or reset the connection.
    Closed,
    /// No data arrived before the deadline.
    Timeout,
    /// The bytes are not a message of the protocol.
    Garbage(String),
    /// The login was rejected with an error.
    Refused(ErrorFields),
    /// Another error of the socket.
    Io(io::Error),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl From<io::Error> for ClientError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// The contents of BackendKeyData.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CancelKey {
    /// The process id, or its substitute.
    pub process: u32,
    /// 4 bytes in protocol 3.0, 4 to 256 in 3.2.
    pub secret: Vec<u8>,
}

impl CancelKey {
    /// The CancelRequest packet for this key.
    pub fn request(&self) -> Vec<u8> {
        let mut body = 80_877_102_u32.to_be_bytes().to_vec();
        body.extend(self.process.to_be_bytes());
        body.extend(&self.secret);
        untagged(&body)
    }
}

/// A length-prefixed packet without a type byte, as used before authentication.
pub(crate) fn untagged(body: &[u8]) -> Vec<u8> {
    let mut packet = u32::try_from(body.len() + 4).expect("a test's packet is short").to_be_bytes().to_vec();
    packet.extend_from_slice(body);
    packet
}

/// The address that a client connects to.
#[derive(Clone, Debug)]
enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The parameters of a login: address, names, protocol version, TLS.
#[derive(Clone, Debug)]
pub struct Startup {
    address: Address,
    version: (u16, u16),
    parameters: Vec<(String, String)>,
    password: Option<String>,
    tls: TlsMode,
    channel_binding: ChannelBinding,
    receive_buffer_bytes: Option<usize>,
}

impl Startup {
    /// A plain TCP login with protocol 3.0 and no password.
    pub fn tcp(address: SocketAddr, user: &str, database: &str) -> Self {
        Self::new(Address::Tcp(address), user, database)
    }

    /// A login over a unix socket.
    pub fn unix(path: impl Into<PathBuf>, user: &str, database: &str) -> Self {
        Self::new(Address::Unix(path.into()), user, database)
    }

    fn new(address: Address, user: &str, database: &str) -> Self {
        let parameters = vec![("user".to_owned(), user.to_owned()), ("database".to_owned(), database.to_owned())];
        Self {
            address,
            version: (3, 0),
            parameters,
            password: None,
            tls: TlsMode::Off,
            channel_binding: ChannelBinding::None,
            receive_buffer_bytes: None,
        }
    }

    /// Sets or replaces a startup parameter.
    pub fn parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.retain(|(known, _)| known != name);
        self.parameters.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the user.
    pub fn user(self, user: &str) -> Self {
        self.parameter("user", user)
    }

    /// Sets the database.
    pub fn database(self, database: &str) -> Self {
        self.parameter("database", database)
    }

    /// Sets the password, for any authentication method.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Sets the protocol version.
    pub fn protocol(mut self, major: u16, minor: u16) -> Self {
        self.version = (major, minor);
        self
    }

    /// Sets the TLS mode.
    pub fn tls(mut self, tls: TlsMode) -> Self {
        self.tls = tls;
        self
    }

    /// Sets the channel binding of a SCRAM login.
    pub fn channel_binding(mut self, channel_binding: ChannelBinding) -> Self {
        self.channel_binding = channel_binding;
        self
    }

    /// Sets the size of the receive buffer, so that writes of the peer become partial.
    pub fn receive_buffer_bytes(mut self, bytes: usize) -> Self {
        self.receive_buffer_bytes = Some(bytes);
        self
    }

    /// The StartupMessage packet.
    pub fn packet(&self) -> Vec<u8> {
        let mut body = self.version.0.to_be_bytes().to_vec();
        body.extend(self.version.1.to_be_bytes());
        for (name, value) in &self.parameters {
            body.extend(c_strings(&[name, value]));
        }
        body.push(0);
        untagged(&body)
    }

    /// Connects, with TLS if set, and sends nothing else.
    ///
    /// # Errors
    /// If the connection or the handshake fails.
    pub fn try_open(&self) -> Result<RawClient, ClientError> {
        let stream = match &self.address {
            Address::Unix(path) => Stream::Unix(unix_stream(path)?),
            Address::Tcp(address) => {
                let tcp = self.tcp_stream(*address)?;
                self.tls.wrap(tcp)?
            }
        };
        stream.set_timeout(TIMEOUT)?;
        Ok(RawClient::over(stream, self.clone()))
    }

    /// Like [`Self::try_open`], but must succeed.
    #[track_caller]
    pub fn open(&self) -> RawClient {
        self.try_open().unwrap_or_else(|error| panic!("cannot connect to {:?}: {error}", self.address))
    }

    /// Connects and logs in, up to the first ReadyForQuery.
    ///
    /// # Errors
    /// If the login is rejected or the connection fails.
    pub fn try_connect(&self) -> Result<RawClient, ClientError> {
        let mut client = self.try_open()?;
        client.try_send(&self.packet())?;
        client.log_in(self.password.as_deref())?;
        Ok(client)
    }

    /// Like [`Self::try_connect`], but must succeed.
    #[track_caller]
    pub fn connect(&self) -> RawClient {
        self.try_connect().unwrap_or_else(|error| panic!("login failed ({:?}): {error}", self.parameters))
    }

    /// Returns the error of a login that must be rejected; the connection must close after it.
    #[track_caller]
    pub fn refused(&self) -> ErrorFields {
        match self.try_connect() {
            Err(ClientError::Refused(fields)) => fields,
            Err(error) => panic!("the login failed without an error message: {error}"),
            Ok(_) => panic!("the login was accepted"),
        }
    }

    /// Returns the error of the login, or else that of a first query: a gateway without a server may report it at
    /// either.
    #[track_caller]
    pub fn first_error(&self) -> ErrorFields {
        match self.try_connect() {
            Err(ClientError::Refused(fields)) => fields,
            Err(error) => panic!("the connection was closed without an error: {error}"),
            Ok(mut client) => {
                client.send(&Frames::new().query("select 1"));
                let message = client.recv();
                assert_eq!(message.tag, b'E', "{message:?}");
                message.error()
            }
        }
    }

    /// Sends a CancelRequest over a new connection (with the same TLS mode), and waits until the peer closes it.
    #[track_caller]
    pub fn cancel(&self, key: &CancelKey) {
        let mut client = self.open();
        client.send_bytes(&key.request());
        client.expect_eof();
    }

    fn tcp_stream(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        if let Some(bytes) = self.receive_buffer_bytes {
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.connect(&address.into())?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

impl Stream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.set_read_timeout(Some(timeout)).and(tcp.set_write_timeout(Some(timeout))),
            Self::Unix(unix) => unix.set_read_timeout(Some(timeout)).and(unix.set_write_timeout(Some(timeout))),
            Self::Tls(tls) => {
                let tcp = tls.tcp();
                tcp.set_read_timeout(Some(timeout)).and(tcp.set_write_timeout(Some(timeout)))
            }
        }
    }

    fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.set_nonblocking(on),
            Self::Unix(unix) => unix.set_nonblocking(on),
            Self::Tls(tls) => tls.tcp().set_nonblocking(on),
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(tcp) => tcp.read(into),
            Self::Unix(unix) => unix.read(into),
            Self::Tls(tls) => tls.read(into),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Tcp(tcp) => tcp.write_all(bytes),
            Self::Unix(unix) => unix.write_all(bytes),
            Self::Tls(tls) => tls.write_all(bytes).and_then(|()| tls.flush()),
        }
    }
}

/// The messages of one request, up to ReadyForQuery.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The rows, as text.
    pub rows: Vec<Vec<String>>,
    /// The command tags.
    pub tags: Vec<String>,
    /// The first error.
    pub error: Option<ErrorFields>,
    /// The transaction status at the end.
    pub status: char,
    /// All messages, in order.
    pub messages: Vec<Message>,
}

impl Outcome {
    fn of(messages: Vec<Message>) -> Self {
        let mut outcome = Self::default();
        for message in &messages {
            match message.tag {
                b'D' => outcome.rows.push(message.texts()),
                b'C' => outcome.tags.push(message.text()),
                b'E' => outcome.error = outcome.error.or_else(|| Some(message.error())),
                b'Z' => outcome.status = message.status(),
                _ => {}
            }
        }
        outcome.messages = messages;
        outcome
    }

    /// The single value of the single row.
    #[track_caller]
    pub fn value(&self) -> String {
        assert!(self.error.is_none(), "an error instead of a value: {:?}", self.error);
        assert!(self.rows.len() == 1 && self.rows[0].len() == 1, "expected one value: {:?}", self.rows);
        self.rows[0][0].clone()
    }

    /// The SQLSTATE of the error; empty if there was none.
    pub fn code(&self) -> String {
        self.error.as_ref().map(|fields| fields.code.clone()).unwrap_or_default()
    }
}

/// A connection, before or after the login.
pub struct RawClient {
    stream: Stream,
    startup: Startup,
    timeout: Duration,
    inbox: Vec<u8>,
    read_at: usize,
    peeked: VecDeque<Message>,
    recent: VecDeque<String>,
    /// The values of ParameterStatus so far.
    pub parameters: BTreeMap<String, String>,
    /// The cancel key; set by the login.
    pub key: CancelKey,
    /// The body of NegotiateProtocolVersion, if the login received one.
    pub negotiated: Option<(u32, Vec<String>)>,
}

impl RawClient {
    fn over(stream: Stream, startup: Startup) -> Self {
        Self {
            stream,
            startup,
            timeout: TIMEOUT,
            inbox: Vec::new(),
            read_at: 0,
            peeked: VecDeque::new(),
            recent: VecDeque::new(),
            parameters: BTreeMap::new(),
            key: CancelKey::default(),
            negotiated: None,
        }
    }

    /// Sets the timeout of later reads and writes.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        self.stream.set_timeout(timeout).expect("a socket accepts timeouts");
    }

    /// Performs the authentication, up to ReadyForQuery. The StartupMessage is already sent.
    ///
    /// # Errors
    /// If the login is rejected or the connection fails.
    pub fn log_in(&mut self, password: Option<&str>) -> Result<(), ClientError> {
        let mut scram = None;
        loop {
            let message = self.try_recv()?;
            match message.tag {
                b'Z' => return Ok(()),
                b'E' => {
                    let fields = message.error();
                    return match self.try_recv() {
                        Err(ClientError::Closed) => Err(ClientError::Refused(fields)),
                        other => Err(ClientError::Garbage(format!("{other:?} after the error {fields:?}"))),
                    };
                }
                b'R' => self.authenticate(&message, password, &mut scram)?,
                b'K' => self.key = cancel_key(&message),
                b'v' => self.negotiated = Some(negotiation(&message)),
                _ => {}
            }
        }
    }

    fn authenticate(
        &mut self,
        message: &Message,
        password: Option<&str>,
        scram: &mut Option<Scram>,
    ) -> Result<(), ClientError> {
        let password = password.unwrap_or_default();
        let data = &message.body[4..];
        let answer = match message.body[3] {
            0 | 12 => return Ok(()),
            3 => c_strings(&[password]),
            5 => {
                let user = self.startup.parameters.iter().find(|(name, _)| name == "user");
                c_strings(&[&crate::scram::md5_response(user.map_or("", |(_, user)| user), password, data)])
            }
            10 => scram.insert(self.scram(password, data)?).first_message(),
            11 => scram
                .as_mut()
                .ok_or(ClientError::Garbage("AuthenticationSASLContinue out of order".into()))?
                .final_message(data),
            other => return Err(ClientError::Garbage(format!("authentication method {other}"))),
        };
        self.try_send(Frames::new().message(b'p', &answer).bytes())
    }

    fn scram(&self, password: &str, offered: &[u8]) -> Result<Scram, ClientError> {
        let channel_binding = self.startup.channel_binding;
        if !offered.split(|byte| *byte == 0).any(|name| name == channel_binding.mechanism().as_bytes()) {
            return Err(ClientError::Garbage(format!("{} is not offered", channel_binding.mechanism())));
        }
        let certificate = match &self.stream {
            Stream::Tls(tls) => tls.certificate(),
            Stream::Tcp(_) | Stream::Unix(_) => Vec::new(),
        };
        Ok(Scram::new(password, channel_binding, certificate))
    }

    /// Sends messages in one write.
    #[track_caller]
    pub fn send(&mut self, frames: &Frames) {
        self.send_bytes(frames.bytes());
    }

    /// Sends any bytes in one write.
    #[track_caller]
    pub fn send_bytes(&mut self, bytes: &[u8]) {
        if let Err(error) = self.try_send(bytes) {
            panic!("cannot send {} bytes: {error}\n{}", bytes.len(), self.transcript());
        }
    }

    /// Sends any bytes in one write.
    ///
    /// # Errors
    /// If the connection is closed, or the peer does not read before the deadline.
    pub fn try_send(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        self.record(format!("-> {} bytes, first {:?}", bytes.len(), bytes.first().map(|byte| char::from(*byte))));
        Ok(self.stream.write_all(bytes)?)
    }

    /// A second handle of a plain TCP connection, to write from another thread while this one reads.
    ///
    /// # Panics
    /// For TLS and unix sockets.
    pub fn writer(&self) -> TcpStream {
        match &self.stream {
            Stream::Tcp(tcp) => tcp.try_clone().expect("a socket can be duplicated"),
            _ => panic!("only a plain TCP client has a second handle"),
        }
    }

    /// The size of the largest TLS record received so far.
    pub fn tls_record_bytes_max(&self) -> usize {
        match &self.stream {
            Stream::Tls(tls) => tls.record_bytes_max(),
            _ => 0,
        }
    }

    /// Shuts down the write side of the connection.
    pub fn shutdown_write(&self) {
        if let Stream::Tcp(tcp) = &self.stream {
            drop(tcp.shutdown(Shutdown::Write));
        }
    }

    /// Closes the connection without Terminate; `reset` sends RST instead of FIN.
    pub fn disconnect(self, reset: bool) {
        let linger = reset.then_some(Duration::ZERO);
        match &self.stream {
            Stream::Tcp(tcp) => drop(socket2::SockRef::from(tcp).set_linger(linger)),
            Stream::Tls(tls) => drop(socket2::SockRef::from(tls.tcp()).set_linger(linger)),
            Stream::Unix(_) => {}
        }
    }

    /// Reads the next message.
    #[track_caller]
    pub fn recv(&mut self) -> Message {
        match self.try_recv() {
            Ok(message) => message,
            Err(error) => panic!("no message: {error}\n{}", self.transcript()),
        }
    }

    /// Reads the next message.
    ///
    /// # Errors
    /// If none is received.
    pub fn try_recv(&mut self) -> Result<Message, ClientError> {
        if let Some(message) = self.peeked.pop_front() {
            return Ok(message);
        }
        self.read_message()
    }

    fn read_message(&mut self) -> Result<Message, ClientError> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(message) = self.take_message()? {
                self.record(format!("<- {message:?}"));
                if message.tag == b'S' {
                    let (name, value) = message.parameter();
                    self.parameters.insert(name, value);
                }
                return Ok(message);
            }
            if Instant::now() > deadline {
                return Err(ClientError::Timeout);
            }
            self.fill()?;
        }
    }

    fn take_message(&mut self) -> Result<Option<Message>, ClientError> {
        let bytes = &self.inbox[self.read_at..];
        let Some(header) = bytes.get(..5) else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
        if !(4..MESSAGE_BYTES_MAX).contains(&length) {
            return Err(ClientError::Garbage(format!(
                "invalid length {length} after type {:?}",
                char::from(header[0])
            )));
        }
        let Some(body) = bytes.get(5..=length) else {
            return Ok(None);
        };
        let message = Message { tag: header[0], body: body.to_vec() };
        self.read_at += length + 1;
        if self.read_at == self.inbox.len() {
            self.inbox.clear();
            self.read_at = 0;
        }
        Ok(Some(message))
    }

    fn fill(&mut self) -> Result<(), ClientError> {
        if self.read_at > 1 << 20 {
            self.inbox.drain(..self.read_at);
            self.read_at = 0;
        }
        let mut chunk = [0; 1 << 14];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(ClientError::Closed),
            Ok(count) => {
                self.inbox.extend_from_slice(&chunk[..count]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads one byte outside of a message: the reply to SSLRequest or GSSENCRequest.
    #[track_caller]
    pub fn recv_byte(&mut self) -> u8 {
        while self.inbox.is_empty() {
            if let Err(error) = self.fill() {
                panic!("no byte: {error}\n{}", self.transcript());
            }
        }
        self.inbox.remove(0)
    }

    /// Puts a byte back before the unread input.
    pub fn unread_byte(&mut self, byte: u8) {
        self.inbox.insert(self.read_at, byte);
    }

    /// Whether input or the end of the connection is available. Does not wait.
    pub fn has_input(&mut self) -> bool {
        if !self.peeked.is_empty() || self.read_at < self.inbox.len() {
            return true;
        }
        self.stream.set_nonblocking(true).expect("a socket can be made non-blocking");
        let filled = self.fill();
        self.stream.set_nonblocking(false).expect("a socket can be made blocking");
        !matches!(filled, Err(ClientError::Timeout))
    }

    /// Reads messages and compares them with a pattern such as `"1 2 D:42 C:SELECT_1 Z:I"`.
    ///
    /// A word is a type byte, a detail after a colon (ReadyForQuery: status; ErrorResponse and NoticeResponse: SQLSTATE;
    /// CommandComplete: tag; DataRow: values with commas; RowDescription: column names; ParameterStatus: `name` or
    /// `name=value`; NotificationResponse: channel; blanks written as `_`), and `*` for any number of such messages.
    #[track_caller]
    pub fn expect(&mut self, pattern: &str) -> Vec<Message> {
        let mut received = Vec::new();
        for word in pattern::words(pattern) {
            self.expect_word(&word, pattern, &mut received);
        }
        received
    }

    #[track_caller]
    fn expect_word(&mut self, word: &Expected, pattern: &str, received: &mut Vec<Message>) {
        loop {
            match self.try_recv() {
                Ok(message) if word.matches(&message) => received.push(message),
                Ok(message) if word.repeated => return self.peeked.push_front(message),
                Ok(message) => panic!(
                    "expected {pattern}\nreceived {}instead of {word:?}: {message:?}\n{}",
                    list(received),
                    self.transcript()
                ),
                Err(error) => panic!(
                    "expected {pattern}\nreceived {}then, instead of {word:?}: {error}\n{}",
                    list(received),
                    self.transcript()
                ),
            }
            if !word.repeated {
                return;
            }
        }
    }

    /// Runs `SHOW what` in the admin console and returns the rows, each by column name.
    #[track_caller]
    pub fn show(&mut self, what: &str) -> Vec<BTreeMap<String, String>> {
        let outcome = self.ok(&format!("SHOW {what}"));
        let columns = outcome.messages.iter().find(|message| message.tag == b'T').map(Message::columns);
        let columns = columns.unwrap_or_default();
        outcome.rows.into_iter().map(|row| columns.iter().cloned().zip(row).collect()).collect()
    }

    /// Waits until the peer closes the connection; a further message fails the test.
    #[track_caller]
    pub fn expect_eof(&mut self) {
        match self.try_recv() {
            Err(ClientError::Closed) => {}
            other => panic!("expected the end of the connection, received {other:?}\n{}", self.transcript()),
        }
    }

    /// Reads a FATAL error with this SQLSTATE (notices before it are skipped), then the end of the connection.
    #[track_caller]
    pub fn expect_fatal(&mut self, code: &str) -> ErrorFields {
        let received = self.expect(&format!("N* E:{code}"));
        let fields = received[received.len() - 1].error();
        assert_eq!(fields.severity, "FATAL", "{fields:?}");
        self.expect_eof();
        fields
    }

    /// Reads up to and including the next ReadyForQuery.
    #[track_caller]
    pub fn until_ready(&mut self) -> Outcome {
        match self.try_until_ready() {
            Ok(outcome) => outcome,
            Err(error) => panic!("no ReadyForQuery: {error}\n{}", self.transcript()),
        }
    }

    /// Reads up to and including the next ReadyForQuery.
    ///
    /// # Errors
    /// If the connection ends before.
    pub fn try_until_ready(&mut self) -> Result<Outcome, ClientError> {
        let mut messages = Vec::new();
        loop {
            let message = self.try_recv()?;
            let done = message.tag == b'Z';
            messages.push(message);
            if done {
                return Ok(Outcome::of(messages));
            }
        }
    }

    /// Runs a simple query and returns its outcome, which may be an error.
    #[track_caller]
    pub fn query(&mut self, sql: &str) -> Outcome {
        self.send(&Frames::new().query(sql));
        self.until_ready()
    }

    /// Runs a simple query and returns its outcome, which may be an error.
    ///
    /// # Errors
    /// If the connection ends before ReadyForQuery.
    pub fn try_query(&mut self, sql: &str) -> Result<Outcome, ClientError> {
        self.try_send(Frames::new().query(sql).bytes())?;
        self.try_until_ready()
    }

    /// Runs a simple query that must succeed.
    #[track_caller]
    pub fn ok(&mut self, sql: &str) -> Outcome {
        let outcome = self.query(sql);
        assert!(outcome.error.is_none(), "{sql}: {:?}\n{}", outcome.error, self.transcript());
        outcome
    }

    /// Runs a simple query that returns one value.
    #[track_caller]
    pub fn value(&mut self, sql: &str) -> String {
        self.ok(sql).value()
    }

    /// The process id of the current backend.
    #[track_caller]
    pub fn backend(&mut self) -> String {
        self.value("select pg_backend_pid()")
    }

    /// The process id that the server has sent at the login.
    pub fn process_id(&self) -> u32 {
        self.key.process
    }

    /// Cancels the query of this client over a second connection of the same kind.
    #[track_caller]
    pub fn cancel(&self) {
        self.startup.cancel(&self.key);
    }

    /// The parameters of the login.
    pub fn startup(&self) -> &Startup {
        &self.startup
    }

    fn record(&mut self, line: String) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
    }

    fn transcript(&self) -> String {
        let lines: Vec<_> = self.recent.iter().map(|line| format!("    {line}")).collect();
        format!("the last messages:\n{}", lines.join("\n"))
    }
}

/// Connects to a unix socket; a path that begins with `@` is an abstract name.
fn unix_stream(path: &Path) -> io::Result<UnixStream> {
    match path.as_os_str().as_bytes().strip_prefix(b"@") {
        Some(name) => UnixStream::connect_addr(&net::SocketAddr::from_abstract_name(name)?),
        None => UnixStream::connect(path),
    }
}

fn list(messages: &[Message]) -> String {
    messages.iter().map(|message| format!("{message:?} ")).collect()
}

fn cancel_key(message: &Message) -> CancelKey {
    let process = u32::from_be_bytes([message.body[0], message.body[1], message.body[2], message.body[3]]);
    CancelKey { process, secret: message.body[4..].to_vec() }
}

fn negotiation(message: &Message) -> (u32, Vec<String>) {
    let version = u32::from_be_bytes([message.body[0], message.body[1], message.body[2], message.body[3]]);
    let names = message.body[8..].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    (version, names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}
