//! The side of the new process.

use std::{collections::BTreeMap, convert::Infallible, io, os::fd::OwnedFd};

use tokio::{net::UnixStream, sync::mpsc};

use crate::{
    frame::{Frame, FrameReader, send_frame},
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

/// Adopts sessions.
pub trait IncomingSessions {
    /// A session that can be served without a further check.
    type Ready;

    /// Checks a session. Nothing may be sent to its client, and nothing read.
    ///
    /// # Errors
    /// Why the session has to stay with the old process.
    fn check(&self, record: SessionRecord, fd: OwnedFd) -> Result<Self::Ready, String>;

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
    loop {
        tokio::select! {
            frame = reader.next(stream) => match frame? {
                None => return Ok(()),
                Some((Frame::Session { number, record }, fd)) => adopt(stream, sessions, number, record, fd).await?,
                Some((Frame::Cancelled(number), _)) => drop(askers.remove(&number)),
                Some((Frame::StreamsEnded, _)) => sessions.on_streams_ended(),
                Some(_) => {}
            },
            Some(ForwardedCancel { pid, key, asker }) = cancels.recv() => {
                requests += 1;
                // Forget requests whose sender has disconnected.
                askers.retain(|_, asker: &mut mpsc::Sender<Infallible>| !asker.is_closed());
                askers.insert(requests, asker);
                send_frame(stream, &Frame::Cancel { number: requests, pid, key }.encode(), None).await?;
            }
        }
    }
}

async fn adopt<S: IncomingSessions>(
    stream: &UnixStream,
    sessions: &S,
    number: u64,
    mut bytes: Vec<u8>,
    fd: Option<OwnedFd>,
) -> io::Result<()> {
    let record = SessionRecord::decode(&bytes);
    wipe(&mut bytes);
    let checked = match (record, fd) {
        (Ok(record), Some(fd)) => sessions.check(record, fd),
        (Err(error), _) => Err(error.to_string()),
        (_, None) => Err("its socket is missing".to_owned()),
    };
    match checked {
        Ok(session) => {
            send_frame(stream, &Frame::Accepted(number).encode(), None).await?;
            // The acknowledgement is in the socket, so it counts even if the old process stops waiting now.
            sessions.serve(session);
            Ok(())
        }
        Err(reason) => send_frame(stream, &Frame::Refused { number, reason }.encode(), None).await,
    }
}
