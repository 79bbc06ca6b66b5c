//! A socket in the folder of a stream, by which other processes of the same user command it: `tidegate backfill`.
//!
//! A request and its reply are a line of JSON each.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_config::stream::StreamKeys;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use super::store::folder;
use crate::status::StreamStatus;

const NAME: &str = "control";
/// The longest request in bytes: two names of at most 63 bytes, which JSON may write as six characters each.
const REQUEST_BYTES_MAX: usize = 4 * 1024;
/// The longest reply in bytes.
const REPLY_BYTES_MAX: u64 = 64 * 1024;
/// Limit for a process to send its request, and to read the reply.
const CLIENT_MAX: Duration = Duration::from_secs(5);
/// Limit for the stream to begin a copy.
const BEGIN_MAX: Duration = Duration::from_secs(60);
/// The delay after a connection that could not be accepted.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ControlRequest {
    /// Copy a table again.
    Backfill { schema: String, table: String },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ControlReply {
    Done,
    Error(String),
}

/// The listening socket. It is removed when the value is dropped.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // A socket that stays refuses connections.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl ControlSocket {
    /// Listens in the folder of the stream, which the caller owns; `None` without a folder. The stream does not depend on it.
    pub(super) fn bind(keys: &StreamKeys) -> Option<Self> {
        let path = folder(keys)?.join(NAME);
        // A process that was killed has left its socket.
        let _ = std::fs::remove_file(&path);
        match UnixListener::bind(&path) {
            Ok(listener) => Some(Self { listener, path }),
            Err(error) => {
                let path = path.display();
                tracing::warn!(stream = keys.name, %path, %error, "no control socket: `tidegate backfill` cannot be used");
                None
            }
        }
    }

    /// Serves requests, one after another, until it is dropped.
    pub(crate) async fn run(&self, status: &StreamStatus) -> std::convert::Infallible {
        loop {
            match self.listener.accept().await {
                Ok((socket, _)) => {
                    if let Err(error) = serve(socket, status).await {
                        tracing::debug!(stream = status.name(), %error, "a command was not served");
                    }
                }
                Err(error) => {
                    tracing::warn!(stream = status.name(), %error, "cannot accept a command");
                    tokio::time::sleep(ACCEPT_DELAY).await;
                }
            }
        }
    }
}

async fn serve(mut socket: UnixStream, status: &StreamStatus) -> io::Result<()> {
    let uid = socket.peer_cred()?.uid();
    let own = rustix::process::geteuid().as_raw();
    if uid != own && uid != 0 {
        tracing::warn!(stream = status.name(), uid, "a command of another user was refused");
        return Ok(());
    }
    let line = tokio::time::timeout(CLIENT_MAX, read_line(&mut socket)).await??;
    let reply = match serde_json::from_slice(&line) {
        Ok(ControlRequest::Backfill { schema, table }) => backfill(status, &schema, &table).await,
        Err(error) => ControlReply::Error(format!("the request is not understood: {error}")),
    };
    let mut text = serde_json::to_vec(&reply)?;
    text.push(b'\n');
    tokio::time::timeout(CLIENT_MAX, socket.write_all(&text)).await?
}

async fn read_line(socket: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while !line.contains(&b'\n') && line.len() < REQUEST_BYTES_MAX {
        if socket.read_buf(&mut line).await? == 0 {
            break;
        }
    }
    Ok(line)
}

async fn backfill(status: &StreamStatus, schema: &str, table: &str) -> ControlReply {
    let Some(reply) = status.backfill(schema, table) else {
        return ControlReply::Error("the stream has too many requests, or is ending".to_owned());
    };
    match tokio::time::timeout(BEGIN_MAX, reply.wait()).await {
        Ok(Ok(())) => ControlReply::Done,
        Ok(Err(reason)) => ControlReply::Error(reason),
        Err(_) => {
            ControlReply::Error(format!("no answer within {BEGIN_MAX:?}; SHOW STREAMS or the log shows the copy"))
        }
    }
}

/// Asks the stream `name` with its state in `state` to copy a table again. Blocks until the copy has begun.
///
/// # Errors
/// No stream runs with this state, or it refuses.
pub fn request_backfill(state: &Path, name: &str, schema: &str, table: &str) -> io::Result<()> {
    let path = state.join(name).join(NAME);
    let failed = |error: io::Error| {
        let path = path.display();
        io::Error::new(error.kind(), format!("no stream that can copy a table listens at {path}: {error}"))
    };
    let mut socket = std::os::unix::net::UnixStream::connect(&path).map_err(failed)?;
    socket.set_read_timeout(Some(BEGIN_MAX + CLIENT_MAX))?;
    socket.set_write_timeout(Some(CLIENT_MAX))?;
    let request = ControlRequest::Backfill { schema: schema.to_owned(), table: table.to_owned() };
    let mut text = serde_json::to_vec(&request)?;
    text.push(b'\n');
    socket.write_all(&text)?;
    let mut line = Vec::new();
    BufReader::new(socket.take(REPLY_BYTES_MAX)).read_until(b'\n', &mut line)?;
    match serde_json::from_slice(&line) {
        Ok(ControlReply::Done) => Ok(()),
        Ok(ControlReply::Error(reason)) => Err(io::Error::other(reason)),
        Err(_) => Err(io::Error::other("the stream has ended before it answered")),
    }
}
