//! The side of the new process.

use std::{collections::BTreeMap, convert::Infallible, io, os::fd::OwnedFd};

use tokio::{net::UnixStream, sync::mpsc};

use crate::{
    frame::{FrameReader, HandoverFrame, send_frame},
    record::{SessionRecord, wipe},
};

/// A cancel request for the old process. `asker` is dropped when it has been processed.
#[derive(Debug)]
pub struct ForwardedCancel {
    /// Process id of the cancel key.
    pub pid: u32,
    /// Secret of the cancel key.
    pub key: Vec<u8>,
    /// Dropped when the request has been processed.
    pub asker: mpsc::Sender<Infallible>,
}

/// The sockets of a session.
#[derive(Debug)]
pub struct SessionSockets {
    /// Socket of the client.
    pub client: OwnedFd,
    /// Socket of the server that the client is pinned to.
    pub server: Option<OwnedFd>,
}

impl SessionSockets {
    /// Duplicates the descriptors.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        let server = self.server.as_ref().map(OwnedFd::try_clone).transpose()?;
        Ok(Self { client: self.client.try_clone()?, server })
    }
}

/// Adopts sessions.
pub trait IncomingSessions {
    /// A session that can be served without a further check.
    type Ready;

    /// Checks a session. Nothing may be sent to its client and its server, and nothing read.
    ///
    /// # Errors
    /// Why the session has to stay with the old process.
    fn check(&self, record: SessionRecord, sockets: SessionSockets) -> Result<Self::Ready, String>;

    /// Serves a session, which belongs to this process from now on.
    fn serve(&self, session: Self::Ready);

    /// The streams of the old process have ended.
    fn on_streams_ended(&self);
}

/// Receives sessions and forwards cancel requests until the old process has ended or failed.
///
/// # Errors
/// Errors of the socket, and messages that no process of this version sends.
///
/// # Cancel safety
/// Safe for sessions: a session without an acknowledgement stays with the old process.
pub async fn receive_sessions<S: IncomingSessions>(
    stream: &UnixStream,
    sessions: &S,
    cancels: &mut mpsc::Receiver<ForwardedCancel>,
) -> io::Result<()> {
    let mut reader = FrameReader::default();
    let mut askers = BTreeMap::new();
    let mut requests = 0;
    let mut server = None;
    loop {
        tokio::select! {
            frame = reader.next(stream) => match frame? {
                None => return Ok(()),
                Some((HandoverFrame::Server(number), fd)) => server = fd.map(|fd| (number, fd)),
                Some((HandoverFrame::Session { number, record }, fd)) => {
                    let server = server.take().filter(|(session, _)| *session == number).map(|(_, fd)| fd);
                    let sockets = fd.map(|client| SessionSockets { client, server });
                    adopt(stream, sessions, number, record, sockets).await?;
                }
                Some((HandoverFrame::Cancelled(number), _)) => drop(askers.remove(&number)),
                Some((HandoverFrame::StreamsEnded, _)) => sessions.on_streams_ended(),
                Some(_) => {}
            },
            Some(ForwardedCancel { pid, key, asker }) = cancels.recv() => {
                requests += 1;
                // Forget requests whose sender has disconnected.
                askers.retain(|_, asker: &mut mpsc::Sender<Infallible>| !asker.is_closed());
                askers.insert(requests, asker);
                send_frame(stream, &HandoverFrame::Cancel { number: requests, pid, key }.encode(), None).await?;
            }
        }
    }
}

async fn adopt<S: IncomingSessions>(
    stream: &UnixStream,
    sessions: &S,
    number: u64,
    mut bytes: Vec<u8>,
    sockets: Option<SessionSockets>,
) -> io::Result<()> {
    let record = SessionRecord::decode(&bytes);
    wipe(&mut bytes);
    let checked = match (record, sockets) {
        (Ok(record), Some(sockets)) if record.server.is_some() == sockets.server.is_some() => {
            sessions.check(record, sockets)
        }
        (Err(error), _) => Err(error.to_string()),
        (_, _) => Err("its socket is missing".to_owned()),
    };
    match checked {
        Ok(session) => {
            send_frame(stream, &HandoverFrame::Accepted(number).encode(), None).await?;
            // The acknowledgement is in the socket, so it counts even if the old process stops waiting now.
            sessions.serve(session);
            Ok(())
        }
        Err(reason) => send_frame(stream, &HandoverFrame::Refused { number, reason }.encode(), None).await,
    }
}
