//! Probes one server repeatedly.
//!
//! The connection stays open between queries, so its end reveals a crash before the next query. It is replaced after a few
//! queries: during a smart shutdown, a server rejects new connections but serves existing ones, and ends only when they are
//! closed.

use std::{future::Future, pin::pin, sync::Arc, task::Poll, time::Duration};

use tidegate_link::Reactor;
use tidegate_wire::{
    Frames,
    backend::{self, ErrorFields},
    frontend, sqlstate,
};
use tokio::sync::mpsc;

use super::{
    cluster::ClusterNode,
    control::ClusterEvent,
    observation::{Observation, PROBE_QUERY, ProbeReport, SHORT_PROBE_QUERY},
};
use tidegate_config::RouteConfig;
use tidegate_pg_client::{ConnectError, Connection};

/// Sends reports to the controller.
#[derive(Clone, Debug)]
pub struct ReportSender(pub(super) mpsc::Sender<ClusterEvent>);

/// Queries per connection.
const QUERIES_MAX: u32 = 5;

/// Minimum pause between queries, however often a probe is requested. The pause doubles after each query without a change, up to
/// the interval.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// Limit of an answer; a valid one has a few dozen bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Probes until the server is removed from the cluster. `connect` logs in with the n-th available login.
pub async fn run_probe(
    node: Arc<ClusterNode>,
    sink: ReportSender,
    reactor: Reactor,
    rules: RouteConfig,
    connect: impl AsyncFn(usize) -> Result<Connection, ConnectError>,
) {
    let mut probe = Probe { connection: None, queries: 0, login: 0, query: PROBE_QUERY };
    let mut pause = PAUSE_MIN;
    let mut last: Option<ProbeReport> = None;
    while !node.is_removed() {
        let report = match limited(&reactor, rules.probe_timeout, probe.query_server(&connect)).await {
            Some(report) => report,
            None => {
                probe.connection = None;
                ProbeReport::Silent
            }
        };
        let has_changed = last.as_ref().is_none_or(|last| !last.agrees_with(&report));
        last = Some(report.clone());
        // The receiver is a task that never blocks; if it has ended, reports are not needed.
        if sink.0.send(ClusterEvent::Report(node.name.clone(), report)).await.is_err() {
            return;
        }
        let was_requested = probe.wait_for_next(&reactor, rules.probe_interval, pause, &node).await;
        pause = if was_requested && !has_changed {
            (pause * 2).min(rules.probe_interval.max(PAUSE_MIN))
        } else {
            PAUSE_MIN
        };
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
    /// Queries on this connection.
    queries: u32,
    /// Index of the login to use.
    login: usize,
    query: &'static str,
}

/// Reason for a missing answer.
enum ProbeError {
    /// The connection broke, or the server closed it.
    Broken(String),
    /// The server rejected the query.
    Refused(String),
    /// A function is missing, or the user may not call it.
    Unsupported(String),
}

impl Probe {
    async fn query_server(&mut self, connect: &impl AsyncFn(usize) -> Result<Connection, ConnectError>) -> ProbeReport {
        if self.queries < QUERIES_MAX
            && let Some(mut connection) = self.connection.take()
            && let Ok(observation) = query_server(&mut connection, self.query).await
        {
            self.queries += 1;
            self.connection = Some(connection);
            return ProbeReport::Answer(observation);
        }
        // A broken connection may have been terminated by an administrator; only a new one shows the state of the server. The old
        // one is closed first, so that a server never has two.
        self.connection = None;
        let mut connection = match connect(self.login).await {
            Ok(connection) => connection,
            Err(error) => return self.report_refusal(&error),
        };
        match query_server(&mut connection, self.query).await {
            Ok(observation) => {
                (self.connection, self.queries) = (Some(connection), 1);
                ProbeReport::Answer(observation)
            }
            Err(ProbeError::Broken(error)) => ProbeReport::Down(error),
            Err(ProbeError::Refused(error)) => ProbeReport::Refused(error),
            Err(ProbeError::Unsupported(error)) => {
                // The next probe uses the short query.
                self.query = SHORT_PROBE_QUERY;
                ProbeReport::Refused(error)
            }
        }
    }

    fn report_refusal(&mut self, error: &ConnectError) -> ProbeReport {
        match error {
            ConnectError::Refused(body) => {
                let code = ErrorFields::decode(body).ok().and_then(|fields| fields.code());
                if matches!(
                    code,
                    Some(sqlstate::CANNOT_CONNECT_NOW | sqlstate::ADMIN_SHUTDOWN | sqlstate::CRASH_SHUTDOWN)
                ) {
                    return ProbeReport::Closed(error.to_string());
                }
                self.login += 1;
                ProbeReport::Refused(error.to_string())
            }
            ConnectError::Secret(_) => {
                self.login += 1;
                ProbeReport::Refused(error.to_string())
            }
            ConnectError::Closed(_) | ConnectError::Removed(_) => ProbeReport::NotSent(error.to_string()),
            error if error.is_local_fault() => ProbeReport::NotSent(error.to_string()),
            error => ProbeReport::Down(error.to_string()),
        }
    }

    /// Waits until the next query is due. Earlier, if a probe is requested and the pause is over, or if the server sends
    /// anything: it reports its promotion and its end. Returns whether a probe was requested.
    async fn wait_for_next(
        &mut self,
        reactor: &Reactor,
        interval: Duration,
        pause: Duration,
        node: &ClusterNode,
    ) -> bool {
        reactor.sleep(PAUSE_MIN.min(interval)).await;
        let mut sleep = pin!(reactor.sleep(interval));
        let mut probe_request = pin!(async {
            reactor.sleep(pause.saturating_sub(PAUSE_MIN)).await;
            node.probe_request.notified().await;
        });
        std::future::poll_fn(|cx| {
            if probe_request.as_mut().poll(cx).is_ready() {
                // A requested probe uses a new connection.
                self.queries = QUERIES_MAX;
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

async fn query_server(connection: &mut Connection, query: &str) -> Result<Observation, ProbeError> {
    let broken = |error: std::io::Error| ProbeError::Broken(error.to_string());
    let mut out = Vec::new();
    frontend::query(query.as_bytes(), &mut out);
    connection.link.write(out);
    connection.link.flush().await.map_err(broken)?;
    let mut bytes = Vec::new();
    loop {
        let chunk = connection.link.read().await.map_err(broken)?;
        if chunk.is_empty() {
            return Err(ProbeError::Broken("the server closed the connection".to_owned()));
        }
        bytes.extend_from_slice(&chunk);
        if let Some(answer) = decode_answer(&bytes)? {
            return Ok(answer);
        }
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(ProbeError::Broken("the answer to the probe query is too long".to_owned()));
        }
    }
}

/// Decodes a complete answer; `None` while it is incomplete.
fn decode_answer(bytes: &[u8]) -> Result<Option<Observation>, ProbeError> {
    let mut observation = None;
    for frame in Frames::new(bytes) {
        let frame = frame.map_err(|error| ProbeError::Broken(error.to_string()))?;
        match frame.tag {
            backend::DATA_ROW => observation = Observation::decode(frame.body()),
            backend::ERROR_RESPONSE => return Err(refusal(frame.body())),
            backend::READY_FOR_QUERY => {
                let unread = || ProbeError::Refused("unexpected answer to the probe query".to_owned());
                return observation.ok_or_else(unread).map(Some);
            }
            _ => {}
        }
    }
    Ok(None)
}

fn refusal(body: &[u8]) -> ProbeError {
    let Ok(fields) = ErrorFields::decode(body) else {
        return ProbeError::Broken("the server sent an invalid error".to_owned());
    };
    let text = fields.message().map(|text| text.into_owned()).unwrap_or_default();
    match fields.severity() {
        // SQLSTATE class 42: missing function or privilege.
        Some("ERROR") if fields.get(b'C').is_some_and(|code| code.starts_with(b"42")) => ProbeError::Unsupported(text),
        Some("ERROR") => ProbeError::Refused(text),
        _ => ProbeError::Broken(text),
    }
}

#[cfg(test)]
mod tests {
    use super::super::observation::ServerOrigin;
    use super::*;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut out = vec![tag];
        out.extend((body.len() as u32 + 4).to_be_bytes());
        out.extend(body);
        out
    }

    #[test]
    fn answer_is_decoded_once_complete() {
        let row = b"\0\x03\0\0\0\x01t\0\0\0\x030/1\xff\xff\xff\xff";
        let whole = [message(b'S', b"in_hot_standby\0on\0"), message(b'D', row), message(b'Z', b"I")].concat();
        for end in 0..whole.len() {
            assert!(matches!(decode_answer(&whole[..end]), Ok(None)), "{end}");
        }
        let expected = Observation { in_recovery: true, lsn: 1, timeline: 0, origin: ServerOrigin::default() };
        assert!(matches!(decode_answer(&whole), Ok(Some(observation)) if observation == expected));
    }

    #[test]
    fn errors_are_classified() {
        let error = |severity: &str, code: &str| {
            let body = format!("S{severity}\0V{severity}\0C{code}\0Mgo away\0\0");
            decode_answer(&message(b'E', body.as_bytes()))
        };
        assert!(matches!(error("FATAL", "57P01"), Err(ProbeError::Broken(text)) if text == "go away"));
        assert!(matches!(error("ERROR", "57014"), Err(ProbeError::Refused(_))));
        assert!(matches!(error("ERROR", "42883"), Err(ProbeError::Unsupported(_))));
        assert!(matches!(decode_answer(&message(b'Z', b"I")), Err(ProbeError::Refused(_))));
    }
}
