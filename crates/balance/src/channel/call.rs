//! One call: pick, send, and once more elsewhere if that is safe.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use http::uri::{PathAndQuery, Uri};
use http::{HeaderValue, header, request};
use hyper::body::Incoming;
use tokio::time::sleep;
use tonic::body::Body;
use tonic::{Code, Status};

use super::body::{Answer, lost};
use super::deadline::{Deadline, in_time};
use super::node::Node;
use super::replay::Replay;
use super::retry::{health, is_unprocessed, pushback, status_of};
use super::{Calls, Shared, refused};
use crate::balancer::Patience;
use crate::endpoint::EndpointId;
use crate::lease::{Lease, Outcome};
use crate::pick::Pick;
use crate::policy::hash_of;
use crate::service_config::{MethodConfig, RetryPolicy};

/// A call that no server began may be sent again so often: to as many backends that end at the same moment.
const UNBEGUN_MAX: u32 = 16;

pub(super) struct Call {
    shared: Arc<Shared>,
    calls: Arc<Calls>,
    method: Option<Arc<MethodConfig>>,
    head: request::Parts,
    body: Replay,
    hash: Option<u64>,
    /// Until all of the answer is there.
    whole: Option<Deadline>,
    /// Until the answer begins.
    deadline: Option<Deadline>,
    tried: Vec<EndpointId>,
    /// Attempts that a server may have begun.
    attempts: u32,
    unbegun: u32,
}

/// What became of an attempt.
enum Attempted {
    Answered(http::Response<Incoming>, Lease<Node>),
    /// No server began it.
    Unbegun(Status),
    Failed(Status),
}

/// What to do next.
enum Next {
    Return(Result<http::Response<Body>, Status>),
    Again(Duration),
}

impl Call {
    pub(super) fn new(shared: Arc<Shared>, request: http::Request<Body>) -> Self {
        let calls = Arc::clone(&shared.calls.read().unwrap_or_else(PoisonError::into_inner));
        let (mut head, body) = request.into_parts();
        let method = calls.config.method(head.uri.path()).cloned();
        let header = calls.config.hash_header.as_ref();
        let hash = header.and_then(|name| head.headers.get(name)).map(|value| hash_of(value.as_bytes()));
        complete(&mut head, &shared);
        let body = Replay::new(body, shared.replay_bytes_max);
        let (whole, deadline, tried) = (None, None, Vec::new());
        Self { calls, method, head, body, hash, whole, deadline, tried, attempts: 0, unbegun: 0, shared }
    }

    pub(super) async fn run(mut self) -> Result<http::Response<Body>, Status> {
        let of_method = self.method.as_ref().and_then(|method| method.timeout);
        self.whole = Deadline::new(&self.head.headers, of_method);
        let begins = self.shared.timeout.filter(|_| of_method.is_none()).map(Deadline::within);
        self.deadline = self.whole.map(|whole| whole.or_sooner(begins)).or(begins);
        loop {
            let attempted = self.attempt().await?;
            match self.judge(attempted) {
                Next::Return(result) => return result,
                Next::Again(pause) if pause.is_zero() => (),
                Next::Again(pause) => in_time(self.deadline, sleep(pause)).await?,
            }
        }
    }

    /// Sends the call to a backend. An error: there is no backend, no time, or nothing left to send.
    async fn attempt(&mut self) -> Result<Attempted, Status> {
        let lease = in_time(self.deadline, self.pick()).await??;
        let id = lease.endpoint().id();
        let cause = || Arc::new(io::Error::new(io::ErrorKind::NotConnected, "the connection was lost"));
        // Lost between its pick and now: the next pick knows, and waits if it was the last.
        let Some(mut sender) = lease.sender(|| self.shared.balancer.lost_if_ready(id, cause())) else {
            self.tried.push(id);
            return Ok(Attempted::Unbegun(Status::unavailable("the connection was lost")));
        };
        let Some(body) = self.body.attempt() else {
            return Err(Status::unavailable("the connection was lost, and the request is too long to be sent again"));
        };
        // Whoever has no time to answer has not failed to.
        self.deadline.map_or(Ok(()), |deadline| deadline.check())?;
        let mut head = self.head.clone();
        if let Some(whole) = &self.whole {
            head.headers.insert("grpc-timeout", whole.header());
        }
        if self.attempts > 0 {
            head.headers.insert("grpc-previous-rpc-attempts", HeaderValue::from(self.attempts));
        }
        self.tried.push(id);
        let sending = sender.try_send_request(http::Request::from_parts(head, body));
        let sent = match in_time(self.deadline, sending).await {
            Ok(sent) => sent,
            Err(late) => {
                lease.finish(Some(Instant::now()), Outcome::Failure);
                return Err(late);
            }
        };
        Ok(match sent {
            Ok(response) => Attempted::Answered(response, lease),
            Err(mut failed) => {
                let unbegun = failed.take_message().is_some() || is_unprocessed(failed.error());
                let status = lost(failed.error());
                lease.finish(None, if unbegun { Outcome::Neutral } else { Outcome::Failure });
                if unbegun { Attempted::Unbegun(status) } else { Attempted::Failed(status) }
            }
        })
    }

    async fn pick(&self) -> Result<Lease<Node>, Status> {
        let of_method = self.method.as_ref().and_then(|method| method.wait_for_ready);
        let waits = of_method.unwrap_or(self.shared.wait_for_ready);
        let patience = if waits { Patience::WaitForReady } else { Patience::FailFast };
        let pick = Pick::new().at(Instant::now()).tried(&self.tried);
        let pick = self.hash.map_or(pick, |hash| pick.hash(hash));
        let balancer = &self.shared.balancer;
        balancer.pick_ready(&pick, patience).await.map_err(|error| refused(&error))
    }

    /// Is this the result, or is it worth another attempt?
    fn judge(&mut self, attempted: Attempted) -> Next {
        match attempted {
            Attempted::Unbegun(_) if self.unbegun < UNBEGUN_MAX => {
                self.unbegun += 1;
                Next::Again(Duration::ZERO)
            }
            Attempted::Unbegun(status) => Next::Return(Err(status)),
            Attempted::Failed(status) => match self.again(Code::Unavailable, None) {
                Some(pause) => Next::Again(pause),
                None => Next::Return(Err(status)),
            },
            Attempted::Answered(response, lease) => self.judge_answer(response, lease),
        }
    }

    fn judge_answer(&mut self, response: http::Response<Incoming>, lease: Lease<Node>) -> Next {
        let now = Instant::now();
        // Without a status in its head, the answer has begun, and the call is committed.
        if let Some(code) = status_of(response.headers()) {
            let pause = self.again(code, pushback(response.headers()));
            lease.finish(Some(now), health(code));
            let Some(pause) = pause else { return Next::Return(Ok(response.map(Body::new))) };
            return Next::Again(pause);
        }
        self.body.commit();
        if let Some(throttle) = &self.calls.throttle {
            throttle.succeed();
        }
        let (shared, whole) = (Arc::clone(&self.shared), self.whole);
        let answer = response.map(|incoming| Body::new(Answer::new(incoming, lease, shared, now, whole)));
        Next::Return(Ok(answer))
    }

    /// The pause before another attempt, if the method's policy grants one.
    fn again(&mut self, code: Code, pushback: Option<Option<Duration>>) -> Option<Duration> {
        self.attempts += 1;
        let policy: &RetryPolicy = self.method.as_ref()?.retry.as_ref()?;
        if !policy.codes.contains(&i32::from(code)) {
            return None;
        }
        // A failure counts even if it is the last one, or the server does not want another attempt.
        let throttled = self.calls.throttle.as_ref().is_some_and(|throttle| !throttle.fail());
        if throttled || self.attempts >= policy.attempts_max {
            return None;
        }
        pushback.unwrap_or_else(|| Some(policy.pause(self.attempts, fastrand::f64())))
    }
}

/// What every request of a channel has.
fn complete(head: &mut request::Parts, shared: &Shared) {
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let (scheme, authority) = shared.origin.clone();
    let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build();
    // The three parts were parsed before, so they fit together; else the request goes out as it came.
    head.uri = uri.unwrap_or_else(|_| head.uri.clone());
    head.version = http::Version::HTTP_2;
    let agent = HeaderValue::from_static(concat!("tidegate-balance/", env!("CARGO_PKG_VERSION")));
    head.headers.entry(header::USER_AGENT).or_insert(agent);
}
