//! Serves the requests of one connection.
//!
//! hyper reads requests and writes responses. It holds two buffers of 8 KiB for a connection of HTTP/1 from its first byte to
//! its last, and connections that wait for changes are many: so a request that is not answered immediately waits outside of
//! hyper, beside its socket alone. Its response is written as hyper would write it, or by a new connection of hyper, which
//! reads [`NEXT`] for it. The next request is read by a new connection of hyper when its first bytes are there.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    task::{Context, Poll},
};

use http::{Method, Request, Response, Version, header::CONNECTION};
use http_body::Body as _;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_supervise::Ctx;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    connections::ConnectionSlot,
    listener::{HttpServer, HttpService, HttpVersions, ListenerOptions},
    response,
    rewound::Rewound,
    stall::{TransferWatch, WatchedBody},
};

/// Bytes of a response to a client of HTTP/2 that are buffered per stream.
const STREAM_BUFFER: usize = 64 << 10;
/// Stands for a request whose response is there.
const NEXT: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
/// [`NEXT`] for the last response of a connection.
const LAST: &[u8] = b"GET / HTTP/1.1\r\nconnection: close\r\n\r\n";

/// Serves the requests of a connection. After a stop, the one in work is the last.
pub(crate) async fn serve_connection<S, I>(stream: I, server: &HttpServer<S>, slot: &Arc<ConnectionSlot>, ctx: &Ctx)
where
    S: HttpService,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    slot.await_head();
    let mut stream = Box::new(Rewound::new(stream));
    let HttpVersions::Http1And2 { streams_max } = server.options.versions else {
        return serve_http1(stream, server, slot, ctx).await;
    };
    match ctx.run_until_cancelled(stream.begins_http2()).await {
        Some(Ok(false)) => serve_http1(stream, server, slot, ctx).await,
        // Connections of HTTP/1 keep no room for the state of HTTP/2.
        Some(Ok(true)) => Box::pin(serve_http2(stream, server, streams_max, slot, ctx)).await,
        // A client that breaks off is not reported.
        Some(Err(_)) | None => {}
    }
}

async fn serve_http2<S, I>(
    stream: Box<Rewound<I>>,
    server: &HttpServer<S>,
    streams_max: u32,
    slot: &Arc<ConnectionSlot>,
    ctx: &Ctx,
) where
    S: HttpService,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let watch = Arc::new(TransferWatch::default());
    let service = service_fn(|request: Request<Incoming>| {
        slot.begin();
        // Boxed, because a task of hyper is larger than most answers.
        let answer = Box::pin(server.service.clone().answer(request, Arc::clone(slot)));
        let watch = Arc::clone(&watch);
        async move { Ok::<_, Infallible>(answer.await.map(|body| WatchedBody::http2(body, watch))) }
    });
    let ListenerOptions { head_limit, head_bytes_max, stall_limit, .. } = server.options;
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(streams_max)
        .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
        .max_send_buf_size(STREAM_BUFFER)
        .keep_alive_interval(head_limit);
    let served = async {
        let mut served = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            _ = served.as_mut() => return,
            () = ctx.cancelled() => served.as_mut().graceful_shutdown(),
        }
        let _ = served.await;
    };
    let stalled = async {
        tokio::time::sleep(head_limit).await;
        watch.stalled(stall_limit).await;
    };
    tokio::select! {
        () = served => {}
        () = stalled => {}
    }
}

type Answering<S> = Pin<Box<dyn Future<Output = Response<<S as HttpService>::Body>> + Send>>;

/// State that hyper's service shares with the task of the connection.
struct Exchange<S: HttpService> {
    /// A request that waits.
    waiting: Option<Answering<S>>,
    /// The response to the next request that hyper reads. Boxed, because a connection that waits has none.
    response: Option<Box<Response<S::Body>>>,
}

impl<S: HttpService> Exchange<S> {
    /// Only the task of the connection locks.
    fn lock(exchange: &Mutex<Self>) -> MutexGuard<'_, Self> {
        exchange.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn serve_http1<S, I>(mut stream: Box<Rewound<I>>, server: &HttpServer<S>, slot: &Arc<ConnectionSlot>, ctx: &Ctx)
where
    S: HttpService,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let exchange = Mutex::new(Exchange::<S> { waiting: None, response: None });
    loop {
        let Some((stays, waiting)) = serve_until_wait(stream, server, &exchange, slot, ctx).await else { return };
        stream = stays;
        let Some(response) = answer_or_leave(waiting, &mut stream).await else { return };
        let head = if ctx.is_stopping() { None } else { response::head(&response) };
        let Some(head) = head else {
            Exchange::lock(&exchange).response = Some(Box::new(response));
            stream.unread(if ctx.is_stopping() { LAST } else { NEXT });
            continue;
        };
        if response::write(&mut *stream, head, response.into_body()).await.is_err() {
            return;
        }
        slot.await_head();
        if ctx.run_until_cancelled(poll_fn(|cx| stream.poll_unread(cx))).await != Some(true) {
            return;
        }
    }
}

/// Waits for the response to a request; `None` if the client leaves.
async fn answer_or_leave<B, I>(
    mut waiting: Pin<Box<dyn Future<Output = Response<B>> + Send>>,
    stream: &mut Rewound<I>,
) -> Option<Response<B>>
where
    I: AsyncRead + Unpin,
{
    let answered = poll_fn(|cx| match waiting.as_mut().poll(cx) {
        Poll::Ready(response) => Poll::Ready(Some(response)),
        // Requests that follow are answered later.
        Poll::Pending => stream.poll_closed(cx).map(|()| None),
    });
    answered.await
}

/// Serves requests until one waits, which is returned with the stream. `None` at the end of the connection.
async fn serve_until_wait<S, I>(
    stream: Box<Rewound<I>>,
    server: &HttpServer<S>,
    exchange: &Mutex<Exchange<S>>,
    slot: &Arc<ConnectionSlot>,
    ctx: &Ctx,
) -> Option<(Box<Rewound<I>>, Answering<S>)>
where
    S: HttpService,
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let response = Exchange::lock(exchange).response.take();
        let exchange = may_wait_outside(&request).then_some(exchange);
        let answering = match &response {
            Some(_) => None,
            None => {
                slot.begin();
                // A connection keeps no room for a request.
                let answering: Answering<S> = Box::pin(server.service.clone().answer(request, Arc::clone(slot)));
                Some(answering)
            }
        };
        HandedAnswer { response, answering, exchange, slot }
    });
    let is_blocked = stream.blocked_writes();
    let mut http = Box::new(http1_builder(server.options).serve_connection(TokioIo::new(stream), service));
    let mut is_ending = false;
    let waiting = poll_fn(|cx| {
        loop {
            // A client that disconnects early is not reported.
            if Pin::new(&mut *http).poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            // Responses to earlier requests that are not written yet are in hyper.
            if !is_blocked.load(Ordering::Relaxed)
                && let Some(waiting) = Exchange::lock(exchange).waiting.take()
            {
                return Poll::Ready(Some(waiting));
            }
            if is_ending || ctx.poll_cancelled(cx).is_pending() {
                return Poll::Pending;
            }
            is_ending = true;
            Pin::new(&mut *http).graceful_shutdown();
        }
    });
    let waiting = waiting.await?;
    let parts = http.into_parts();
    let mut stream = parts.io.into_inner();
    stream.unread(&parts.read_buf);
    Some((stream, waiting))
}

fn http1_builder(options: ListenerOptions) -> http1::Builder {
    let mut http = http1::Builder::new();
    // The time of a head is limited by the slot, whose timer is not set for each request.
    http.header_read_timeout(None).max_buf_size(options.head_bytes_max);
    http.keep_alive(options.versions != HttpVersions::SingleRequest);
    http
}

/// Whether a response to [`NEXT`] is one to the request: hyper needs nothing else of it.
fn may_wait_outside(request: &Request<Incoming>) -> bool {
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        && request.body().is_end_stream()
        && !request.headers().contains_key(CONNECTION)
}

/// The response to a request, which leaves hyper if it has to wait.
struct HandedAnswer<'a, S: HttpService> {
    response: Option<Box<Response<S::Body>>>,
    answering: Option<Answering<S>>,
    /// Where a request waits that may leave.
    exchange: Option<&'a Mutex<Exchange<S>>>,
    slot: &'a Arc<ConnectionSlot>,
}

// Neither the response nor a reference is pinned.
impl<S: HttpService> Unpin for HandedAnswer<'_, S> {}

impl<S: HttpService> HandedAnswer<'_, S> {
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Response<S::Body>> {
        if let Some(response) = self.response.take() {
            return Poll::Ready(*response);
        }
        let shared = || Exchange::lock(self.exchange?).waiting.take();
        let Some(mut answering) = self.answering.take().or_else(shared) else { return Poll::Pending };
        let polled = answering.as_mut().poll(cx);
        if polled.is_pending() {
            match self.exchange {
                Some(exchange) => Exchange::lock(exchange).waiting = Some(answering),
                None => self.answering = Some(answering),
            }
        }
        polled
    }
}

impl<S: HttpService> Future for HandedAnswer<'_, S> {
    type Output = Result<Response<WatchedBody<S::Body>>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let slot = self.slot;
        self.poll_answer(cx).map(|response| Ok(response.map(|body| WatchedBody::http1(body, Arc::clone(slot)))))
    }
}
