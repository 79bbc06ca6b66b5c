//! Listening sockets that threads share, and their files.

use std::{
    fs,
    io::{ErrorKind, Read},
    net::{Ipv4Addr, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    task::Poll,
    thread::JoinHandle,
};

use tidegate_link::{
    IoMode, Link, Listener, PeerAddress, Reactor, ReactorConfig, ReactorWaker, UnixSocketOptions, unix_address,
};

use crate::stage::{each_mode, modes, run, run_on};

fn listen() -> Listener {
    Listener::tcp((Ipv4Addr::LOCALHOST, 0).into(), 64).expect("a port")
}

/// Greets each client on a thread of its own, until all threads together have served `count`.
fn greeter(
    config: &ReactorConfig,
    listener: &Listener,
    served: &Arc<AtomicUsize>,
    count: usize,
) -> (JoinHandle<usize>, ReactorWaker) {
    let (config, listener, served) = (config.clone(), listener.clone(), served.clone());
    let (ready, remote) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        let reactor = Reactor::new(&config).expect("a reactor");
        let acceptor = Rc::new(listener.accept_on(&reactor).expect("an acceptor"));
        ready.send(reactor.waker()).expect("the main thread");
        let (own, worker) = (Rc::new(AtomicUsize::new(0)), reactor.clone());
        let (mine, all) = (own.clone(), served.clone());
        reactor.spawn(async move {
            loop {
                let accepted = std::future::poll_fn(|cx| acceptor.poll_accept(cx)).await.expect("a connection");
                assert!(matches!(accepted.peer, PeerAddress::Tcp(peer) if peer.ip().is_loopback()));
                let mut link = Link::new(&worker, accepted.fd).expect("a link");
                link.write(&b"hello"[..]);
                link.flush().await.expect("an open peer");
                mine.fetch_add(1, Ordering::SeqCst);
                all.fetch_add(1, Ordering::SeqCst);
            }
        });
        let turn = || {
            if served.load(Ordering::SeqCst) < count {
                std::ops::ControlFlow::Continue(())
            } else {
                std::ops::ControlFlow::Break(())
            }
        };
        reactor.run(turn).expect("the event loop");
        own.load(Ordering::SeqCst)
    });
    (thread, remote.recv().expect("a reactor"))
}

#[test]
fn two_threads_accept_on_one_listener() {
    const CLIENTS: usize = 50;
    let same = modes().into_iter().map(|mode| [mode, mode]);
    // A thread may have io_uring and another epoll.
    for pair in same.chain([[modes()[0], IoMode::Epoll]]) {
        eprintln!("modes: {pair:?}");
        let listener = listen();
        let address = listener.local_addr().expect("its address");
        let served = Arc::new(AtomicUsize::new(0));
        let threads =
            pair.map(|mode| greeter(&ReactorConfig { mode, ..ReactorConfig::default() }, &listener, &served, CLIENTS));
        let clients: Vec<_> = (0..CLIENTS).map(|_| TcpStream::connect(address).expect("a listener")).collect();
        for mut client in clients {
            client.set_read_timeout(Some(crate::stage::PATIENCE)).expect("a timeout");
            let mut greeting = String::new();
            client.read_to_string(&mut greeting).expect("a greeting");
            assert_eq!(greeting, "hello");
        }
        let served_by_each = threads.map(|(thread, remote)| {
            remote.wake();
            thread.join().expect("a greeter")
        });
        assert_eq!(served_by_each.iter().sum::<usize>(), CLIENTS);
    }
}

#[test]
fn accepted_socket_moves_to_another_thread() {
    each_mode(|config| {
        let listener = listen();
        let address = listener.local_addr().expect("its address");
        let client = std::thread::spawn(move || {
            let mut greeting = String::new();
            TcpStream::connect(address).expect("a listener").read_to_string(&mut greeting).expect("a greeting");
            greeting
        });
        let here = Reactor::new(config).expect("a reactor");
        let acceptor = listener.accept_on(&here).expect("an acceptor");
        let accepted = run_on(&here, async move { std::future::poll_fn(|cx| acceptor.poll_accept(cx)).await });
        let (config, fd) = (config.clone(), accepted.expect("a connection").fd);
        let there = std::thread::spawn(move || {
            let reactor = Reactor::new(&config).expect("a reactor");
            let mut link = Link::new(&reactor, fd).expect("a link");
            run_on(&reactor, async move {
                link.write(&b"hello"[..]);
                link.flush().await.expect("an open peer");
            });
        });
        there.join().expect("the other thread");
        assert_eq!(client.join().expect("the client"), "hello");
    });
}

#[test]
fn dropped_acceptor_leaves_clients_to_others() {
    each_mode(|config| {
        let listener = listen();
        let address = listener.local_addr().expect("its address");
        let reactor = Reactor::new(config).expect("a reactor");
        let (first, second) = (listener.accept_on(&reactor), listener.accept_on(&reactor));
        let (first, second) = (first.expect("an acceptor"), second.expect("an acceptor"));
        let clock = reactor.clone();
        let client = run_on(&reactor, async move {
            let armed = std::future::poll_fn(|cx| Poll::Ready(first.poll_accept(cx).is_pending()));
            assert!(armed.await);
            drop(first);
            clock.sleep(std::time::Duration::from_millis(1)).await;
            let client = TcpStream::connect(address).expect("a listener");
            let accepted = std::future::poll_fn(|cx| second.poll_accept(cx)).await.expect("a connection");
            assert!(
                matches!(accepted.peer, PeerAddress::Tcp(peer) if peer == client.local_addr().expect("its address"))
            );
            client
        });
        drop(client);
    });
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tidegate-link-{}-{name}", std::process::id()))
}

const OWN: UnixSocketOptions = UnixSocketOptions { mode: 0o600, group: None, replace: false };

#[test]
fn file_of_a_unix_socket_lives_with_its_listener() {
    let path = path("comes-and-goes");
    let listener = Listener::unix(&path, OWN, 8).expect("a socket");
    assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o600);
    UnixStream::connect(&path).expect("a listener");
    let copy = listener.clone();
    drop(listener);
    UnixStream::connect(&path).expect("a listener, as long as there is a copy");
    drop(copy);
    assert!(!path.exists());
}

#[test]
fn abstract_unix_socket_accepts() {
    each_mode(|config| {
        let path = PathBuf::from(format!("@tidegate-link-{}-{:?}", std::process::id(), config.mode));
        let listener = Listener::unix(&path, OWN, 8).expect("a name");
        assert_eq!((listener.file(), path.exists()), (Some(path.as_path()), false));
        let refused =
            Listener::unix(&path, UnixSocketOptions { replace: true, ..OWN }, 8).expect_err("an address in use");
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        let address = unix_address(&path).expect("a short name");
        assert_eq!(address.as_abstract_namespace(), path.to_str().map(|name| &name.as_bytes()[1..]));
        run(config, |reactor| {
            let (listener, address) = (listener.clone(), address.clone());
            async move {
                let acceptor = listener.accept_on(&reactor).expect("an acceptor");
                let near = reactor.connect(address).await.expect("a listener");
                let far = std::future::poll_fn(|cx| acceptor.poll_accept(cx)).await.expect("a connection");
                assert_eq!(far.peer, PeerAddress::Unix);
                let (mut near, mut far) =
                    (Link::new(&reactor, near).expect("a link"), Link::new(&reactor, far.fd).expect("a link"));
                near.write(b"hello".to_vec());
                near.flush().await.expect("an open link");
                assert_eq!(&*far.read().await.expect("an open link"), b"hello");
            }
        });
        drop(listener);
        Listener::unix(&path, OWN, 8).expect("a free name");
    });
}

#[test]
fn stale_unix_socket_is_replaced() {
    let path = path("left-behind");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    assert!(path.exists(), "the standard library leaves the file");
    let listener = Listener::unix(&path, OWN, 8).expect("a stale socket");
    let refused = Listener::unix(&path, OWN, 8).expect_err("an address in use");
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    drop(listener);
}

#[test]
fn unix_socket_in_use_is_replaced_on_request() {
    let path = path("replaced");
    let old = Listener::unix(&path, OWN, 8).expect("a socket");
    let new =
        Listener::unix(&path, UnixSocketOptions { mode: 0o640, replace: true, ..OWN }, 8).expect("a replaced socket");
    assert_eq!(fs::metadata(&path).expect("a file").permissions().mode() & 0o777, 0o640);
    drop(old);
    UnixStream::connect(&path).expect("the new listener");
    drop(new);
    assert!(!path.exists());
}

#[test]
fn inherited_listener_accepts() {
    let path = path("handed-over");
    let old = Listener::unix(&path, OWN, 8).expect("a socket");
    let fd = std::os::fd::AsFd::as_fd(&old).try_clone_to_owned().expect("a descriptor");
    let new = Listener::from_fd(fd, Some(&path)).expect("it listens");
    old.keep_file();
    drop(old);
    UnixStream::connect(&path).expect("an open listener");
    drop(new);
    assert!(!path.exists());
    let (near, _far) = UnixStream::pair().expect("a pair");
    assert!(Listener::from_fd(near.into(), None).is_err(), "not a listener");
}

#[test]
fn crowd_of_clients_is_accepted() {
    const CLIENTS: usize = 50;
    each_mode(|config| {
        let listener = listen();
        let address = listener.local_addr().expect("an address");
        let accepted = run(config, |reactor| async move {
            let acceptor = listener.accept_on(&reactor).expect("an acceptor");
            let mut accepted = Vec::new();
            // Single clients, many at the same time, and a single one again.
            for crowd in [1, 1, CLIENTS, 1] {
                let clients: Vec<_> = (0..crowd).map(|_| TcpStream::connect(address).expect("a listener")).collect();
                for client in clients {
                    let found = std::future::poll_fn(|cx| acceptor.poll_accept(cx)).await.expect("a client");
                    assert_eq!(found.peer, PeerAddress::Tcp(client.local_addr().expect("an address")));
                    assert_eq!(found.local, Some(address));
                    accepted.push(found);
                }
            }
            accepted.len()
        });
        assert_eq!(accepted, CLIENTS + 3);
    });
}

/// The kernel wakes one waiter per connection: a closing acceptor takes it, or another acceptor does.
#[test]
fn closing_acceptor_loses_no_client() {
    each_mode(|config| {
        let listener = listen();
        let address = listener.local_addr().expect("an address");
        let other =
            Listener::from_fd(std::os::fd::AsFd::as_fd(&listener).try_clone_to_owned().expect("a descriptor"), None);
        let other = other.expect("it listens");
        let accepted = run(config, |reactor| async move {
            let closing = listener.accept_on(&reactor).expect("an acceptor");
            let staying = other.accept_on(&reactor).expect("an acceptor");
            let mut accepted = 0;
            // Both wait, one is woken for the client, and is closed before it accepts.
            for acceptor in [&closing, &staying] {
                let early = std::future::poll_fn(|cx| Poll::Ready(acceptor.poll_accept(cx).is_ready())).await;
                assert!(!early, "no client yet");
            }
            let _client = TcpStream::connect(address).expect("a listener");
            while let Some(client) = std::future::poll_fn(|cx| closing.poll_close(cx)).await {
                accepted += 1;
                drop(client);
            }
            if accepted == 0 {
                std::future::poll_fn(|cx| staying.poll_accept(cx)).await.expect("the client in the backlog");
                accepted += 1;
            }
            accepted
        });
        assert_eq!(accepted, 1);
    });
}

#[test]
fn unix_socket_with_full_backlog_is_in_use() {
    let path = path("full");
    let listener = Listener::unix(&path, OWN, 0).expect("a socket");
    let mut waiting = Vec::new();
    // The backlog of a listener that never accepts fills up; a blocking connect would wait forever.
    loop {
        let client = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
        client.set_nonblocking(true).expect("a socket");
        let full = client.connect(&socket2::SockAddr::unix(&path).expect("a short path")).is_err();
        waiting.push(client);
        if full {
            break;
        }
    }
    let refused = Listener::unix(&path, OWN, 8).expect_err("an address in use");
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    drop(listener);
}

#[test]
fn file_that_is_not_a_socket_is_not_replaced() {
    let path = path("no-socket");
    fs::write(&path, "precious").expect("a file");
    let refused = Listener::unix(&path, OWN, 8).expect_err("a file is in the way");
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
    assert_eq!(fs::read_to_string(&path).expect("the file"), "precious");
    fs::remove_file(path).expect("the file");
}

#[test]
fn port_in_use_is_refused() {
    let listener = listen();
    let refused = Listener::tcp(listener.local_addr().expect("its address"), 8).expect_err("a port in use");
    assert_eq!(refused.kind(), ErrorKind::AddrInUse);
}

/// A pooled connection without these options delays small messages, and outlives a peer whose machine is switched off.
#[test]
fn connections_have_nodelay_and_keepalive() {
    each_mode(|config| {
        let reactor = Reactor::new(config).expect("a reactor");
        let owned = reactor.clone();
        run_on(&reactor, async move {
            let listener = listen();
            let address = listener.local_addr().expect("its address");
            let acceptor = listener.accept_on(&owned).expect("an acceptor");
            let near = owned.connect(address.into()).await.expect("a connection");
            let far = std::future::poll_fn(|cx| acceptor.poll_accept(cx)).await.expect("a connection");
            for fd in [&near, &far.fd] {
                let socket = socket2::SockRef::from(fd);
                assert!(socket.tcp_nodelay().expect("an option") && socket.keepalive().expect("an option"));
                assert_eq!(socket.tcp_keepalive_time().expect("an option").as_secs(), 60);
            }
        });
    });
}
