//! A client of the shape protocol that costs little: the load shares two cores with what it measures.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

/// The longest pause of a client that was refused.
const RETRY_MAX: Duration = Duration::from_secs(15);

thread_local! {
    /// Bytes that were received; a thread has one, because no client keeps a body.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; 256 << 10]);
}

/// The head of an answer, and the length of its body.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) handle: String,
    pub(crate) offset: String,
    cursor: String,
    retry_after: u64,
    pub(crate) is_up_to_date: bool,
    pub(crate) has_data: bool,
    pub(crate) body_len: u64,
}

impl Reply {
    fn parse(head: &[u8]) -> Self {
        let head = String::from_utf8_lossy(head);
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
        let mut reply = Self { status, ..Self::default() };
        for line in lines {
            let Some((name, value)) = line.split_once(": ") else { continue };
            match name {
                "electric-handle" => reply.handle = value.to_owned(),
                "electric-offset" => reply.offset = value.to_owned(),
                "electric-cursor" => reply.cursor = value.to_owned(),
                "electric-up-to-date" => reply.is_up_to_date = true,
                "electric-has-data" => reply.has_data = value == "true",
                "retry-after" => reply.retry_after = value.parse().unwrap_or(1),
                "content-length" => reply.body_len = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        // The value is empty, and the line ends with the colon.
        reply.is_up_to_date |= head.contains("\r\nelectric-up-to-date:");
        reply
    }
}

/// A connection of HTTP/1.1.
pub(crate) struct Connection {
    stream: TcpStream,
    head: Vec<u8>,
}

impl Connection {
    /// Connects; tries again while nothing listens.
    pub(crate) async fn open(address: SocketAddr) -> io::Result<Self> {
        loop {
            match TcpStream::connect(address).await {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                other => {
                    let stream = other?;
                    stream.set_nodelay(true)?;
                    return Ok(Self { stream, head: Vec::new() });
                }
            }
        }
    }

    pub(crate) async fn get(&mut self, query: &str) -> io::Result<Reply> {
        let request = format!("GET /v1/shape?{query} HTTP/1.1\r\nhost: bench\r\n\r\n");
        self.stream.write_all(request.as_bytes()).await?;
        self.head.clear();
        let mut found: Option<(Reply, u64)> = None;
        loop {
            self.stream.readable().await?;
            let is_whole = SCRATCH.with_borrow_mut(|scratch| {
                let received = match self.stream.try_read(scratch) {
                    Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                    Ok(received) => received,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) => return Err(error),
                };
                if let Some((_, left)) = &mut found {
                    *left = left.saturating_sub(received as u64);
                } else {
                    self.head.extend_from_slice(&scratch[..received]);
                    if let Some(end) = self.head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                        let reply = Reply::parse(&self.head[..end + 2]);
                        let left = reply.body_len.saturating_sub((self.head.len() - end - 4) as u64);
                        found = Some((reply, left));
                    }
                }
                Ok(matches!(found, Some((_, 0))))
            })?;
            if let (true, Some((reply, _))) = (is_whole, found.take_if(|(_, left)| *left == 0)) {
                return Ok(reply);
            }
        }
    }
}

/// A client that follows a shape.
pub(crate) struct Follower {
    connection: Connection,
    /// Table and predicate, encoded.
    shape: String,
    pub(crate) handle: String,
    pub(crate) offset: String,
    cursor: String,
    /// Bytes of bodies.
    pub(crate) bytes: u64,
}

impl Follower {
    pub(crate) async fn connect(address: SocketAddr, shape: &str) -> io::Result<Self> {
        let connection = Connection::open(address).await?;
        Ok(Self::on(connection, shape))
    }

    pub(crate) fn on(connection: Connection, shape: &str) -> Self {
        let offset = "-1".to_owned();
        Self { connection, shape: shape.to_owned(), handle: String::new(), offset, cursor: String::new(), bytes: 0 }
    }

    pub(crate) fn into_connection(self) -> Connection {
        self.connection
    }

    /// Requests what follows. A refusal is repeated after the time that the server asks for.
    pub(crate) async fn next(&mut self, is_live: bool) -> io::Result<Reply> {
        let mut query = format!("{}&offset={}", self.shape, self.offset);
        if !self.handle.is_empty() {
            query = format!("{query}&handle={}", self.handle);
        }
        if is_live {
            query = format!("{query}&live=true&cursor={}", self.cursor);
        }
        loop {
            let reply = self.connection.get(&query).await?;
            match reply.status {
                200 => {
                    self.bytes += reply.body_len;
                    self.handle.clone_from(&reply.handle);
                    self.offset.clone_from(&reply.offset);
                    self.cursor.clone_from(&reply.cursor);
                    return Ok(reply);
                }
                429 | 503 => tokio::time::sleep(Duration::from_secs(reply.retry_after).min(RETRY_MAX)).await,
                status => return Err(io::Error::other(format!("status {status} for {query}"))),
            }
        }
    }

    /// Reads up to the end of the log.
    pub(crate) async fn load(&mut self) -> io::Result<()> {
        while !self.next(false).await?.is_up_to_date {}
        Ok(())
    }
}

/// The query parameters of the shape `tenant = number`.
pub(crate) fn tenant(number: usize) -> String {
    format!("table=items&where=tenant%20%3D%20{number}")
}
