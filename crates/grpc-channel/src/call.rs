//! A call: picks a backend, sends the request, and retries it where that is safe.

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use http::uri::{PathAndQuery, Uri};
use http::{HeaderValue, header, request};
use hyper::body::Incoming;
use tidegate_balance::{CallOutcome, EndpointId, EndpointLease, Pick, WaitMode, hash_bytes};
use tokio::time::sleep;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::deadline::{CallDeadline, with_deadline};
use crate::replay_body::ReplayBody;
use crate::response_body::ResponseBody;
use crate::retry::{outcome_of, pushback, status_of};
use crate::service_config::{CallRetryPolicy, MethodConfig};
use crate::state::{CallConfig, ChannelState, no_backend};
use crate::stream_failure::{StreamFailure, is_unprocessed};

/// How often a call that no server began is sent again: as many backends may end at the same moment.
const UNPROCESSED_RETRIES_MAX: u32 = 16;

pub(crate) struct Call {
    state: Arc<ChannelState>,
    config: Arc<CallConfig>,
    method: Option<Arc<MethodConfig>>,
    head: request::Parts,
    body: ReplayBody,
    hash: Option<u64>,
    /// Covers the whole response.
    total_deadline: Option<CallDeadline>,
    /// Covers the start of the response.
    start_deadline: Option<CallDeadline>,
    tried: Vec<EndpointId>,
    /// Attempts that a server may have begun.
    attempts: u32,
    unprocessed: u32,
}

/// Result of one attempt.
enum AttemptResult {
    Response(http::Response<Incoming>, EndpointLease<Backend>),
    /// No server began the call.
    Unprocessed(Status),
    Failed(Status),
}

/// Action after an attempt.
enum NextStep {
    Return(Result<http::Response<Body>, Status>),
    RetryAfter(Duration),
}

impl Call {
    pub(crate) fn new(state: Arc<ChannelState>, request: http::Request<Body>) -> Self {
        let config = Arc::clone(&state.config.read().unwrap_or_else(PoisonError::into_inner));
        let (mut head, body) = request.into_parts();
        let method = config.service.method(head.uri.path()).cloned();
        let hash_header = config.service.hash_header.as_ref();
        let hash = hash_header.and_then(|name| head.headers.get(name)).map(|value| hash_bytes(value.as_bytes()));
        complete(&mut head, &state);
        let body = ReplayBody::new(body, state.replay_bytes_max);
        Self {
            state,
            config,
            method,
            head,
            body,
            hash,
            total_deadline: None,
            start_deadline: None,
            tried: Vec::new(),
            attempts: 0,
            unprocessed: 0,
        }
    }

    pub(crate) async fn run(mut self) -> Result<http::Response<Body>, Status> {
        let method_timeout = self.method.as_ref().and_then(|method| method.timeout);
        self.total_deadline = CallDeadline::new(&self.head.headers, method_timeout);
        let channel_timeout = self.state.timeout.filter(|_| method_timeout.is_none()).map(CallDeadline::after);
        self.start_deadline = self.total_deadline.map(|total| total.or_sooner(channel_timeout)).or(channel_timeout);
        loop {
            let result = self.attempt().await?;
            match self.next_step(result) {
                NextStep::Return(result) => return result,
                NextStep::RetryAfter(delay) if delay.is_zero() => (),
                NextStep::RetryAfter(delay) => with_deadline(self.start_deadline, sleep(delay)).await?,
            }
        }
    }

    /// Sends the call to a backend.
    ///
    /// # Errors
    ///
    /// If there is no backend, the deadline is over, or the request cannot be sent again.
    async fn attempt(&mut self) -> Result<AttemptResult, Status> {
        let lease = with_deadline(self.start_deadline, self.pick()).await??;
        let id = lease.endpoint().id();
        let cause = || Arc::new(io::Error::new(io::ErrorKind::NotConnected, "the connection was lost"));
        // Lost after the pick: the next pick does not return it, and waits if it was the last.
        let Some(mut sender) = lease.sender(|| self.state.balancer.mark_lost_if_ready(id, cause())) else {
            self.tried.push(id);
            return Ok(AttemptResult::Unprocessed(Status::unavailable("the connection was lost")));
        };
        let Some(body) = self.body.attempt() else {
            return Err(Status::unavailable("the connection was lost, and the request is too long to be sent again"));
        };
        // Checked before sending: a backend without time to answer must not be recorded as failed.
        self.start_deadline.map_or(Ok(()), |deadline| deadline.check())?;
        let mut head = self.head.clone();
        if let Some(total) = &self.total_deadline {
            head.headers.insert("grpc-timeout", total.header());
        }
        if self.attempts > 0 {
            head.headers.insert("grpc-previous-rpc-attempts", HeaderValue::from(self.attempts));
        }
        self.tried.push(id);
        let sending = sender.try_send_request(http::Request::from_parts(head, body));
        let sent = match with_deadline(self.start_deadline, sending).await {
            Ok(sent) => sent,
            Err(late) => {
                lease.finish(Some(Instant::now()), CallOutcome::Failure);
                return Err(late);
            }
        };
        Ok(match sent {
            Ok(response) => AttemptResult::Response(response, lease),
            Err(mut failed) => {
                let unprocessed = failed.take_message().is_some() || is_unprocessed(failed.error());
                let StreamFailure { status, outcome } = StreamFailure::new(failed.error());
                if let Some(error) = self.body.error() {
                    // The request ended with an error of the application, which reset the call.
                    lease.finish(None, CallOutcome::Neutral);
                    return Err(error);
                }
                lease.finish(None, if unprocessed { CallOutcome::Neutral } else { outcome });
                if unprocessed { AttemptResult::Unprocessed(status) } else { AttemptResult::Failed(status) }
            }
        })
    }

    async fn pick(&self) -> Result<EndpointLease<Backend>, Status> {
        let of_method = self.method.as_ref().and_then(|method| method.wait_for_ready);
        let waits = of_method.unwrap_or(self.state.wait_for_ready);
        let mode = if waits { WaitMode::WaitForReady } else { WaitMode::FailFast };
        let pick = Pick::new().at(Instant::now()).tried(&self.tried);
        let pick = self.hash.map_or(pick, |hash| pick.hash(hash));
        self.state.balancer.pick_ready(&pick, mode).await.map_err(|error| no_backend(&error))
    }

    fn next_step(&mut self, result: AttemptResult) -> NextStep {
        match result {
            AttemptResult::Unprocessed(_) if self.unprocessed < UNPROCESSED_RETRIES_MAX => {
                self.unprocessed += 1;
                NextStep::RetryAfter(Duration::ZERO)
            }
            AttemptResult::Unprocessed(status) => NextStep::Return(Err(status)),
            AttemptResult::Failed(status) => match self.retry_delay(status.code(), None) {
                Some(delay) => NextStep::RetryAfter(delay),
                None => NextStep::Return(Err(status)),
            },
            AttemptResult::Response(response, lease) => self.on_response(response, lease),
        }
    }

    fn on_response(&mut self, response: http::Response<Incoming>, lease: EndpointLease<Backend>) -> NextStep {
        let now = Instant::now();
        // A head without a status begins a response with a body: the call is committed, and is not retried.
        if let Some(code) = status_of(response.headers()) {
            let delay = self.retry_delay(code, pushback(response.headers()));
            lease.finish(Some(now), outcome_of(code));
            let Some(delay) = delay else { return NextStep::Return(Ok(response.map(Body::new))) };
            return NextStep::RetryAfter(delay);
        }
        self.body.commit();
        if let Some(throttle) = &self.config.throttle {
            throttle.on_success();
        }
        let (state, deadline) = (Arc::clone(&self.state), self.total_deadline);
        let response = response.map(|incoming| Body::new(ResponseBody::new(incoming, lease, state, now, deadline)));
        NextStep::Return(Ok(response))
    }

    /// Delay before a retry, if the method's policy allows one.
    fn retry_delay(&mut self, code: Code, pushback: Option<Option<Duration>>) -> Option<Duration> {
        self.attempts += 1;
        let policy: &CallRetryPolicy = self.method.as_ref()?.retry.as_ref()?;
        if !policy.codes.contains(&i32::from(code)) {
            return None;
        }
        // Counted even if it is the last attempt, or if the server refuses a retry.
        let throttled = self.config.throttle.as_ref().is_some_and(|throttle| !throttle.on_failure());
        if throttled || self.attempts >= policy.attempts_max {
            return None;
        }
        pushback.unwrap_or_else(|| Some(policy.backoff.delay(self.attempts, fastrand::f64())))
    }
}

/// Adds what every request of the channel has.
fn complete(head: &mut request::Parts, state: &ChannelState) {
    let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let (scheme, authority) = state.origin.clone();
    let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build();
    // Three valid parts always make a valid URI; otherwise the request keeps its own.
    head.uri = uri.unwrap_or_else(|_| head.uri.clone());
    head.version = http::Version::HTTP_2;
    let agent = HeaderValue::from_static(concat!("tidegate-grpc-channel/", env!("CARGO_PKG_VERSION")));
    head.headers.entry(header::USER_AGENT).or_insert(agent);
}
