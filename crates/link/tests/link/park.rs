//! A link that moves from thread to thread while its peer sends.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    task::Poll,
};

use tidegate_link::{Chunk, IoMode, Link, ParkedLink, Reactor, ReactorConfig, TlsSide};

use crate::{
    stage::{each_mode, modes, pattern, read_to_end, run, tcp_pair},
    tls::{certificate, tls_peer},
};

/// Reads a part, then detaches the link from its thread while a receive is in flight.
async fn read_and_park(mut link: Link, received: &mut Vec<u8>) -> ParkedLink {
    let chunk = link.read().await.expect("bytes");
    assert!(!chunk.is_empty(), "the stream ended early");
    received.extend_from_slice(&chunk);
    drop(chunk);
    if let Poll::Ready(chunk) = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx))).await {
        link.unread(chunk.expect("bytes"));
    }
    std::future::poll_fn(|cx| link.poll_quiesce(cx)).await;
    link.park().expect("a link with nothing under way")
}

/// How often a link moves.
const HOPS: usize = 25;
const BYTES: usize = 1 << 20;

/// Moves a link from thread to thread. Before each move, a message on the channel lets the peer send its next part.
fn hop_by_hop(
    config: &ReactorConfig,
    peer: impl FnOnce(TcpStream, Receiver<()>) + Send + 'static,
    tls: Option<TlsSide>,
) -> Vec<u8> {
    let (near, far) = tcp_pair();
    let (next_part, parts) = mpsc::channel();
    let peer = std::thread::spawn(move || peer(far, parts));
    next_part.send(()).expect("the peer");
    let mut parked = run(config, |reactor| async move {
        let mut link = Link::new(&reactor, near).expect("a link");
        if let Some(side) = tls {
            link.start_tls(&reactor, side, Chunk::empty()).expect("a valid configuration");
            link.handshake().await.expect("a handshake");
        }
        std::future::poll_fn(|cx| link.poll_quiesce(cx)).await;
        link.park().expect("a new link")
    });
    let mut received = Vec::new();
    for _ in 1..HOPS {
        next_part.send(()).expect("the peer");
        let config = config.clone();
        let hop = std::thread::spawn(move || {
            run(&config, |reactor| async move {
                let mut received = Vec::new();
                let link = parked.unpark(&reactor).expect("a link");
                let parked = read_and_park(link, &mut received).await;
                (parked, received)
            })
        });
        let (next, more) = hop.join().expect("a thread");
        parked = next;
        received.extend(more);
    }
    drop(next_part);
    received
        .extend(run(config, |reactor| async move { read_to_end(&mut parked.unpark(&reactor).expect("a link")).await }));
    peer.join().expect("the peer");
    received
}

/// Sends one part in small pieces for each message on the channel.
fn send_parts(requests: &Receiver<()>, mut send: impl FnMut(&[u8])) {
    let bytes = pattern(BYTES);
    let mut parts = bytes.chunks(BYTES.div_ceil(HOPS));
    while requests.recv().is_ok() {
        parts.next().expect("a part for each hop").chunks(701).for_each(&mut send);
    }
}

#[test]
fn moving_link_loses_no_bytes() {
    each_mode(|config| {
        let peer = |mut stream: TcpStream, parts: Receiver<()>| {
            send_parts(&parts, |piece| stream.write_all(piece).expect("an open link"));
        };
        let received = hop_by_hop(config, peer, None);
        assert!(received == pattern(BYTES), "bytes were lost or changed on the way ({} of {BYTES})", received.len());
    });
}

#[test]
fn moving_tls_link_loses_no_bytes() {
    each_mode(|config| {
        let (server, client) = certificate();
        let peer = move |stream: TcpStream, parts: Receiver<()>| {
            let mut peer = tls_peer(stream, client);
            send_parts(&parts, |piece| peer.write_all(piece).expect("an open link"));
            peer.conn.send_close_notify();
            peer.flush().expect("an open link");
            // If the socket closed with unread session tickets, it would reset the connection.
            peer.sock.shutdown(Shutdown::Write).expect("an open stream");
            let _ = peer.sock.read_to_end(&mut Vec::new());
        };
        let received = hop_by_hop(config, peer, Some(TlsSide::Server(server)));
        assert!(received == pattern(BYTES), "bytes were lost or changed on the way ({} of {BYTES})", received.len());
    });
}

#[test]
fn parked_link_with_closed_peer_is_readable() {
    each_mode(|config| {
        for last_words in [&b""[..], b"final"] {
            let (near, mut far) = tcp_pair();
            let parked = run(config, |reactor| async move {
                let mut link = Link::new(&reactor, near).expect("a link");
                let armed = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx).is_pending()));
                assert!(armed.await);
                far.write_all(last_words).expect("an open stream");
                drop(far);
                std::future::poll_fn(|cx| link.poll_quiesce(cx)).await;
                link.park()
            });
            // The end may have been received (io_uring) or may still be in the kernel.
            assert!(parked.is_none_or(|parked| parked.is_readable()));
        }
    });
}

#[test]
fn parked_link_with_silent_peer_is_not_readable() {
    each_mode(|config| {
        let (near, far) = tcp_pair();
        let parked = run(config, |reactor| async move {
            let mut link = Link::new(&reactor, near).expect("a link");
            let armed = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx).is_pending()));
            assert!(armed.await);
            std::future::poll_fn(|cx| link.poll_quiesce(cx)).await;
            link.park()
        });
        assert!(!parked.expect("nothing is under way").is_readable());
        drop(far);
    });
}

#[test]
fn unread_bytes_move_along_in_order() {
    each_mode(|config| {
        let (near, mut far) = tcp_pair();
        let parked = run(config, |reactor| async move {
            let mut link = Link::new(&reactor, near).expect("a link");
            let armed = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx).is_pending()));
            assert!(armed.await);
            link.unread(b"two ".to_vec().into());
            link.unread_before(b"one ".to_vec().into());
            far.write_all(b"three").expect("an open stream");
            drop(far);
            std::future::poll_fn(|cx| link.poll_quiesce(cx)).await;
            link.park().expect("a link with nothing under way")
        });
        let received =
            run(config, |reactor| async move { read_to_end(&mut parked.unpark(&reactor).expect("a link")).await });
        assert_eq!(received, b"one two three");
    });
}

#[test]
fn link_with_queued_bytes_does_not_park() {
    each_mode(|config| {
        let (near, _far) = tcp_pair();
        run(config, |reactor| async move {
            let mut link = Link::new(&reactor, near).expect("a link");
            link.write(&b"unsent"[..]);
            assert!(link.park().is_none());
        });
    });
}

#[test]
fn idle_link_parks_without_waiting() {
    each_mode(|config| {
        let (near, mut far) = tcp_pair();
        let reactor = Reactor::new(config).expect("a reactor");
        let mut link = Link::new(&reactor, near).expect("a link");
        let cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(link.poll_quiesce(&cx).is_ready());
        let parked = link.park().expect("an idle link");
        far.write_all(b"hello").expect("an open stream");
        drop(far);
        let received =
            run(config, |reactor| async move { read_to_end(&mut parked.unpark(&reactor).expect("a link")).await });
        assert_eq!(received, b"hello");
    });
}

/// A thread may have io_uring and another epoll.
#[test]
fn link_moves_between_io_modes() {
    let modes = modes();
    let (near, mut far) = tcp_pair();
    let fd: Arc<std::sync::Mutex<Option<ParkedLink>>> = Arc::default();
    let config = |mode: IoMode| ReactorConfig { mode, ..ReactorConfig::default() };
    let first = run(&config(IoMode::Epoll), |reactor| async move {
        Link::new(&reactor, near).expect("a link").park().expect("a new link")
    });
    *fd.lock().expect("one thread") = Some(first);
    for mode in modes.iter().chain([&IoMode::Epoll]).copied() {
        let parked = fd.lock().expect("one thread").take().expect("a link");
        let peer = std::thread::spawn(move || {
            // The link waits by now, or is about to: in either case it must not return an error to retry.
            far.write_all(b"hello").expect("an open stream");
            far
        });
        let next = run(&config(mode), |reactor| async move {
            let mut link = parked.unpark(&reactor).expect("a link");
            let armed = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx))).await;
            let chunk = match armed {
                Poll::Ready(chunk) => chunk.expect("bytes"),
                Poll::Pending => link.read().await.expect("bytes"),
            };
            assert_eq!(&*chunk, b"hello");
            std::future::poll_fn(|cx| link.poll_quiesce(cx)).await;
            link.park().expect("a link with nothing under way")
        });
        *fd.lock().expect("one thread") = Some(next);
        far = peer.join().expect("the peer");
    }
}
