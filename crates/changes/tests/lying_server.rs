//! A server that breaks the protocol, or the connection, at every place.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidegate_changes::{
    ChangeEvent, ChangeOptions, ChangeStream, ChangeStreamError, ConnectOptions, ErrorClass, Lsn, ReplicaIdentity,
};
use tidegate_wire::{
    Frames,
    backend::{self, ErrorReport, TxStatus},
    frontend,
    replication::{
        keepalive,
        pgoutput::{
            ColumnValue, RelationField,
            encode::{self, RelationFields},
        },
        xlog_data,
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

const DEADLINE: Duration = Duration::from_secs(60);

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out);
    out
}

fn copy(payload: &[u8]) -> Vec<u8> {
    written(|out| frontend::copy_data(payload, out))
}

fn data(message: &[u8]) -> Vec<u8> {
    copy(&written(|out| xlog_data(Lsn(1), Lsn(1), 0, message, out)))
}

fn alive(end: u64, reply: bool) -> Vec<u8> {
    copy(&written(|out| keepalive(Lsn(end), 0, reply, out)))
}

/// A transaction of two rows.
fn transaction(commit: u64) -> Vec<u8> {
    let id = RelationField { is_key: true, name: b"id", type_oid: 20, type_modifier: -1 };
    let identity = ReplicaIdentity::Default;
    let fields = RelationFields { oid: 9, schema: b"public", name: b"t", identity, columns: &[id] };
    let row = data(&written(|out| encode::insert(None, 9, &[ColumnValue::Text(b"1")], out)));
    [
        data(&written(|out| encode::begin(Lsn(commit), 0, 7, out))),
        data(&written(|out| encode::relation(None, &fields, out))),
        row.clone(),
        row,
        data(&written(|out| encode::commit(Lsn(commit), Lsn(commit + 8), 0, out))),
    ]
    .concat()
}

/// Bytes of the server after START_REPLICATION, by the number of the connection, and whether it closes it then.
type Script = Arc<dyn Fn(usize) -> (Vec<u8>, bool) + Send + Sync>;

/// Starts the server; returns its port, and the count of status updates.
async fn serve(script: Script) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (replies, connections) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&replies);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let (script, replies, connections) = (Arc::clone(&script), Arc::clone(&counted), Arc::clone(&connections));
            tokio::spawn(async move { drop(session(socket, &script, &replies, &connections).await) });
        }
    });
    (port, replies)
}

async fn session(
    mut socket: TcpStream,
    script: &Script,
    replies: &AtomicUsize,
    connections: &AtomicUsize,
) -> std::io::Result<()> {
    let len = socket.read_u32().await? as usize;
    let mut startup = vec![0; len - 4];
    socket.read_exact(&mut startup).await?;
    let hello = written(|out| {
        backend::authentication_ok(out);
        backend::parameter_status(b"server_version", b"18.0", out);
        backend::ready_for_query(TxStatus::Idle, out);
    });
    socket.write_all(&hello).await?;
    let mut received = Vec::new();
    loop {
        if socket.read_buf(&mut received).await? == 0 {
            return Ok(());
        }
        let mut frames = Frames::new(&received);
        let whole: Vec<(u8, Vec<u8>)> =
            frames.by_ref().map(|frame| frame.map(|frame| (frame.tag, frame.body().to_vec())).unwrap()).collect();
        received = frames.rest().to_vec();
        for (tag, body) in whole {
            match tag {
                frontend::COPY_DATA => {
                    replies.fetch_add(1, Ordering::Relaxed);
                }
                frontend::QUERY if body.starts_with(b"START_REPLICATION") => {
                    socket.write_all(&[backend::COPY_BOTH_RESPONSE, 0, 0, 0, 7, 0, 0, 0]).await?;
                    let number = connections.fetch_add(1, Ordering::Relaxed);
                    let (bytes, ends) = script(number);
                    socket.write_all(&bytes).await?;
                    if ends {
                        return Ok(());
                    }
                }
                frontend::QUERY => socket.write_all(&answer(&body)).await?,
                _ => {}
            }
        }
    }
}

fn answer(query: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(query);
    let row: &[Option<&[u8]>] = if text.starts_with("IDENTIFY_SYSTEM") {
        &[Some(b"1"), Some(b"1"), Some(b"0/0"), Some(b"d")]
    } else if text.contains("pg_replication_slots") {
        &[
            Some(b"s"),
            Some(b"pgoutput"),
            Some(b"d"),
            None,
            Some(b"0/1"),
            Some(b"0/1"),
            Some(b"reserved"),
            None,
            None,
            None,
            None,
            None,
            Some(b"f"),
            Some(b"0"),
            Some(b"0"),
        ]
    } else {
        &[Some(b"f"), Some(b"FF/0"), Some(b"60000")]
    };
    written(|out| {
        backend::data_row(row, out);
        backend::command_complete(b"SELECT 1", out);
        backend::ready_for_query(TxStatus::Idle, out);
    })
}

fn options(port: u16) -> ChangeOptions {
    let connect = ConnectOptions::from_url(&format!("postgres://u@127.0.0.1:{port}/d?sslmode=disable")).unwrap();
    let backoff = tidegate_backoff::Backoff::new(Duration::from_millis(1), Duration::from_millis(5));
    ChangeOptions { backoff, ..ChangeOptions::new(connect, "s", "p") }
}

/// Reads until the commit at this position; returns the ids of changes.
async fn ids_up_to(stream: &mut ChangeStream, commit: u64) -> Vec<String> {
    let mut ids = Vec::new();
    loop {
        let event = tokio::time::timeout(DEADLINE, stream.next()).await.expect("deadline").unwrap().unwrap();
        match event {
            ChangeEvent::Change(change) => ids.push(change.id.to_string()),
            ChangeEvent::Commit(found) if found.commit_lsn == Lsn(commit) => return ids,
            _ => {}
        }
    }
}

async fn failure(script: Script) -> ChangeStreamError {
    let (port, _) = serve(script).await;
    let mut stream = ChangeStream::start(options(port));
    loop {
        match tokio::time::timeout(DEADLINE, stream.next()).await.expect("deadline") {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ended without an error"),
            Err(error) => return error,
        }
    }
}

/// The connection ends after every byte: every change arrives once.
#[tokio::test(flavor = "multi_thread")]
async fn stream_survives_a_cut_at_every_byte() {
    let whole = [transaction(100), alive(300, true), transaction(400)].concat();
    let expected = ["0/64/0", "0/64/1", "0/190/0", "0/190/1"];
    for cut in 0..whole.len() {
        let bytes = whole.clone();
        let script = Arc::new(move |number: usize| match number {
            0 => (bytes[..cut].to_vec(), true),
            _ => (bytes.clone(), false),
        });
        let (port, _) = serve(script).await;
        let mut stream = ChangeStream::start(options(port));
        assert_eq!(ids_up_to(&mut stream, 400).await, expected, "cut at {cut}");
    }
}

/// A message that cannot be used is read again, and ends the stream at the third time.
#[tokio::test(flavor = "multi_thread")]
async fn unusable_messages_end_the_stream() {
    let cases = [
        data(b"Z"),
        data(b"I\0\0\0\x09N\xff\xffn"),
        copy(b"x"),
        [transaction(100), transaction(50)].concat(),
        data(&written(|out| encode::commit(Lsn(1), Lsn(2), 0, out))),
        data(&written(|out| encode::insert(None, 9, &[], out))),
    ];
    for (number, bytes) in cases.into_iter().enumerate() {
        let error = failure(Arc::new(move |_| (bytes.clone(), false))).await;
        assert_eq!(error.class(), ErrorClass::Stop, "case {number}: {error}");
        assert!(error.to_string().contains("3 times"), "case {number}: {error}");
    }
}

/// CH-30, CH-37: Postgres 18 warns, and goes on without the changes.
#[tokio::test(flavor = "multi_thread")]
async fn skipped_publication_is_a_gap() {
    let notice = written(|out| {
        let code = tidegate_wire::sqlstate::SqlState::from_bytes(b"55000").unwrap();
        let report = ErrorReport {
            severity: tidegate_wire::backend::Severity::Warning,
            ..ErrorReport::fatal(code, "skipped loading publication \"p\"")
        };
        backend::notice_response(&report, out);
    });
    let bytes = [transaction(100), notice, transaction(200)].concat();
    let error = failure(Arc::new(move |_| (bytes.clone(), false))).await;
    assert_eq!(error.class(), ErrorClass::Gap, "{error}");
}

/// Every keepalive requests a reply; the client limits the rate of its replies.
#[tokio::test(flavor = "multi_thread")]
async fn keepalive_storm_is_answered_at_a_bounded_rate() {
    let storm = alive(50, true).repeat(20_000);
    let bytes = [storm, transaction(100)].concat();
    let (port, replies) = serve(Arc::new(move |_| (bytes.clone(), false))).await;
    let mut stream = ChangeStream::start(options(port));
    assert_eq!(ids_up_to(&mut stream, 100).await.len(), 2);
    assert!(replies.load(Ordering::Relaxed) < 2_000);
}
