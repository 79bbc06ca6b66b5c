//! Channels that come and go leave nothing behind. Alone in its program, because it counts what the whole program has.

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
use tidegate_balance::{Channel, Resolve, Resolving, RoundRobin};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tonic::body::Body;
use tower::{Service as _, ServiceExt as _};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// What the program has.
#[derive(Clone, Copy, Debug)]
struct Books {
    tasks: usize,
    descriptors: usize,
    bytes: usize,
}

impl Books {
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

/// A server that says yes to every call. Returns where it is, and how many connections are open there.
async fn server() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has ports");
    let address = listener.local_addr().expect("it is bound");
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
    fn resolve(&mut self) -> Resolving<'_> {
        Box::pin(std::future::pending())
    }
}

/// A channel, a call, and one of four ways to end.
async fn cycle(number: usize, target: &str) {
    if number % 4 == 3 {
        // In the middle of a look-up, for which a call waits.
        let builder = Channel::builder("orders").resolver(Box::new(|| Ok(Box::new(Hang))));
        let (channel, driver) = builder.build().expect("the builder is right");
        let driving = tokio::spawn(driver.run());
        let waiting = tokio::spawn({
            let channel = channel.clone();
            async move { call(&channel).await }
        });
        until(|| channel.balancer().counters().waiting == 1).await;
        match number % 8 {
            3 => channel.close(),
            _ => driving.abort(),
        }
        let _ = driving.await;
        drop(channel);
        waiting.abort();
        let _ = waiting.await;
        return;
    }
    let (channel, driver) = Channel::builder(target).policy(RoundRobin).build().expect("the builder is right");
    let driving = tokio::spawn(driver.run());
    assert!(call(&channel).await, "a server is there");
    match number % 4 {
        0 => channel.close(),
        1 => drop(channel),
        _ => driving.abort(),
    }
    let _ = driving.await;
}

async fn until(mut is_so: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("it does not come about: {:?}", Books::now());
}

#[tokio::test]
async fn t03_t04_five_hundred_cycles_leave_no_task_no_descriptor_and_no_byte() {
    let (one, other) = (server().await, server().await);
    let target = format!("ipv4:{},{}", one.0, other.0);
    let all_closed = || [&one.1, &other.1].iter().all(|open| open.load(Ordering::SeqCst) == 0);
    // What is made once, and lists that grow to their size.
    for number in 0..200 {
        cycle(number, &target).await;
    }
    until(all_closed).await;
    let idle = Handle::current().metrics().num_alive_tasks().min(2);
    until(|| Handle::current().metrics().num_alive_tasks() == idle).await;
    let before = Books::now();
    for number in 0..500 {
        cycle(number, &target).await;
    }
    until(all_closed).await;
    // Nothing is printed in between: the harness keeps it.
    let mut after = Books::now();
    for _ in 0..1000 {
        if after.is_within(&before) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        after = Books::now();
    }
    panic!("{before:?} before, {after:?} after");
}
