//! A sink behind a transaction pooler: other clients get the same server connection, so nothing may be left in the session.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use tidegate_testkit::Fixture;

use crate::process::{Stream, TempFolder, numbers};

/// Terminate.
const TERMINATE: &[u8] = b"X\0\0\0\x04";

/// Relays one client to the server, and keeps the server connection when the client has left: what the server sends from then on
/// goes to the receiver.
fn relay_one(listener: TcpListener, server: u16) -> thread::JoinHandle<(TcpStream, Receiver<Vec<u8>>)> {
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
        let (mut from_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let (sender, later) = channel();
        let has_left = Arc::new(AtomicBool::new(false));
        let client_has_left = Arc::clone(&has_left);
        thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let Ok(count @ 1..) = from_server.read(&mut chunk) {
                if client_has_left.load(Ordering::SeqCst) {
                    drop(sender.send(chunk[..count].to_vec()));
                } else {
                    drop(to_client.write_all(&chunk[..count]));
                }
            }
        });
        let (mut client, mut to_server, mut chunk) = (client, server.try_clone().unwrap(), [0; 8192]);
        while let Ok(count @ 1..) = client.read(&mut chunk) {
            let bytes = chunk[..count].strip_suffix(TERMINATE).unwrap_or(&chunk[..count]);
            to_server.write_all(bytes).unwrap();
        }
        has_left.store(true, Ordering::SeqCst);
        drop(client.shutdown(Shutdown::Both));
        (server, later)
    })
}

#[test]
fn sink_leaves_nothing_in_the_session() {
    let (folder, fixture) = (TempFolder::new(), Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 18));
    let table = fixture.create_table("n int, statement_timeout text");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://postgres@{}/postgres?sslmode=disable", listener.local_addr().unwrap());
    let pooler = relay_one(listener, fixture.server.port());
    let file = folder.write("in.ndjson", &numbers(0..300, 3));
    let sql = format!("insert into {table} values ($1, current_setting('statement_timeout'))");
    let arguments = ["--from", &file, "--key", "/k", "--to", &url, "--sql", &sql, "--param", "/n"];
    let more = ["--connections", "1", "--batch", "20", "--timeout", "77s", "--attempts", "1"];
    Stream::run(arguments.iter().chain(&more)).expect(0);
    let limits = format!("select distinct statement_timeout || ' ' || count(*) over () from {table}");
    assert_eq!(fixture.server.value(&limits), "77s 300", "the limit holds for each statement");
    // The next client of the same server connection.
    let (mut server, replies) = pooler.join().unwrap();
    let sql = "select 'timeout=' || current_setting('statement_timeout') || ' statements=' || \
               (select count(*) from pg_prepared_statements) || ' application=' || \
               coalesce((select source from pg_settings where name = 'statement_timeout'), '')\0";
    let length = u32::try_from(sql.len() + 4).unwrap().to_be_bytes();
    server.write_all(&[b"Q", &length[..], sql.as_bytes()].concat()).unwrap();
    let mut reply = Vec::new();
    while !reply.ends_with(b"Z\0\0\0\x05I") {
        reply.extend(replies.recv().unwrap());
    }
    let reply = String::from_utf8_lossy(&reply).into_owned();
    assert!(reply.contains("timeout=0 statements=0"), "{reply}");
}
