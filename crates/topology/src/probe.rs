//! Asks one server again and again what it is.
//!
//! The connection is kept between questions, and its end is noticed at once: a crash is known before the next question
//! is due. It is made anew after a few questions, since a server that shuts down in its smart mode lets nobody in any
//! more but serves those who are there, and ends only when they have left.

use std::{future::Future, pin::pin, sync::Arc, task::Poll, time::Duration};

use tidegate_link::Reactor;
use tidegate_wire::{
    Frames,
    backend::{self, ErrorFields},
    frontend, sqlstate,
};
use tokio::sync::mpsc;

use super::{
    cluster::Node,
    control::Event,
    observation::{BRIEF_QUESTION, Observation, QUESTION, Report},
};
use tidegate_config::RouteSettings;
use tidegate_pg_client::{ConnectError, Connection};

/// Where reports go.
#[derive(Clone, Debug)]
pub struct Sink(pub(super) mpsc::Sender<Event>);

/// So many questions are asked on one connection.
const QUESTIONS_MAX: u32 = 5;

/// However often somebody wants to know, a server is not asked more often. The pause doubles with each time that there was
/// nothing new, up to the interval.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// An answer is a few dozen bytes; a server that says more than this says something else.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Asks until the server is taken out of the cluster. `connect` logs in with the n-th of the logins that there are.
pub async fn watch(
    node: Arc<Node>,
    sink: Sink,
    reactor: Reactor,
    rules: RouteSettings,
    connect: impl AsyncFn(usize) -> Result<Connection, ConnectError>,
) {
    let mut probe = Probe { connection: None, asked: 0, turn: 0, question: QUESTION };
    let mut pause = PAUSE_MIN;
    let mut known: Option<Report> = None;
    while !node.is_gone() {
        let report = match limited(&reactor, rules.probe_timeout, probe.ask(&connect)).await {
            Some(report) => report,
            None => {
                probe.connection = None;
                Report::Silent
            }
        };
        let is_news = known.as_ref().is_none_or(|known| !known.agrees_with(&report));
        known = Some(report.clone());
        // Whoever reads is a task of its own that never waits; if it has ended, nobody wants to know.
        if sink.0.send(Event::Report(node.name.clone(), report)).await.is_err() {
            return;
        }
        let was_kicked = probe.rest(&reactor, rules.probe_interval, pause, &node).await;
        pause = if was_kicked && !is_news { (pause * 2).min(rules.probe_interval.max(PAUSE_MIN)) } else { PAUSE_MIN };
    }
}

/// The output of `future`, or `None` after `limit`.
async fn limited<T>(reactor: &Reactor, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut sleep = pin!(reactor.sleep(limit));
    std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => sleep.as_mut().poll(cx).map(|()| None),
    })
    .await
}

struct Probe {
    connection: Option<Connection>,
    /// Questions on this connection.
    asked: u32,
    /// Which login is tried.
    turn: usize,
    question: &'static str,
}

/// Why there is no answer.
enum Failure {
    /// The connection broke, or the server ended it.
    Broken(String),
    /// The server would not tell.
    Refused(String),
    /// A function is not there, or not for this user.
    Unable(String),
}

impl Probe {
    async fn ask(&mut self, connect: &impl AsyncFn(usize) -> Result<Connection, ConnectError>) -> Report {
        if self.asked < QUESTIONS_MAX
            && let Some(mut connection) = self.connection.take()
            && let Ok(seen) = ask(&mut connection, self.question).await
        {
            self.asked += 1;
            self.connection = Some(connection);
            return Report::Answer(seen);
        }
        // A connection that broke may have been ended by an administrator: only a fresh one tells of the server. The old
        // one goes first, so that a server is never asked for a second one.
        self.connection = None;
        let mut connection = match connect(self.turn).await {
            Ok(connection) => connection,
            Err(error) => return self.refused(&error),
        };
        match ask(&mut connection, self.question).await {
            Ok(seen) => {
                (self.connection, self.asked) = (Some(connection), 1);
                Report::Answer(seen)
            }
            Err(Failure::Broken(error)) => Report::Down(error),
            Err(Failure::Refused(error)) => Report::Mute(error),
            Err(Failure::Unable(error)) => {
                // The next question is due soon.
                self.question = BRIEF_QUESTION;
                Report::Mute(error)
            }
        }
    }

    fn refused(&mut self, error: &ConnectError) -> Report {
        match error {
            ConnectError::Refused(body) => {
                let code = ErrorFields::decode(body).ok().and_then(|fields| fields.code());
                if matches!(
                    code,
                    Some(sqlstate::CANNOT_CONNECT_NOW | sqlstate::ADMIN_SHUTDOWN | sqlstate::CRASH_SHUTDOWN)
                ) {
                    return Report::Closed(error.to_string());
                }
                self.turn += 1;
                Report::Mute(error.to_string())
            }
            ConnectError::Secret(_) => {
                self.turn += 1;
                Report::Mute(error.to_string())
            }
            ConnectError::Closed(_) | ConnectError::Removed(_) => Report::Unasked(error.to_string()),
            error if error.is_of_gateway() => Report::Unasked(error.to_string()),
            error => Report::Down(error.to_string()),
        }
    }

    /// Until the next question is due; sooner, if somebody wants to know and the pause is over, or if the server says
    /// anything by itself: it tells of its promotion, and of its end. True if somebody wanted to know.
    async fn rest(&mut self, reactor: &Reactor, interval: Duration, pause: Duration, node: &Node) -> bool {
        reactor.sleep(PAUSE_MIN.min(interval)).await;
        let mut sleep = pin!(reactor.sleep(interval));
        let mut kick = pin!(async {
            reactor.sleep(pause.saturating_sub(PAUSE_MIN)).await;
            node.kick.notified().await;
        });
        std::future::poll_fn(|cx| {
            if kick.as_mut().poll(cx).is_ready() {
                // Something went wrong: what an old connection says is not enough.
                self.asked = QUESTIONS_MAX;
                return Poll::Ready(true);
            }
            if let Some(connection) = &mut self.connection
                && let Poll::Ready(read) = connection.link.poll_read(cx)
            {
                match read {
                    Ok(chunk) if !chunk.is_empty() => connection.link.unread(chunk),
                    _ => self.connection = None,
                }
                return Poll::Ready(false);
            }
            sleep.as_mut().poll(cx).map(|()| false)
        })
        .await
    }
}

async fn ask(connection: &mut Connection, question: &str) -> Result<Observation, Failure> {
    let broken = |error: std::io::Error| Failure::Broken(error.to_string());
    let mut out = Vec::new();
    frontend::query(question.as_bytes(), &mut out);
    connection.link.write(out);
    connection.link.flush().await.map_err(broken)?;
    let mut bytes = Vec::new();
    loop {
        let chunk = connection.link.read().await.map_err(broken)?;
        if chunk.is_empty() {
            return Err(Failure::Broken("the server closed the connection".to_owned()));
        }
        bytes.extend_from_slice(&chunk);
        if let Some(answer) = read(&bytes)? {
            return Ok(answer);
        }
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(Failure::Broken("the server sent too long an answer".to_owned()));
        }
    }
}

/// The answer in what has arrived, once it is whole.
fn read(bytes: &[u8]) -> Result<Option<Observation>, Failure> {
    let mut seen = None;
    for frame in Frames::new(bytes) {
        let frame = frame.map_err(|error| Failure::Broken(error.to_string()))?;
        match frame.tag {
            backend::DATA_ROW => seen = Observation::read(frame.body()),
            backend::ERROR_RESPONSE => return Err(refusal(frame.body())),
            backend::READY_FOR_QUERY => {
                let unread = || Failure::Refused("the server answered something else than it was asked".to_owned());
                return seen.ok_or_else(unread).map(Some);
            }
            _ => {}
        }
    }
    Ok(None)
}

fn refusal(body: &[u8]) -> Failure {
    let Ok(fields) = ErrorFields::decode(body) else {
        return Failure::Broken("the server sent an invalid error".to_owned());
    };
    let text = fields.message().map(|text| text.into_owned()).unwrap_or_default();
    match fields.severity() {
        // Class 42: what is not there, or not allowed.
        Some("ERROR") if fields.get(b'C').is_some_and(|code| code.starts_with(b"42")) => Failure::Unable(text),
        Some("ERROR") => Failure::Refused(text),
        _ => Failure::Broken(text),
    }
}

#[cfg(test)]
mod tests {
    use super::super::observation::Origin;
    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        out.extend((body.len() as u32 + 4).to_be_bytes());
        out.extend(body);
        out
    }

    #[test]
    fn an_answer_is_read_once_it_is_whole() {
        let row = b"\0\x03\0\0\0\x01t\0\0\0\x030/1\xff\xff\xff\xff";
        let whole = [message(b'S', b"in_hot_standby\0on\0"), message(b'D', row), message(b'Z', b"I")].concat();
        for end in 0..whole.len() {
            assert!(matches!(read(&whole[..end]), Ok(None)), "{end}");
        }
        let expected = Observation { in_recovery: true, lsn: 1, timeline: 0, origin: Origin::default() };
        assert!(matches!(read(&whole), Ok(Some(seen)) if seen == expected));
    }

    #[test]
    fn errors_end_the_connection_or_the_question() {
        let error = |severity: &str, code: &str| {
            let body = format!("S{severity}\0V{severity}\0C{code}\0Mgo away\0\0");
            read(&message(b'E', body.as_bytes()))
        };
        assert!(matches!(error("FATAL", "57P01"), Err(Failure::Broken(text)) if text == "go away"));
        assert!(matches!(error("ERROR", "57014"), Err(Failure::Refused(_))));
        assert!(matches!(error("ERROR", "42883"), Err(Failure::Unable(_))));
        assert!(matches!(read(&message(b'Z', b"I")), Err(Failure::Refused(_))));
    }
}
