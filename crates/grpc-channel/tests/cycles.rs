//! Channels that end leak nothing. A test program of its own, because it counts the resources of the whole process.

use std::alloc::System;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use tidegate_balance::{Resolve, ResolveFuture, RoundRobin};
use tidegate_grpc_channel::Channel;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tonic::body::Body;
use tower::{Service as _, ServiceExt as _};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Resources of the process.
#[derive(Clone, Copy, Debug)]
struct Resources {
    tasks: usize,
    descriptors: usize,
    bytes: usize,
}

impl Resources {
    fn now() -> Self {
        let stats = ALLOCATOR.stats();
        Self {
            tasks: Handle::current().metrics().num_alive_tasks(),
            descriptors: std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count),
            bytes: stats.bytes_allocated - stats.bytes_deallocated,
        }
    }

    fn is_within(&self, other: &Self) -> bool {
        self.tasks <= other.tasks && self.descriptors <= other.descriptors && self.bytes <= other.bytes
    }
}

/// Starts a server that answers every call with OK. Returns its address and its number of open connections.
async fn server() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
    let address = listener.local_addr().expect("the listener is bound");
    let open = Arc::new(AtomicUsize::new(0));
    let counted = open.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let counted = counted.clone();
            tokio::spawn(async move {
                serve(stream).await;
                counted.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (address, open)
}

async fn serve(stream: TcpStream) {
    let answer = service_fn(|_| async {
        let answer = http::Response::builder().header("content-type", "application/grpc").header("grpc-status", "0");
        Ok::<_, Infallible>(answer.body(Body::empty()).expect("a response"))
    });
    let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), answer).await;
}

async fn call(channel: &Channel) -> bool {
    let request = http::Request::post("/t/Echo").body(Body::empty()).expect("a request");
    let mut channel = channel.clone();
    match channel.ready().await {
        Ok(ready) => ready.call(request).await.is_ok(),
        Err(_) => false,
    }
}

struct Hang;

impl Resolve for Hang {
    fn resolve(&mut self) -> ResolveFuture<'_> {
        Box::pin(std::future::pending())
    }
}

/// Builds a channel, calls, and ends it in one of four ways.
async fn cycle(number: usize, target: &str) {
    if number % 4 == 3 {
        // Ends during a lookup that a call waits for.
        let builder = Channel::builder("orders").resolver(Box::new(|| Ok(Box::new(Hang))));
        let (channel, driver) = builder.build().expect("valid options");
        let driver = tokio::spawn(driver.run());
        let waiting = tokio::spawn({
            let channel = channel.clone();
            async move { call(&channel).await }
        });
        until(|| channel.balancer().counters().waiting == 1).await;
        match number % 8 {
            3 => channel.close(),
            _ => driver.abort(),
        }
        let _ = driver.await;
        drop(channel);
        waiting.abort();
        let _ = waiting.await;
        return;
    }
    let (channel, driver) = Channel::builder(target).policy(RoundRobin).build().expect("valid options");
    let driver = tokio::spawn(driver.run());
    assert!(call(&channel).await, "a server is running");
    match number % 4 {
        0 => channel.close(),
        1 => drop(channel),
        _ => driver.abort(),
    }
    let _ = driver.await;
}

async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("condition not reached: {:?}", Resources::now());
}

/// BA-3 and BA-4: no task, no descriptor and no byte is left.
#[tokio::test]
async fn five_hundred_cycles_leak_nothing() {
    let (one, other) = (server().await, server().await);
    let target = format!("ipv4:{},{}", one.0, other.0);
    let all_closed = || [&one.1, &other.1].iter().all(|open| open.load(Ordering::SeqCst) == 0);
    // Warm-up: lazily created objects, and lists that grow.
    for number in 0..200 {
        cycle(number, &target).await;
    }
    until(all_closed).await;
    let idle = Handle::current().metrics().num_alive_tasks().min(2);
    until(|| Handle::current().metrics().num_alive_tasks() == idle).await;
    let before = Resources::now();
    for number in 0..500 {
        cycle(number, &target).await;
    }
    until(all_closed).await;
    // No output in between: the test harness keeps it in memory.
    let mut after = Resources::now();
    for _ in 0..1000 {
        if after.is_within(&before) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        after = Resources::now();
    }
    panic!("{before:?} before, {after:?} after");
}
