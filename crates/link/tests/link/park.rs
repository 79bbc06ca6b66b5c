//! A link that moves from thread to thread, while its peer sends.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    task::Poll,
};

use tidegate_link::{Chunk, Link, Mode, ParkedLink, Reactor, Settings, TlsSide};

use crate::{
    stage::{each_mode, modes, pattern, read_to_end, run, tcp_pair},
    tls::{certificate, tls_peer},
};

/// Reads a little, then gets the link ready to leave its thread, in the midst of a receive.
async fn read_and_park(mut link: Link, heard: &mut Vec<u8>) -> ParkedLink {
    let chunk = link.read().await.expect("bytes");
    assert!(!chunk.is_empty(), "the stream ended early");
    heard.extend_from_slice(&chunk);
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

/// Moves a link from thread to thread; the peer is told before each move to send its next part.
fn hop_by_hop(
    settings: &Settings,
    peer: impl FnOnce(TcpStream, Receiver<()>) + Send + 'static,
    tls: Option<TlsSide>,
) -> Vec<u8> {
    let (near, far) = tcp_pair();
    let (go, told) = mpsc::channel();
    let peer = std::thread::spawn(move || peer(far, told));
    go.send(()).expect("the peer");
    let mut parked = run(settings, |reactor| async move {
        let mut link = Link::new(&reactor, near).expect("a link");
        if let Some(side) = tls {
            link.start_tls(&reactor, side, Chunk::empty()).expect("a sound configuration");
            link.handshake().await.expect("a handshake");
        }
        std::future::poll_fn(|cx| link.poll_quiesce(cx)).await;
        link.park().expect("a fresh link")
    });
    let mut heard = Vec::new();
    for _ in 1..HOPS {
        go.send(()).expect("the peer");
        let settings = settings.clone();
        let hop = std::thread::spawn(move || {
            run(&settings, |reactor| async move {
                let mut heard = Vec::new();
                let link = parked.unpark(&reactor).expect("a link");
                let parked = read_and_park(link, &mut heard).await;
                (parked, heard)
            })
        });
        let (next, more) = hop.join().expect("a thread");
        parked = next;
        heard.extend(more);
    }
    drop(go);
    heard.extend(run(
        settings,
        |reactor| async move { read_to_end(&mut parked.unpark(&reactor).expect("a link")).await },
    ));
    peer.join().expect("the peer");
    heard
}

/// Sends one part for each word on `told`, in small pieces.
fn send_parts(told: &Receiver<()>, mut send: impl FnMut(&[u8])) {
    let bytes = pattern(BYTES);
    let mut parts = bytes.chunks(BYTES.div_ceil(HOPS));
    while told.recv().is_ok() {
        parts.next().expect("a part for each hop").chunks(701).for_each(&mut send);
    }
}

#[test]
fn a_link_that_moves_while_its_peer_sends_loses_nothing() {
    each_mode(|settings| {
        let peer = |mut stream: TcpStream, told: Receiver<()>| {
            send_parts(&told, |piece| stream.write_all(piece).expect("a link that reads"));
        };
        let heard = hop_by_hop(settings, peer, None);
        assert!(heard == pattern(BYTES), "bytes were lost or changed on the way ({} of {BYTES})", heard.len());
    });
}

#[test]
fn a_link_under_tls_that_moves_while_its_peer_sends_loses_nothing() {
    each_mode(|settings| {
        let (server, client) = certificate();
        let peer = move |stream: TcpStream, told: Receiver<()>| {
            let mut peer = tls_peer(stream, client);
            send_parts(&told, |piece| peer.write_all(piece).expect("a link that reads"));
            peer.conn.send_close_notify();
            peer.flush().expect("a link that reads");
            // Closed with the link's session tickets unread, the socket would reset the connection.
            peer.sock.shutdown(Shutdown::Write).expect("an open stream");
            let _ = peer.sock.read_to_end(&mut Vec::new());
        };
        let heard = hop_by_hop(settings, peer, Some(TlsSide::Server(server)));
        assert!(heard == pattern(BYTES), "bytes were lost or changed on the way ({} of {BYTES})", heard.len());
    });
}

#[test]
fn a_link_whose_peer_has_left_does_not_leave_unnoticed() {
    each_mode(|settings| {
        for last_words in [&b""[..], b"farewell"] {
            let (near, mut far) = tcp_pair();
            let parked = run(settings, |reactor| async move {
                let mut link = Link::new(&reactor, near).expect("a link");
                let armed = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx).is_pending()));
                assert!(armed.await);
                far.write_all(last_words).expect("an open stream");
                drop(far);
                std::future::poll_fn(|cx| link.poll_quiesce(cx)).await;
                link.park()
            });
            // With io_uring the end may have been received; if not, the kernel has it.
            assert!(parked.is_none_or(|parked| parked.has_news()));
        }
    });
}

#[test]
fn a_link_whose_peer_is_silent_leaves_without_news() {
    each_mode(|settings| {
        let (near, far) = tcp_pair();
        let parked = run(settings, |reactor| async move {
            let mut link = Link::new(&reactor, near).expect("a link");
            let armed = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx).is_pending()));
            assert!(armed.await);
            std::future::poll_fn(|cx| link.poll_quiesce(cx)).await;
            link.park()
        });
        assert!(!parked.expect("nothing is under way").has_news());
        drop(far);
    });
}

#[test]
fn bytes_that_were_put_back_move_along_in_front_of_those_that_arrive() {
    each_mode(|settings| {
        let (near, mut far) = tcp_pair();
        let parked = run(settings, |reactor| async move {
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
        let heard =
            run(settings, |reactor| async move { read_to_end(&mut parked.unpark(&reactor).expect("a link")).await });
        assert_eq!(heard, b"one two three");
    });
}

#[test]
fn a_link_with_bytes_to_send_does_not_leave() {
    each_mode(|settings| {
        let (near, _far) = tcp_pair();
        run(settings, |reactor| async move {
            let mut link = Link::new(&reactor, near).expect("a link");
            link.write(&b"unsent"[..]);
            assert!(link.park().is_none());
        });
    });
}

#[test]
fn a_link_that_is_at_rest_needs_no_time_to_leave() {
    each_mode(|settings| {
        let (near, mut far) = tcp_pair();
        let reactor = Reactor::new(settings).expect("a reactor");
        let mut link = Link::new(&reactor, near).expect("a link");
        let cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(link.poll_quiesce(&cx).is_ready());
        let parked = link.park().expect("a link at rest");
        far.write_all(b"hello").expect("an open stream");
        drop(far);
        let heard =
            run(settings, |reactor| async move { read_to_end(&mut parked.unpark(&reactor).expect("a link")).await });
        assert_eq!(heard, b"hello");
    });
}

/// Where one thread got io_uring and another did not.
#[test]
fn a_link_moves_between_modes() {
    let modes = modes();
    let (near, mut far) = tcp_pair();
    let fd: Arc<std::sync::Mutex<Option<ParkedLink>>> = Arc::default();
    let settings = |mode: Mode| Settings { mode, ..Settings::default() };
    let first = run(&settings(Mode::Epoll), |reactor| async move {
        Link::new(&reactor, near).expect("a link").park().expect("a fresh link")
    });
    *fd.lock().expect("one thread") = Some(first);
    for mode in modes.iter().chain([&Mode::Epoll]).copied() {
        let parked = fd.lock().expect("one thread").take().expect("a link");
        let peer = std::thread::spawn(move || {
            // The link waits by then, or is about to: either way it must not be told to try again.
            far.write_all(b"hello").expect("an open stream");
            far
        });
        let next = run(&settings(mode), |reactor| async move {
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
