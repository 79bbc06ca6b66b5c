//! A simulated server with scripted replies and failures.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use crate::frames::c_strings;
use crate::{CancelKey, Frames, Message, TIMEOUT};

const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

/// Encoders of backend messages.
pub mod reply {
    use super::{Frames, c_strings};

    /// Any message.
    pub fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        Frames::new().message(tag, body).bytes().to_vec()
    }

    /// ReadyForQuery.
    pub fn ready(status: u8) -> Vec<u8> {
        message(b'Z', &[status])
    }

    /// CommandComplete.
    pub fn complete(tag: &str) -> Vec<u8> {
        message(b'C', &c_strings(&[tag]))
    }

    /// ParameterStatus.
    pub fn parameter(name: &str, value: &str) -> Vec<u8> {
        message(b'S', &c_strings(&[name, value]))
    }

    /// A RowDescription of one text column.
    pub fn text_column(name: &str) -> Vec<u8> {
        let mut body = vec![0, 1];
        body.extend(c_strings(&[name]));
        body.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 25, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]);
        message(b'T', &body)
    }

    /// A DataRow of one text value.
    pub fn row(value: &str) -> Vec<u8> {
        let mut body = vec![0, 1];
        body.extend(u32::try_from(value.len()).expect("short").to_be_bytes());
        body.extend(value.bytes());
        message(b'D', &body)
    }

    /// The reply to a simple query with one value.
    pub fn one_value(value: &str) -> Vec<u8> {
        [text_column("value"), row(value), complete("SELECT 1"), ready(b'I')].concat()
    }

    /// An ErrorResponse of these fields, such as `&[(b'S', "ERROR"), (b'C', "42601"), (b'M', "no")]`.
    pub fn error(fields: &[(u8, &str)]) -> Vec<u8> {
        fields_message(b'E', fields)
    }

    /// A NoticeResponse of these fields.
    pub fn notice(fields: &[(u8, &str)]) -> Vec<u8> {
        fields_message(b'N', fields)
    }

    /// A FATAL ErrorResponse.
    pub fn fatal(code: &str, text: &str) -> Vec<u8> {
        error(&[(b'S', "FATAL"), (b'V', "FATAL"), (b'C', code), (b'M', text)])
    }

    /// NotificationResponse.
    pub fn notification(process: u32, channel: &str, payload: &str) -> Vec<u8> {
        let mut body = process.to_be_bytes().to_vec();
        body.extend(c_strings(&[channel, payload]));
        message(b'A', &body)
    }

    /// BackendKeyData.
    pub fn key(process: u32, secret: &[u8]) -> Vec<u8> {
        let mut body = process.to_be_bytes().to_vec();
        body.extend_from_slice(secret);
        message(b'K', &body)
    }

    /// NegotiateProtocolVersion without unknown options.
    pub fn negotiate(minor: u16) -> Vec<u8> {
        let mut body = vec![0, 3];
        body.extend(minor.to_be_bytes());
        body.extend([0; 4]);
        message(b'v', &body)
    }

    /// The reply to a login in trust mode: AuthenticationOk, the usual parameters, a key of 4 bytes, ReadyForQuery.
    pub fn login(process: u32) -> Vec<u8> {
        let parameters = [
            ("server_version", "18.0"),
            ("server_encoding", "UTF8"),
            ("client_encoding", "UTF8"),
            ("DateStyle", "ISO, MDY"),
            ("TimeZone", "UTC"),
            ("integer_datetimes", "on"),
            ("standard_conforming_strings", "on"),
            ("IntervalStyle", "postgres"),
            ("application_name", ""),
            ("is_superuser", "on"),
            ("in_hot_standby", "off"),
            ("default_transaction_read_only", "off"),
        ];
        let mut bytes = message(b'R', &[0, 0, 0, 0]);
        bytes.extend(parameters.iter().flat_map(|(name, value)| parameter(name, value)));
        bytes.extend(key(process, &process.to_be_bytes()));
        bytes.extend(ready(b'I'));
        bytes
    }

    fn fields_message(tag: u8, fields: &[(u8, &str)]) -> Vec<u8> {
        let mut body: Vec<u8> =
            fields.iter().flat_map(|(key, value)| [*key].into_iter().chain(c_strings(&[value]))).collect();
        body.push(0);
        message(tag, &body)
    }
}

/// The state that a server shares with the test.
#[derive(Default)]
struct Shared {
    connections: AtomicUsize,
    cancels: Mutex<Vec<CancelKey>>,
    messages: Mutex<Vec<(usize, Message)>>,
    open: Mutex<Vec<TcpStream>>,
    stopping: AtomicBool,
    ignore_cancels: AtomicBool,
}

/// A listening socket. Each connection runs the script in its own thread.
pub struct FaultyServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl FaultyServer {
    /// Starts a server. `script` serves each connection that is not a cancel request, after its startup packet was read
    /// and before it is answered. An error closes the connection, because the gateway may disconnect at any time.
    ///
    /// # Panics
    /// If no port is free.
    pub fn start(script: impl Fn(&mut FaultyConnection) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared::default());
        let thread_shared = Arc::clone(&shared);
        let acceptor = thread::spawn(move || accept(&listener, &thread_shared, &Arc::new(script)));
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// Starts a server that accepts every login and answers every message with an empty result.
    pub fn answering() -> Self {
        Self::start(|connection| {
            connection.log_in()?;
            connection.answer_all()
        })
    }

    /// The address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of connections so far, without cancel requests.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// The keys of the cancel requests so far.
    pub fn cancels(&self) -> Vec<CancelKey> {
        self.shared.cancels.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes the server read later cancel requests and neither answer nor close them.
    pub fn ignore_cancels(&self) {
        self.shared.ignore_cancels.store(true, Ordering::SeqCst);
    }

    /// All messages received so far, each with the number of its connection (from 0).
    pub fn messages(&self) -> Vec<(usize, Message)> {
        self.shared.messages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The number of messages of this type received so far.
    pub fn count(&self, tag: u8) -> usize {
        self.messages().iter().filter(|(_, message)| message.tag == tag).count()
    }
}

impl Drop for FaultyServer {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then checks the flag.
        drop(TcpStream::connect(self.address));
        for stream in self.shared.open.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            drop(stream.shutdown(Shutdown::Both));
        }
        if let Some(acceptor) = self.acceptor.take() {
            drop(acceptor.join());
        }
    }
}

type Script = dyn Fn(&mut FaultyConnection) -> io::Result<()> + Send + Sync;

fn accept<S>(listener: &TcpListener, shared: &Arc<Shared>, script: &Arc<S>)
where
    S: Fn(&mut FaultyConnection) -> io::Result<()> + Send + Sync + 'static,
{
    for stream in listener.incoming() {
        if shared.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let (shared, script) = (Arc::clone(shared), Arc::clone(script));
        thread::spawn(move || {
            let duplicate = stream.try_clone();
            drop(serve(stream, &shared, script.as_ref()));
            // The server keeps a duplicate, which would hold the connection open.
            drop(duplicate.and_then(|stream| stream.shutdown(Shutdown::Both)));
        });
    }
}

fn serve(stream: TcpStream, shared: &Arc<Shared>, script: &Script) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(10 * TIMEOUT))?;
    shared.open.lock().unwrap_or_else(PoisonError::into_inner).push(stream.try_clone()?);
    let mut connection = FaultyConnection { stream, shared: Arc::clone(shared), number: 0, startup: Vec::new() };
    loop {
        let packet = connection.read_packet()?;
        match packet.first_chunk().map(|code| u32::from_be_bytes(*code)) {
            Some(SSL_REQUEST | GSS_REQUEST) => connection.send(b"N")?,
            Some(CANCEL_REQUEST) => return connection.cancel_request(&packet),
            _ => {
                connection.number = shared.connections.fetch_add(1, Ordering::SeqCst);
                connection.startup = packet;
                return script(&mut connection);
            }
        }
    }
}

/// A connection of a [`FaultyServer`].
pub struct FaultyConnection {
    stream: TcpStream,
    shared: Arc<Shared>,
    number: usize,
    startup: Vec<u8>,
}

impl FaultyConnection {
    /// The number of this connection, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// The body of the startup packet.
    pub fn startup(&self) -> &[u8] {
        &self.startup
    }

    /// The process id that [`Self::log_in`] sends.
    pub fn process(&self) -> u32 {
        1_000 + u32::try_from(self.number).expect("few connections")
    }

    /// Accepts the login.
    ///
    /// # Errors
    /// If the peer has disconnected.
    pub fn log_in(&mut self) -> io::Result<()> {
        let login = reply::login(self.process());
        self.send(&login)
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// If the peer has disconnected.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads one message and adds it to [`FaultyServer::messages`].
    ///
    /// # Errors
    /// If the peer has disconnected.
    pub fn read(&mut self) -> io::Result<Message> {
        let mut tag = [0];
        self.stream.read_exact(&mut tag)?;
        let message = Message { tag: tag[0], body: self.read_packet()? };
        self.shared.messages.lock().unwrap_or_else(PoisonError::into_inner).push((self.number, message.clone()));
        Ok(message)
    }

    /// Reads messages until one of these types.
    ///
    /// # Errors
    /// If the peer has disconnected.
    pub fn read_until(&mut self, tags: &[u8]) -> io::Result<Message> {
        loop {
            let message = self.read()?;
            if tags.contains(&message.tag) {
                return Ok(message);
            }
        }
    }

    /// Answers every message with an empty result until the peer disconnects.
    ///
    /// # Errors
    /// Always, when the peer disconnects.
    pub fn answer_all(&mut self) -> io::Result<()> {
        loop {
            let message = self.read()?;
            self.answer(&message)?;
        }
    }

    /// Answers one message with an empty result and status idle.
    ///
    /// # Errors
    /// If the peer has disconnected.
    pub fn answer(&mut self, message: &Message) -> io::Result<()> {
        let bytes = match message.tag {
            b'Q' => [reply::complete(&verb(&message.text())), reply::ready(b'I')].concat(),
            b'P' => reply::message(b'1', &[]),
            b'B' => reply::message(b'2', &[]),
            b'C' => reply::message(b'3', &[]),
            b'D' if message.body.first() == Some(&b'S') => {
                [reply::message(b't', &[0, 0]), reply::message(b'n', &[])].concat()
            }
            b'D' => reply::message(b'n', &[]),
            b'E' => reply::complete("SELECT 0"),
            b'S' => reply::ready(b'I'),
            b'X' => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Vec::new(),
        };
        self.send(&bytes)
    }

    /// Reads and discards all input until the peer disconnects.
    ///
    /// # Errors
    /// Never; the type fits the end of a script.
    pub fn discard_input(&mut self) -> io::Result<()> {
        drop(io::copy(&mut self.stream, &mut io::sink()));
        Ok(())
    }

    fn cancel_request(&mut self, packet: &[u8]) -> io::Result<()> {
        let process = packet.get(4..8).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes));
        let key = CancelKey { process, secret: packet.get(8..).unwrap_or_default().to_vec() };
        self.shared.cancels.lock().unwrap_or_else(PoisonError::into_inner).push(key);
        if self.shared.ignore_cancels.load(Ordering::SeqCst) {
            return self.discard_input();
        }
        Ok(())
    }

    fn read_packet(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = (u32::from_be_bytes(length) as usize).checked_sub(4).ok_or(io::ErrorKind::InvalidData)?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }
}

fn verb(sql: &str) -> String {
    let word = sql.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default().to_uppercase();
    match word.as_str() {
        "SELECT" => "SELECT 0".to_owned(),
        "DISCARD" | "DEALLOCATE" => format!("{word} ALL"),
        _ => word,
    }
}
