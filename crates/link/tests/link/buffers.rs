//! A thread has few receive buffers; more links than buffers still receive their bytes.

use std::{io::Write, num::NonZeroU16, os::unix::net::UnixStream, task::Poll};

use tidegate_link::{Link, ReactorConfig};

use crate::stage::{each_mode, pattern, read_exactly, run};

const LINKS: usize = 64;

fn eight_buffers(config: &ReactorConfig) -> ReactorConfig {
    let buffers = NonZeroU16::new(8).expect("8 is not zero");
    ReactorConfig { buffer_count: buffers, buffer_len: 1024, bulk_buffer_len: 8192, ..config.clone() }
}

#[test]
fn held_chunks_do_not_block_other_links() {
    each_mode(|config| {
        run(&eight_buffers(config), |reactor| async move {
            let pairs = (0..LINKS).map(|_| UnixStream::pair().expect("a pair"));
            let (mut links, mut peers): (Vec<_>, Vec<_>) =
                pairs.map(|(near, far)| (Link::new(&reactor, near.into()).expect("a link"), far)).unzip();
            let mut held = Vec::new();
            for round in 0..3_u8 {
                // All links wait at the same time, so that the buffers run out while receives are in flight.
                for link in &mut links {
                    let armed = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx).is_pending()));
                    assert!(armed.await);
                }
                for (index, peer) in peers.iter_mut().enumerate() {
                    peer.write_all(&[round, index as u8]).expect("an open link");
                }
                for (index, link) in links.iter_mut().enumerate() {
                    let chunk = link.read().await.expect("bytes");
                    assert_eq!(&*chunk, &[round, index as u8]);
                    held.push(chunk);
                }
            }
            assert_eq!(held.len(), 3 * LINKS);
        });
    });
}

#[test]
fn bursts_larger_than_all_buffers_arrive_whole() {
    const BYTES: usize = 100_000;
    each_mode(|config| {
        run(&eight_buffers(config), |reactor| async move {
            let mut threads = Vec::new();
            let mut links = Vec::new();
            for _ in 0..LINKS {
                let (near, mut far) = UnixStream::pair().expect("a pair");
                threads.push(std::thread::spawn(move || far.write_all(&pattern(BYTES)).expect("an open link")));
                links.push(Link::new(&reactor, near.into()).expect("a link"));
            }
            let mut held = Vec::new();
            for link in &mut links {
                held.push(link.read().await.expect("bytes"));
            }
            for (link, first) in links.iter_mut().zip(held) {
                let rest = read_exactly(link, BYTES - first.len()).await;
                assert!([&*first, &rest].concat() == pattern(BYTES), "a burst arrived changed");
            }
            for thread in threads {
                thread.join().expect("a peer");
            }
        });
    });
}

#[test]
fn bulk_hint_delays_no_bytes_and_no_timer() {
    const BYTES: usize = 1 << 20;
    each_mode(|config| {
        run(config, |reactor| async move {
            let (mut threads, mut links) = (Vec::new(), Vec::new());
            for _ in 0..2 {
                let (near, mut far) = UnixStream::pair().expect("a pair");
                threads.push(std::thread::spawn(move || {
                    far.write_all(&pattern(BYTES)).expect("an open link");
                    far
                }));
                links.push(Link::new(&reactor, near.into()).expect("a link"));
            }
            let mut received = vec![Vec::new(); 2];
            while received.iter().any(|bytes| bytes.len() < BYTES) {
                for (link, bytes) in links.iter_mut().zip(&mut received) {
                    if bytes.len() < BYTES {
                        bytes.extend_from_slice(&link.read().await.expect("bytes"));
                        link.hint_bulk_receive();
                    }
                }
            }
            assert!(received.iter().all(|bytes| *bytes == pattern(BYTES)), "other bytes arrived");
            // A hint without any data to come.
            links.iter().for_each(Link::hint_bulk_receive);
            reactor.sleep(std::time::Duration::from_millis(1)).await;
            let mut peers: Vec<UnixStream> = threads.into_iter().map(|peer| peer.join().expect("a peer")).collect();
            links.iter().for_each(Link::hint_bulk_receive);
            peers[1].write_all(b"x").expect("an open link");
            assert_eq!(&*links[1].read().await.expect("a byte"), b"x");
        });
    });
}
