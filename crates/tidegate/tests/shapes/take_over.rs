//! `--take-over` with `[shapes]`: the next process serves the same logs from the same slot.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tidegate_sandbox::{Major, Postgres};
use tidegate_testkit::{Gateway, Process, eventually};

use crate::follower::{Follower, Materialised};
use crate::gateway::{free_address, get};

/// A process that takes over from the gateway.
fn take_over(gateway: &Gateway) -> Process {
    let mut command = Command::new(Gateway::binary(env!("CARGO_BIN_EXE_tidegate")));
    command.args(["run", "--take-over", "-c"]).arg(gateway.folder().join("tidegate.toml"));
    let process = Process::spawn(command, gateway.address(), tempfile::tempdir().unwrap());
    eventually("the process takes over", || process.log().contains("took over from the previous process"));
    process
}

/// Clients that wait get an answer, and find their shapes in the next process, while rows are written and a third process takes
/// over.
#[test]
fn shapes_go_on_in_the_new_process() {
    let postgres = Postgres::builder().version(Major(18)).setting("wal_level", "logical").start().unwrap();
    postgres.simple_query("CREATE TABLE items (id int8 PRIMARY KEY, name text)").unwrap();
    let (folder, shapes) = (tempfile::tempdir().unwrap(), free_address());
    let dir = folder.path().display();
    let config = format!(
        "[listen]\nunix_socket_dir = \"{dir}\"\n[shapes]\ndatabase = \"{}\"\naddresses = [\"{shapes}\"]\n\
         storage = \"{dir}/logs\"\n",
        postgres.url()
    );
    let server = SocketAddr::from(([127, 0, 0, 1], postgres.port()));
    let mut old = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), server, &config);
    eventually("the server follows the database", || get(shapes, "/v1/health").contains("\"active\""));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let states: Vec<_> = (0..8).map(|_| Arc::new(Mutex::new(Materialised::default()))).collect();
    let followers: Vec<_> = (0..)
        .zip(&states)
        .map(|(number, state)| {
            let shape = format!("table=items&where=id%20%25%204%20%3D%20{}", number % 4);
            runtime.spawn(Follower::new(shapes, &shape).follow(Arc::clone(&stop), Arc::clone(state)))
        })
        .collect();
    let rows = || states.iter().map(|state| state.lock().unwrap().rows.len()).sum::<usize>();
    let write = |ids: std::ops::Range<u32>| {
        for id in ids {
            postgres.simple_query(&format!("INSERT INTO items VALUES ({id}, 'x')")).unwrap();
        }
    };
    write(0..40);
    eventually("all rows arrive", || rows() == 80);
    let mut first = take_over(&old);
    write(40..80);
    assert!(old.wait().success());
    eventually("rows written meanwhile arrive", || rows() == 160);
    let second = take_over(&old);
    write(80..120);
    assert!(first.wait().success());
    eventually("rows after the second process arrive", || rows() == 240);
    stop.store(true, Ordering::SeqCst);
    // The followers wait for one more change.
    write(120..124);
    followers.into_iter().for_each(|follower| runtime.block_on(follower).unwrap());
    for state in &states {
        let state = state.lock().unwrap();
        assert_eq!((state.refetches, state.refusals), (0, 0), "{state:?}\n{}\n{}", old.log(), second.log());
    }
    for log in [old.log(), first.log(), second.log()] {
        assert!(!log.contains("another process reads the replication slot") && !log.contains("ERROR"), "{log}");
    }
    assert!(old.log().contains("live queries ended"), "{}", old.log());
}
