//! Runs a reactor on the calling thread until a future completes, with a blocking peer on a thread of its own.

use std::{
    cell::RefCell,
    future::Future,
    net::{Ipv4Addr, TcpListener, TcpStream},
    ops::ControlFlow,
    os::fd::OwnedFd,
    rc::Rc,
    time::{Duration, Instant},
};

use tidegate_link::{IoMode, Link, Reactor, ReactorConfig, ReactorWaker};

/// A test that takes longer has lost a wake-up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `test` on io_uring, where the kernel allows it, and on epoll.
pub(crate) fn each_mode(test: impl Fn(&ReactorConfig)) {
    for mode in modes() {
        eprintln!("mode: {mode:?}");
        test(&ReactorConfig { mode, ..ReactorConfig::default() });
    }
}

/// The modes that the kernel allows.
pub(crate) fn modes() -> Vec<IoMode> {
    let uring = Reactor::new(&ReactorConfig { mode: IoMode::IoUring, ..ReactorConfig::default() });
    match uring {
        Ok(_) => vec![IoMode::IoUring, IoMode::Epoll],
        Err(error) => {
            eprintln!("io_uring is not available ({error}): testing epoll only");
            vec![IoMode::Epoll]
        }
    }
}

/// Completes `body` on a new reactor.
pub(crate) fn run<T, F>(config: &ReactorConfig, body: impl FnOnce(Reactor) -> F) -> T
where
    T: 'static,
    F: Future<Output = T> + 'static,
{
    let reactor = Reactor::new(config).expect("a reactor");
    run_on(&reactor, body(reactor.clone()))
}

/// Completes `body` on `reactor`.
pub(crate) fn run_on<T: 'static>(reactor: &Reactor, body: impl Future<Output = T> + 'static) -> T {
    let outcome = Rc::new(RefCell::new(Outcome::Open));
    let note = Note(outcome.clone(), reactor.waker());
    reactor.spawn(async move {
        let output = body.await;
        *note.0.borrow_mut() = Outcome::Done(output);
    });
    let clock = reactor.clone();
    reactor.spawn(async move { clock.sleep(PATIENCE).await });
    let started = Instant::now();
    let turn = || {
        assert!(started.elapsed() < PATIENCE, "the task does not complete");
        if matches!(*outcome.borrow(), Outcome::Open) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    reactor.run(turn).expect("the event loop");
    match outcome.replace(Outcome::Fallen) {
        Outcome::Done(output) => output,
        _ => panic!("the task panicked"),
    }
}

enum Outcome<T> {
    Open,
    Done(T),
    Fallen,
}

/// Records a panic of the task, if it ends without an outcome. In either case the reactor takes one more turn.
struct Note<T>(Rc<RefCell<Outcome<T>>>, ReactorWaker);

impl<T> Drop for Note<T> {
    fn drop(&mut self) {
        let mut outcome = self.0.borrow_mut();
        if matches!(*outcome, Outcome::Open) {
            *outcome = Outcome::Fallen;
        }
        self.1.wake();
    }
}

/// Two ends of a TCP connection; the blocking end has a timeout.
pub(crate) fn tcp_pair() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let far = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    far.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    far.set_write_timeout(Some(PATIENCE)).expect("a timeout");
    far.set_nodelay(true).expect("no delay");
    (listener.accept().expect("the other end").0.into(), far)
}

/// Completes `body` with a link, while `peer` has the other end on a thread of its own.
pub(crate) fn with_peer<T, P, F>(
    config: &ReactorConfig,
    peer: impl FnOnce(TcpStream) -> P + Send + 'static,
    body: impl FnOnce(Reactor, Link) -> F,
) -> (T, P)
where
    T: 'static,
    P: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (near, far) = tcp_pair();
    let peer = std::thread::spawn(move || peer(far));
    let output = run(config, |reactor| {
        let link = Link::new(&reactor, near).expect("a link");
        body(reactor, link)
    });
    (output, peer.join().expect("the peer"))
}

/// Echoes until the end of the stream.
pub(crate) async fn echo(mut link: Link) {
    loop {
        let chunk = link.read().await.expect("bytes");
        if chunk.is_empty() {
            return;
        }
        link.write(chunk);
        link.flush().await.expect("an open peer");
    }
}

/// Reads up to the end of the stream.
pub(crate) async fn read_to_end(link: &mut Link) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let chunk = link.read().await.expect("bytes");
        if chunk.is_empty() {
            return all;
        }
        all.extend_from_slice(&chunk);
    }
}

/// Reads `count` bytes, and puts back the rest.
pub(crate) async fn read_exactly(link: &mut Link, count: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < count {
        let mut chunk = link.read().await.expect("bytes");
        assert!(!chunk.is_empty(), "the stream ended after {} bytes", all.len());
        let taken = chunk.len().min(count - all.len());
        all.extend_from_slice(&chunk[..taken]);
        chunk.advance(taken);
        link.unread(chunk);
    }
    all
}

/// Bytes without repeating parts.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}
