//! Faults of the program that tests inject: a task of one shape panics.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::StatusCode;
use tidegate_config::stream::GatewayTarget;
use tidegate_shapes::{DatabaseLogin, ServerStatus};

use crate::fixture::{Fixture, LIMIT, ShapeReader, postgres};

/// A server of which a task panics when it opens a connection to the database.
struct FaultyServer {
    fixture: Fixture,
    is_faulty: Arc<AtomicBool>,
    _folder: tempfile::TempDir,
}

impl FaultyServer {
    async fn start() -> Self {
        let postgres = tokio::task::spawn_blocking(|| postgres(18)).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let is_faulty = Arc::new(AtomicBool::new(false));
        let socket = postgres.socket_dir().join(format!(".s.PGSQL.{}", postgres.port()));
        let flag = Arc::clone(&is_faulty);
        let open = move || -> io::Result<UnixStream> {
            assert!(!flag.load(Ordering::SeqCst), "a fault that the test injects");
            UnixStream::connect(&socket)
        };
        let target = GatewayTarget::from_url("gateway://postgres@postgres").unwrap();
        let login = DatabaseLogin::through_gateway(Arc::new(open), &target);
        // The periodic checks open connections too.
        let fixture = Fixture::with_login(
            postgres,
            folder.path().to_owned(),
            |options| options.catalogue_interval = Duration::from_secs(3600),
            login,
        );
        Self { fixture: fixture.await.ready().await, is_faulty, _folder: folder }
    }

    fn faults(&self) -> u64 {
        self.fixture.server.snapshot().totals.faults
    }

    /// The next task that needs a connection panics, or finds that its idle connection has been closed.
    async fn break_connections(&self) {
        self.is_faulty.store(true, Ordering::SeqCst);
        self.fixture
            .sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tidegate shapes'")
            .await;
    }

    fn repair(&self) {
        self.is_faulty.store(false, Ordering::SeqCst);
    }
}

/// A client of another shape misses nothing.
async fn goes_on(server: &FaultyServer, reader: &mut ShapeReader, id: u32) {
    server.fixture.sql(format!("INSERT INTO items VALUES ({id}, 1)")).await;
    while !reader.column("id").contains(&id.to_string()) {
        reader.poll(&server.fixture).await;
    }
    assert_eq!((reader.refetches, server.fixture.server.status()), (0, ServerStatus::Active));
}

/// SH-53: a request that waits for the snapshot gets status 503, and a later one the shape.
#[tokio::test(flavor = "multi_thread")]
async fn panic_in_a_snapshot_ends_its_shape_only() {
    let server = FaultyServer::start().await;
    let fixture = &server.fixture;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, n int); INSERT INTO items VALUES (1, 1)").await;
    let mut other = fixture.load("table=items").await;
    server.break_connections().await;
    let mut number = 0;
    let panicked = async {
        while server.faults() == 0 {
            number += 1;
            let reply = fixture.get(&format!("table=items&where=n%3D{number}&offset=-1")).await;
            assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{reply:?}");
            assert_eq!(reply.header("retry-after"), Some("10"));
        }
    };
    tokio::time::timeout(LIMIT, panicked).await.expect("the snapshot panics");
    assert_eq!(fixture.server.shape_count(), 1);
    goes_on(&server, &mut other, 2).await;
    server.repair();
    assert_eq!(fixture.load(&format!("table=items&where=n%3D{number}")).await.refetches, 0);
    let totals = fixture.server.snapshot().totals;
    assert_eq!((totals.snapshots_running, totals.waiting, totals.faults), (0, 0, 1));
}

/// SH-37, SH-53: a request that waits for a change gets status 409.
#[tokio::test(flavor = "multi_thread")]
async fn panic_in_a_move_ends_its_shape_only() {
    let server = FaultyServer::start().await;
    let fixture = &server.fixture;
    fixture.sql("CREATE TABLE items (id int8 PRIMARY KEY, n int); INSERT INTO items VALUES (1, 1)").await;
    fixture.sql("CREATE TABLE groups (n int PRIMARY KEY)").await;
    let mut other = fixture.load("table=items").await;
    let mut reader = ShapeReader::new("table=items&where=n%20IN%20(SELECT%20n%20FROM%20groups)");
    let panicked = async {
        let mut is_member = false;
        while server.faults() == 0 {
            server.repair();
            reader.catch_up(fixture).await;
            server.break_connections().await;
            let sql = if is_member { "DELETE FROM groups" } else { "INSERT INTO groups VALUES (1)" };
            is_member = !is_member;
            let refetches = reader.refetches;
            let ((), _) = tokio::join!(
                async {
                    while reader.refetches == refetches {
                        reader.poll(fixture).await;
                    }
                },
                fixture.sql(sql)
            );
        }
        is_member
    };
    let is_member = tokio::time::timeout(LIMIT, panicked).await.expect("the move panics");
    goes_on(&server, &mut other, 2).await;
    // The snapshots that the answer with status 409 began have panicked as well.
    server.repair();
    reader.catch_up(fixture).await;
    assert_eq!(reader.column("id").is_empty(), !is_member);
}
