//! Plain text: what is sent arrives, whole and in order, and ends are seen.

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
    each_mode(|settings| {
        with_peer(settings, |peer| ask_for_echo(peer, &pattern(5000)), |_, link| echo(link));
    });
}

#[test]
fn unix_sockets_are_echoed() {
    each_mode(|settings| {
        let (near, far) = UnixStream::pair().expect("a pair");
        let peer = std::thread::spawn(move || ask_for_echo(far, &pattern(5000)));
        run(settings, |reactor| echo(Link::new(&reactor, near.into()).expect("a link")));
        peer.join().expect("the peer");
    });
}

#[test]
fn a_link_that_has_connected_is_echoed() {
    each_mode(|settings| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = SockAddr::from(listener.local_addr().expect("its address"));
        let peer = std::thread::spawn(move || ask_for_echo(listener.accept().expect("a client").0, b"hello"));
        run(settings, |reactor| async move {
            let fd = reactor.connect(address).await.expect("a listener");
            echo(Link::new(&reactor, fd).expect("a link")).await;
        });
        peer.join().expect("the peer");
    });
}

#[test]
fn a_unix_socket_is_connected() {
    each_mode(|settings| {
        let path = std::env::temp_dir().join(format!("tidegate-link-{}-{:?}", std::process::id(), settings.mode));
        let listener = UnixListener::bind(&path).expect("a path");
        let address = SockAddr::unix(&path).expect("a short path");
        let peer = std::thread::spawn(move || ask_for_echo(listener.accept().expect("a client").0, b"hello"));
        run(settings, |reactor| async move {
            let fd = reactor.connect(address).await.expect("a listener");
            echo(Link::new(&reactor, fd).expect("a link")).await;
        });
        peer.join().expect("the peer");
        fs::remove_file(path).expect("the file of the socket");
    });
}

#[test]
fn a_port_without_a_listener_refuses() {
    each_mode(|settings| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        // A port of a connected socket is nobody else's, and nobody listens on it.
        let taken = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
        let address = SockAddr::from(taken.local_addr().expect("its address"));
        let refused = run(settings, |reactor| async move { reactor.connect(address).await.map(drop) });
        assert_eq!(refused.expect_err("nobody listens").kind(), ErrorKind::ConnectionRefused);
    });
}

/// Both sides send several MiB at once; the peer reads in small sips.
#[test]
fn both_directions_flow_at_once_against_a_slow_reader() {
    const BYTES: usize = 6 << 20;
    each_mode(|settings| {
        let peer = |mut stream: TcpStream| {
            let mut writer = stream.try_clone().expect("a second handle");
            let writes = std::thread::spawn(move || writer.write_all(&pattern(BYTES)).expect("a link that reads"));
            let (mut heard, mut sip) = (Vec::new(), [0; 3001]);
            while heard.len() < BYTES {
                let count = stream.read(&mut sip).expect("a link that writes");
                heard.extend_from_slice(&sip[..count]);
                std::thread::yield_now();
            }
            writes.join().expect("the writer");
            assert!(heard == pattern(BYTES), "what the link sent arrived changed");
        };
        let (heard, ()) = with_peer(settings, peer, |_, link| exchange(link, pattern(BYTES)));
        assert!(heard == pattern(BYTES), "what the peer sent arrived changed");
    });
}

/// Sends `words` with a bounded queue, and reads as many bytes meanwhile.
async fn exchange(mut link: Link, words: Vec<u8>) -> Vec<u8> {
    const QUEUED_MAX: usize = 64 * 1024;
    let (mut sent, mut heard) = (0, Vec::new());
    std::future::poll_fn(|cx| {
        loop {
            while sent < words.len() && link.queued_bytes() < QUEUED_MAX {
                let end = words.len().min(sent + 10_000);
                link.write(words[sent..end].to_vec());
                sent = end;
            }
            let flushed = link.poll_flush(cx).map(|flushed| flushed.expect("a peer that reads"));
            let mut heard_more = false;
            if heard.len() < words.len()
                && let Poll::Ready(chunk) = link.poll_read(cx)
            {
                let chunk = chunk.expect("bytes");
                assert!(!chunk.is_empty(), "the stream ended early");
                heard.extend_from_slice(&chunk);
                heard_more = true;
            }
            if flushed.is_ready() && sent == words.len() && heard.len() == words.len() {
                return Poll::Ready(());
            }
            if !heard_more && (flushed.is_pending() || sent == words.len()) {
                return Poll::Pending;
            }
        }
    })
    .await;
    link.flush().await.expect("a peer that reads");
    heard
}

#[test]
fn bytes_in_pieces_arrive_in_order() {
    each_mode(|settings| {
        let peer = |mut stream: TcpStream| {
            for byte in pattern(500) {
                stream.write_all(&[byte]).expect("a link that reads");
            }
        };
        let (heard, ()) = with_peer(settings, peer, |_, mut link| async move { read_to_end(&mut link).await });
        assert_eq!(heard, pattern(500));
    });
}

#[test]
fn small_and_large_pieces_leave_in_the_order_of_writing() {
    each_mode(|settings| {
        let words = pattern(300_000);
        let expected = words.clone();
        let peer = move |mut stream: TcpStream| {
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).expect("bytes");
            assert!(heard == expected, "the pieces arrived in another order");
        };
        with_peer(settings, peer, |_, mut link| async move {
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
            link.flush().await.expect("a peer that reads");
            assert_eq!(link.queued_bytes(), 0);
        });
    });
}

#[test]
fn what_is_on_its_way_arrives_though_nobody_polls_for_it() {
    each_mode(|settings| {
        let words = pattern(8 << 20);
        let expected = words.clone();
        let peer = move |mut stream: TcpStream| {
            let mut heard = vec![0; expected.len()];
            stream.read_exact(&mut heard).expect("bytes");
            stream.write_all(b"all").expect("a link that listens");
            assert!(heard == expected, "other bytes arrived");
        };
        with_peer(settings, peer, |_, mut link| async move {
            link.write(words);
            let flushed = std::future::poll_fn(|cx| Poll::Ready(link.poll_flush(cx)));
            assert!(flushed.await.is_ready(), "more than the kernel has room for goes on by itself");
            assert_eq!(read_exactly(&mut link, 3).await, b"all");
            link.flush().await.expect("all has left");
        });
    });
}

/// Over epoll: over io_uring it is for the caller to wait, see `Link::poll_flush`.
#[test]
fn what_was_handed_over_leaves_before_a_link_that_is_dropped() {
    each_mode(|settings| {
        if settings.mode != tidegate_link::Mode::Epoll {
            return;
        }
        let peer = |mut stream: TcpStream| {
            let mut heard = String::new();
            stream.read_to_string(&mut heard).expect("an end");
            heard
        };
        let ((), heard) = with_peer(settings, peer, |_, mut link| async move {
            link.write(&b"last words"[..]);
            let flushed = std::future::poll_fn(|cx| Poll::Ready(link.poll_flush(cx)));
            assert!(flushed.await.is_ready());
        });
        assert_eq!(heard, "last words");
    });
}

#[test]
fn bytes_for_a_peer_that_is_gone_end_the_link() {
    each_mode(|settings| {
        let (told, left) = std::sync::mpsc::channel();
        let peer = move |stream: TcpStream| {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket");
            drop(stream);
            told.send(()).expect("a link that waits");
        };
        with_peer(settings, peer, move |_, mut link| async move {
            left.recv().expect("the peer");
            link.write(&b"too late"[..]);
            let _ = link.flush().await;
            let heard = link.read().await;
            assert!(heard.map_or(true, |chunk| chunk.is_empty()), "it has ended");
        });
    });
}

#[test]
fn the_end_of_the_stream_is_an_empty_chunk_and_the_other_direction_lives_on() {
    each_mode(|settings| {
        let peer = |mut stream: TcpStream| {
            stream.write_all(b"last words").expect("an open stream");
            stream.shutdown(Shutdown::Write).expect("an open stream");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            answer
        };
        let ((), answer) = with_peer(settings, peer, |_, mut link| async move {
            assert_eq!(read_to_end(&mut link).await, b"last words");
            assert!(link.read().await.expect("an end, again").is_empty());
            link.write(&b"farewell"[..]);
            link.flush().await.expect("a peer that reads");
        });
        assert_eq!(answer, "farewell");
    });
}

#[test]
fn a_reset_is_an_error() {
    each_mode(|settings| {
        let peer = |stream: TcpStream| {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a socket");
        };
        let (error, ()) = with_peer(settings, peer, |_, mut link| async move { link.read().await.map(drop) });
        assert_eq!(error.expect_err("a reset").kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn a_link_that_is_shut_down_ends_its_own_receive() {
    each_mode(|settings| {
        let peer = |mut stream: TcpStream| stream.read(&mut [0]).expect("an end");
        let ((), heard) = with_peer(settings, peer, |_, mut link| async move {
            let armed = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx).is_pending()));
            assert!(armed.await);
            link.shutdown();
            assert!(link.read().await.expect("an end").is_empty());
        });
        assert_eq!(heard, 0);
    });
}

#[test]
fn what_is_put_back_is_read_first() {
    each_mode(|settings| {
        let peer = |mut stream: TcpStream| stream.write_all(b"three").expect("a link that reads");
        with_peer(settings, peer, |_, mut link| async move {
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
fn nothing_is_lost_when_a_caller_stops_polling() {
    each_mode(|settings| {
        let peer = |mut stream: TcpStream| {
            for piece in pattern(20_000).chunks(997) {
                stream.write_all(piece).expect("a link that reads");
            }
        };
        with_peer(settings, peer, |reactor, mut link| async move {
            let mut heard = Vec::new();
            while heard.len() < 20_000 {
                // A read that is given up at once, again and again.
                for _ in 0..3 {
                    let given_up = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx)));
                    if let Poll::Ready(chunk) = given_up.await {
                        heard.extend_from_slice(&chunk.expect("bytes"));
                    }
                }
                reactor.sleep(Duration::from_micros(10)).await;
            }
            assert_eq!(heard, pattern(20_000));
        });
    });
}

#[test]
fn a_link_dropped_with_a_receive_under_way_frees_its_descriptor() {
    each_mode(|settings| {
        let (near, mut far) = tcp_pair();
        let socket = name_of(&near);
        run(settings, |reactor| async move {
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
fn a_link_dropped_while_the_peer_does_not_read_frees_its_descriptor() {
    each_mode(|settings| {
        let (near, far) = tcp_pair();
        let socket = name_of(&near);
        run(settings, |reactor| async move {
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

/// As it stands in `/proc/self/fd`.
fn name_of(fd: &OwnedFd) -> PathBuf {
    let inode = fstat(fd).expect("an open descriptor").st_ino;
    let name = PathBuf::from(format!("socket:[{inode}]"));
    assert_eq!(fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("an open descriptor"), name);
    name
}

/// Whether this process has a descriptor of that name.
fn is_open(name: &PathBuf) -> bool {
    let open = fs::read_dir("/proc/self/fd").expect("a list of descriptors");
    // One that was closed meanwhile has no name.
    open.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|target| target == *name))
}

#[test]
fn a_burst_does_not_change_what_comes_after_it() {
    each_mode(|settings| {
        let peer = |mut stream: TcpStream| {
            for len in [1, 16_384, 300_000, 1, 16_383, 1 << 20, 5] {
                ask_for_echo(&stream, &pattern(len));
            }
            stream.write_all(b"end").expect("an open stream");
        };
        with_peer(settings, peer, |_, mut link| async move {
            for len in [1, 16_384, 300_000, 1, 16_383, 1 << 20, 5] {
                let words = read_exactly(&mut link, len).await;
                link.write(words);
                link.flush().await.expect("a peer that reads");
            }
            assert_eq!(read_to_end(&mut link).await, b"end");
        });
    });
}

#[test]
fn a_peer_that_changes_its_pace_is_heard_in_order() {
    const ROUNDS: usize = 12;
    // Long rows of small pieces, then one larger than many buffers.
    let pieces = || (0..ROUNDS).flat_map(|round| [1 + round; 40].into_iter().chain([300_000, 16 * 1024]));
    let total: usize = pieces().sum();
    each_mode(|settings| {
        // It goes on when the piece before was heard, so that each is received by itself.
        let peer = move |mut stream: TcpStream| {
            let (all, mut at) = (pattern(total), 0);
            for len in pieces() {
                stream.write_all(&all[at..at + len]).expect("a link that reads");
                stream.read_exact(&mut [0]).expect("a word of it");
                at += len;
            }
        };
        let listen = |_, mut link: Link| async move {
            let mut heard = Vec::new();
            for len in pieces() {
                heard.extend(read_exactly(&mut link, len).await);
                link.write(vec![1]);
                link.flush().await.expect("a peer that reads");
            }
            heard
        };
        let (heard, ()) = with_peer(settings, peer, listen);
        assert!(heard == pattern(total), "{} bytes of {total} arrived, or not the same", heard.len());
    });
}

/// One that sends as fast as it is read would have the thread for itself.
#[test]
fn a_peer_with_much_to_say_lets_other_tasks_have_their_turns() {
    each_mode(|settings| {
        let most = run(settings, |reactor| async move {
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
        assert!(most <= settings.bulk_len, "{most} bytes were read in one turn");
    });
}
