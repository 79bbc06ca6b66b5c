//! Plain text: bytes arrive complete and in order, and ends are reported.

use std::{
    cell::Cell,
    fs,
    io::{ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    rc::Rc,
    task::Poll,
    time::{Duration, Instant},
};

use rustix::fs::fstat;
use socket2::{SockAddr, SockRef};
use tidegate_link::{Chunk, Link};

use crate::stage::{PATIENCE, each_mode, echo, pattern, read_exactly, read_to_end, run, tcp_pair, with_peer};

fn ask_for_echo(mut peer: impl Read + Write, words: &[u8]) {
    peer.write_all(words).expect("an open stream");
    let mut back = vec![0; words.len()];
    peer.read_exact(&mut back).expect("an echo");
    assert_eq!(back, words);
}

#[test]
fn tcp_is_echoed() {
    each_mode(|config| {
        with_peer(config, |peer| ask_for_echo(peer, &pattern(5000)), |_, link| echo(link));
    });
}

#[test]
fn unix_sockets_are_echoed() {
    each_mode(|config| {
        let (near, far) = UnixStream::pair().expect("a pair");
        let peer = std::thread::spawn(move || ask_for_echo(far, &pattern(5000)));
        run(config, |reactor| echo(Link::new(&reactor, near.into()).expect("a link")));
        peer.join().expect("the peer");
    });
}

#[test]
fn connected_link_is_echoed() {
    each_mode(|config| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = SockAddr::from(listener.local_addr().expect("its address"));
        let peer = std::thread::spawn(move || ask_for_echo(listener.accept().expect("a client").0, b"hello"));
        run(config, |reactor| async move {
            let fd = reactor.connect(address).await.expect("a listener");
            echo(Link::new(&reactor, fd).expect("a link")).await;
        });
        peer.join().expect("the peer");
    });
}

#[test]
fn unix_socket_is_connected() {
    each_mode(|config| {
        let path = std::env::temp_dir().join(format!("tidegate-link-{}-{:?}", std::process::id(), config.mode));
        let listener = UnixListener::bind(&path).expect("a path");
        let address = SockAddr::unix(&path).expect("a short path");
        let peer = std::thread::spawn(move || ask_for_echo(listener.accept().expect("a client").0, b"hello"));
        run(config, |reactor| async move {
            let fd = reactor.connect(address).await.expect("a listener");
            echo(Link::new(&reactor, fd).expect("a link")).await;
        });
        peer.join().expect("the peer");
        fs::remove_file(path).expect("the file of the socket");
    });
}

#[test]
fn port_without_a_listener_refuses() {
    each_mode(|config| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        // The local port of a connected socket is in use, and has no listener.
        let taken = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        let address = SockAddr::from(taken.local_addr().expect("its address"));
        let refused = run(config, |reactor| async move { reactor.connect(address).await.map(drop) });
        assert_eq!(refused.expect_err("no listener").kind(), ErrorKind::ConnectionRefused);
    });
}

/// Both sides send several MiB at the same time; the peer reads in small pieces.
#[test]
fn both_directions_flow_with_a_slow_reader() {
    const BYTES: usize = 6 << 20;
    each_mode(|config| {
        let peer = |mut stream: TcpStream| {
            let mut writer = stream.try_clone().expect("a second handle");
            let writes = std::thread::spawn(move || writer.write_all(&pattern(BYTES)).expect("an open link"));
            let (mut received, mut sip) = (Vec::new(), [0; 3001]);
            while received.len() < BYTES {
                let count = stream.read(&mut sip).expect("a link that writes");
                received.extend_from_slice(&sip[..count]);
                std::thread::yield_now();
            }
            writes.join().expect("the writer");
            assert!(received == pattern(BYTES), "what the link sent arrived changed");
        };
        let (received, ()) = with_peer(config, peer, |_, link| exchange(link, pattern(BYTES)));
        assert!(received == pattern(BYTES), "what the peer sent arrived changed");
    });
}

/// Sends `words` with a bounded queue, and reads as many bytes meanwhile.
async fn exchange(mut link: Link, words: Vec<u8>) -> Vec<u8> {
    const QUEUED_MAX: usize = 64 * 1024;
    let (mut sent, mut received) = (0, Vec::new());
    std::future::poll_fn(|cx| {
        loop {
            while sent < words.len() && link.queued_bytes() < QUEUED_MAX {
                let end = words.len().min(sent + 10_000);
                link.write(words[sent..end].to_vec());
                sent = end;
            }
            let flushed = link.poll_flush(cx).map(|flushed| flushed.expect("an open peer"));
            let mut has_received = false;
            if received.len() < words.len()
                && let Poll::Ready(chunk) = link.poll_read(cx)
            {
                let chunk = chunk.expect("bytes");
                assert!(!chunk.is_empty(), "the stream ended early");
                received.extend_from_slice(&chunk);
                has_received = true;
            }
            if flushed.is_ready() && sent == words.len() && received.len() == words.len() {
                return Poll::Ready(());
            }
            if !has_received && (flushed.is_pending() || sent == words.len()) {
                return Poll::Pending;
            }
        }
    })
    .await;
    link.flush().await.expect("an open peer");
    received
}

#[test]
fn pieces_arrive_in_order() {
    each_mode(|config| {
        let peer = |mut stream: TcpStream| {
            for byte in pattern(500) {
                stream.write_all(&[byte]).expect("an open link");
            }
        };
        let (received, ()) = with_peer(config, peer, |_, mut link| async move { read_to_end(&mut link).await });
        assert_eq!(received, pattern(500));
    });
}

#[test]
fn small_and_large_chunks_keep_their_order() {
    each_mode(|config| {
        let words = pattern(300_000);
        let expected = words.clone();
        let peer = move |mut stream: TcpStream| {
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("bytes");
            assert!(received == expected, "the pieces arrived in another order");
        };
        with_peer(config, peer, |_, mut link| async move {
            let mut rest = &words[..];
            for len in [1, 100, 8192, 8193, 3, 60_000, 7, 65_536, 5, 100_000].into_iter().cycle() {
                let (piece, more) = rest.split_at(len.min(rest.len()));
                link.write(piece.to_vec());
                rest = more;
                if rest.is_empty() {
                    break;
                }
            }
            assert_eq!(link.queued_bytes(), words.len());
            link.flush().await.expect("an open peer");
            assert_eq!(link.queued_bytes(), 0);
        });
    });
}

#[test]
fn bytes_in_flight_arrive_without_a_poll() {
    each_mode(|config| {
        let words = pattern(8 << 20);
        let expected = words.clone();
        let peer = move |mut stream: TcpStream| {
            let mut received = vec![0; expected.len()];
            stream.read_exact(&mut received).expect("bytes");
            stream.write_all(b"all").expect("an open link");
            assert!(received == expected, "other bytes arrived");
        };
        with_peer(config, peer, |_, mut link| async move {
            link.write(words);
            let flushed = std::future::poll_fn(|cx| Poll::Ready(link.poll_flush(cx)));
            assert!(flushed.await.is_ready(), "more than the kernel has room for goes on by itself");
            assert_eq!(read_exactly(&mut link, 3).await, b"all");
            link.flush().await.expect("a complete send");
        });
    });
}

/// Holds for epoll; on io_uring the caller waits, see `Link::poll_flush`.
#[test]
fn queued_bytes_are_sent_before_a_drop() {
    each_mode(|config| {
        if config.mode != tidegate_link::IoMode::Epoll {
            return;
        }
        let peer = |mut stream: TcpStream| {
            let mut received = String::new();
            stream.read_to_string(&mut received).expect("an end");
            received
        };
        let ((), received) = with_peer(config, peer, |_, mut link| async move {
            link.write(&b"last words"[..]);
            let flushed = std::future::poll_fn(|cx| Poll::Ready(link.poll_flush(cx)));
            assert!(flushed.await.is_ready());
        });
        assert_eq!(received, "last words");
    });
}

#[test]
fn sending_to_a_closed_peer_ends_the_link() {
    each_mode(|config| {
        let (peer_closes, closed) = std::sync::mpsc::channel();
        let peer = move |stream: TcpStream| {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket");
            drop(stream);
            peer_closes.send(()).expect("an open link");
        };
        with_peer(config, peer, move |_, mut link| async move {
            closed.recv().expect("the peer");
            link.write(&b"too late"[..]);
            let _ = link.flush().await;
            let received = link.read().await;
            assert!(received.map_or(true, |chunk| chunk.is_empty()), "the stream has ended");
        });
    });
}

#[test]
fn half_closed_stream_can_still_send() {
    each_mode(|config| {
        let peer = |mut stream: TcpStream| {
            stream.write_all(b"last words").expect("an open stream");
            stream.shutdown(Shutdown::Write).expect("an open stream");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            answer
        };
        let ((), answer) = with_peer(config, peer, |_, mut link| async move {
            assert_eq!(read_to_end(&mut link).await, b"last words");
            assert!(link.read().await.expect("an end, again").is_empty());
            link.write(&b"final"[..]);
            link.flush().await.expect("an open peer");
        });
        assert_eq!(answer, "final");
    });
}

#[test]
fn reset_is_an_error() {
    each_mode(|config| {
        let peer = |stream: TcpStream| {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket");
        };
        let (error, ()) = with_peer(config, peer, |_, mut link| async move { link.read().await.map(drop) });
        assert_eq!(error.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn shutdown_ends_the_receive_in_flight() {
    each_mode(|config| {
        let peer = |mut stream: TcpStream| stream.read(&mut [0]).expect("an end");
        let ((), received) = with_peer(config, peer, |_, mut link| async move {
            let armed = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx).is_pending()));
            assert!(armed.await);
            link.shutdown();
            assert!(link.read().await.expect("an end").is_empty());
        });
        assert_eq!(received, 0);
    });
}

#[test]
fn unread_bytes_are_read_first() {
    each_mode(|config| {
        let peer = |mut stream: TcpStream| stream.write_all(b"three").expect("an open link");
        with_peer(config, peer, |_, mut link| async move {
            link.unread(b"two".to_vec().into());
            link.unread_before(Chunk::empty());
            link.unread_before(b"one".to_vec().into());
            assert_eq!(&*link.read().await.expect("bytes"), b"onetwo");
            link.unread_before(b"zero".to_vec().into());
            assert_eq!(&*link.read().await.expect("bytes"), b"zero");
            link.unread(Chunk::empty());
            assert_eq!(read_to_end(&mut link).await, b"three");
        });
    });
}

#[test]
fn dropped_read_loses_no_bytes() {
    each_mode(|config| {
        let peer = |mut stream: TcpStream| {
            for piece in pattern(20_000).chunks(997) {
                stream.write_all(piece).expect("an open link");
            }
        };
        with_peer(config, peer, |reactor, mut link| async move {
            let mut received = Vec::new();
            while received.len() < 20_000 {
                // A read that is dropped immediately, several times.
                for _ in 0..3 {
                    let given_up = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx)));
                    if let Poll::Ready(chunk) = given_up.await {
                        received.extend_from_slice(&chunk.expect("bytes"));
                    }
                }
                reactor.sleep(Duration::from_micros(10)).await;
            }
            assert_eq!(received, pattern(20_000));
        });
    });
}

#[test]
fn drop_during_a_receive_frees_the_descriptor() {
    each_mode(|config| {
        let (near, mut far) = tcp_pair();
        let socket = name_of(&near);
        run(config, |reactor| async move {
            let mut link = Link::new(&reactor, near).expect("a link");
            let armed = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx).is_pending()));
            assert!(armed.await);
            assert!(is_open(&socket));
            drop(link);
            let deadline = Instant::now() + PATIENCE;
            while is_open(&socket) {
                assert!(Instant::now() < deadline, "the descriptor is still open");
                reactor.sleep(Duration::from_millis(1)).await;
            }
        });
        assert_eq!(far.read(&mut [0]).expect("an end"), 0);
    });
}

#[test]
fn drop_with_a_blocked_send_frees_the_descriptor() {
    each_mode(|config| {
        let (near, far) = tcp_pair();
        let socket = name_of(&near);
        run(config, |reactor| async move {
            let mut link = Link::new(&reactor, near).expect("a link");
            link.write(pattern(32 << 20));
            let full = std::future::poll_fn(|cx| Poll::Ready(link.poll_flush(cx).map(|sent| sent.expect("a socket"))));
            let _ = full.await;
            reactor.sleep(Duration::from_millis(1)).await;
            drop(link);
            let deadline = Instant::now() + PATIENCE;
            while is_open(&socket) {
                assert!(Instant::now() < deadline, "the descriptor is still open");
                reactor.sleep(Duration::from_millis(1)).await;
            }
        });
        drop(far);
    });
}

/// Name of the descriptor in `/proc/self/fd`.
fn name_of(fd: &OwnedFd) -> PathBuf {
    let inode = fstat(fd).expect("an open descriptor").st_ino;
    let name = PathBuf::from(format!("socket:[{inode}]"));
    assert_eq!(fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("an open descriptor"), name);
    name
}

/// Whether this process has a descriptor with this name.
fn is_open(name: &PathBuf) -> bool {
    let open = fs::read_dir("/proc/self/fd").expect("a list of descriptors");
    // A descriptor that was closed meanwhile has no name.
    open.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == *name))
}

#[test]
fn bytes_after_a_burst_are_intact() {
    each_mode(|config| {
        let peer = |mut stream: TcpStream| {
            for len in [1, 16_384, 300_000, 1, 16_383, 1 << 20, 5] {
                ask_for_echo(&stream, &pattern(len));
            }
            stream.write_all(b"end").expect("an open stream");
        };
        with_peer(config, peer, |_, mut link| async move {
            for len in [1, 16_384, 300_000, 1, 16_383, 1 << 20, 5] {
                let words = read_exactly(&mut link, len).await;
                link.write(words);
                link.flush().await.expect("an open peer");
            }
            assert_eq!(read_to_end(&mut link).await, b"end");
        });
    });
}

#[test]
fn order_is_kept_when_the_peer_changes_its_rate() {
    const ROUNDS: usize = 12;
    // Series of small pieces, then a piece that is larger than many buffers.
    let pieces = || (0..ROUNDS).flat_map(|round| [1 + round; 40].into_iter().chain([300_000, 16 * 1024]));
    let total: usize = pieces().sum();
    each_mode(|config| {
        // Each piece waits for the previous one, so that it is received separately.
        let peer = move |mut stream: TcpStream| {
            let (all, mut at) = (pattern(total), 0);
            for len in pieces() {
                stream.write_all(&all[at..at + len]).expect("an open link");
                stream.read_exact(&mut [0]).expect("a word of it");
                at += len;
            }
        };
        let listen = |_, mut link: Link| async move {
            let mut received = Vec::new();
            for len in pieces() {
                received.extend(read_exactly(&mut link, len).await);
                link.write(vec![1]);
                link.flush().await.expect("an open peer");
            }
            received
        };
        let (received, ()) = with_peer(config, peer, listen);
        assert!(received == pattern(total), "{} bytes of {total} arrived, or not the same", received.len());
    });
}

/// A peer that sends as fast as the link reads must not monopolise the thread.
#[test]
fn fast_sender_does_not_starve_other_tasks() {
    each_mode(|config| {
        let most = run(config, |reactor| async move {
            let (near, mut far) = UnixStream::pair().expect("a pair");
            SockRef::from(&far).set_send_buffer_size(1 << 20).expect("a socket");
            far.set_nonblocking(true).expect("a socket");
            let mut rest = 0;
            while let Ok(sent) = far.write(&[7; 4096]) {
                rest += sent;
            }
            let turns = Rc::new(Cell::new(0_u64));
            let counted = turns.clone();
            reactor.spawn(std::future::poll_fn(move |cx| {
                counted.set(counted.get() + 1);
                cx.waker().wake_by_ref();
                Poll::<()>::Pending
            }));
            let mut link = Link::new(&reactor, near.into()).expect("a link");
            let (mut most, mut in_turn, mut turn) = (0, 0, turns.get());
            while rest > 0 {
                let read = link.read().await.expect("bytes").len();
                rest -= read;
                in_turn = if turns.get() == turn { in_turn + read } else { read };
                (most, turn) = (most.max(in_turn), turns.get());
            }
            most
        });
        assert!(most <= config.bulk_buffer_len, "{most} bytes were read in one turn");
    });
}
