//! A thread's receive buffers are few; more links than buffers still get their bytes.

use std::{io::Write, num::NonZeroU16, os::unix::net::UnixStream, task::Poll};

use tidegate_link::{Link, Settings};

use crate::stage::{each_mode, pattern, read_exactly, run};

const LINKS: usize = 64;

fn eight_buffers(settings: &Settings) -> Settings {
    let buffers = NonZeroU16::new(8).expect("8 is not zero");
    Settings { buffers, buffer_len: 1024, bulk_len: 8192, ..settings.clone() }
}

#[test]
fn links_that_each_hold_a_chunk_leave_bytes_for_the_others() {
    each_mode(|settings| {
        run(&eight_buffers(settings), |reactor| async move {
            let pairs = (0..LINKS).map(|_| UnixStream::pair().expect("a pair"));
            let (mut links, mut peers): (Vec<_>, Vec<_>) =
                pairs.map(|(near, far)| (Link::new(&reactor, near.into()).expect("a link"), far)).unzip();
            let mut held = Vec::new();
            for round in 0..3_u8 {
                // All wait at once, so that the buffers run out while receives are under way.
                for link in &mut links {
                    let armed = std::future::poll_fn(|cx| Poll::Ready(link.poll_read(cx).is_pending()));
                    assert!(armed.await);
                }
                for (index, peer) in peers.iter_mut().enumerate() {
                    peer.write_all(&[round, index as u8]).expect("a link that reads");
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
    each_mode(|settings| {
        run(&eight_buffers(settings), |reactor| async move {
            let mut threads = Vec::new();
            let mut links = Vec::new();
            for _ in 0..LINKS {
                let (near, mut far) = UnixStream::pair().expect("a pair");
                threads.push(std::thread::spawn(move || far.write_all(&pattern(BYTES)).expect("a link that reads")));
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
