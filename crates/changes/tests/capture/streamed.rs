//! Large transactions: streamed mode against the mode in which the server keeps them.

use tidegate_changes::{ChangeOptions, ChangeStream, FileSpill, StreamingOptions, Transaction};

use crate::fixture::{Fixture, builder, take, versions};

fn streaming(folder: &tempfile::TempDir, memory_max: usize) -> Option<StreamingOptions> {
    let store = Box::new(FileSpill::new(folder.path(), 1 << 30).unwrap());
    Some(StreamingOptions { store, memory_max })
}

/// A transaction of inserts, updates and deletes with nested savepoints, some of them rolled back.
fn random_transaction(random: &mut fastrand::Rng, next_id: &mut u64) -> String {
    let mut sql = "begin;".to_owned();
    let mut depth = 0;
    for _ in 0..random.usize(1..60) {
        match random.u8(..8) {
            0 => {
                depth += 1;
                sql.push_str(&format!("savepoint s{depth};"));
            }
            1 if depth > 0 => {
                let to = random.usize(1..=depth);
                sql.push_str(&format!("rollback to s{to};"));
                depth = to;
            }
            2 if depth > 0 => {
                sql.push_str(&format!("release s{depth};"));
                depth -= 1;
            }
            3 => sql.push_str(&format!("update t set v = 'u' where id = {};", random.u64(..*next_id + 1))),
            4 => sql.push_str(&format!("delete from t where id = {};", random.u64(..*next_id + 1))),
            _ => {
                let rows = random.u64(1..300);
                sql.push_str(&format!(
                    "insert into t select n, repeat('x', 40) from generate_series({}, {}) n;",
                    *next_id,
                    *next_id + rows
                ));
                *next_id += rows + 1;
            }
        }
    }
    sql.push_str(if random.u8(..8) == 0 {
        "rollback"
    } else {
        "insert into t values (-1); delete from t where id = -1; commit"
    });
    sql
}

/// Identity, frame and end of every change.
fn contents(transactions: &[Transaction]) -> Vec<(tidegate_changes::ChangeId, Vec<u8>)> {
    let changes = transactions.iter().flat_map(|transaction| &transaction.changes);
    changes.map(|change| (change.id, change.frame().to_vec())).collect()
}

/// CH-53, CH-56, and the stable identity over both modes.
#[tokio::test(flavor = "multi_thread")]
async fn streamed_mode_gives_the_changes_of_the_other() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for major in versions() {
        let fixture = Fixture::with(builder(major).setting("logical_decoding_work_mem", "64kB"));
        fixture.create_slot("streamed").await;
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut next_id, mut committed) = (1, 0);
        for _ in 0..30 {
            let sql = random_transaction(&mut random, &mut next_id);
            committed += usize::from(sql.ends_with("commit"));
            fixture.sql(&sql);
        }
        let mut plain = ChangeStream::start(fixture.options());
        let expected = take(&mut plain, committed, true).await;
        let folder = tempfile::tempdir().unwrap();
        let options =
            ChangeOptions { slot: "streamed".to_owned(), streaming: streaming(&folder, 100_000), ..fixture.options() };
        let mut streamed = ChangeStream::start(options);
        let found = take(&mut streamed, committed, true).await;
        assert!(contents(&found) == contents(&expected), "the modes differ on Postgres {major}, seed {seed}");
        let status = streamed.status();
        assert!(status.spilled_bytes_total > 0, "nothing was streamed on Postgres {major}, seed {seed}");
        let ends = |transactions: &[Transaction]| -> Vec<_> { transactions.iter().map(|found| found.commit).collect() };
        assert_eq!(ends(&found), ends(&expected), "seed {seed}");
    }
}

/// A large transaction that is open while others commit, and then rolled back.
#[tokio::test(flavor = "multi_thread")]
async fn rolled_back_streamed_transaction_leaves_nothing() {
    for major in versions() {
        let fixture = Fixture::with(builder(major).setting("logical_decoding_work_mem", "64kB"));
        let folder = tempfile::tempdir().unwrap();
        let mut stream =
            ChangeStream::start(ChangeOptions { streaming: streaming(&folder, 1 << 20), ..fixture.options() });
        let mut holder = fixture.connection().await;
        holder.query("begin; insert into t select n, repeat('x', 40) from generate_series(1, 20000) n").await.unwrap();
        fixture.sql("insert into t values (-1)");
        assert_eq!(take(&mut stream, 1, true).await[0].changes.len(), 1);
        holder.query("rollback").await.unwrap();
        fixture.sql("insert into t values (-2)");
        assert_eq!(take(&mut stream, 1, true).await[0].changes.len(), 1);
        assert_eq!(stream.status().open_tx_bytes, 0);
    }
}

/// CH-53: the store of large transactions has no room: the server keeps them, and the stream goes on.
#[tokio::test(flavor = "multi_thread")]
async fn full_store_leaves_large_transactions_to_the_server() {
    for major in versions() {
        let fixture = Fixture::with(builder(major).setting("logical_decoding_work_mem", "64kB"));
        let folder = tempfile::tempdir().unwrap();
        let store = Box::new(FileSpill::new(folder.path(), 1 << 20).unwrap());
        let streaming = Some(StreamingOptions { store, memory_max: 100_000 });
        let mut stream = ChangeStream::start(ChangeOptions { streaming, ..fixture.options() });
        for start in [0, 20_000] {
            fixture.sql(&format!(
                "insert into t select n, repeat('x', 200) from generate_series({start} + 1, {start} + 20000) n"
            ));
        }
        let found = take(&mut stream, 2, true).await;
        assert_eq!(found.iter().map(|transaction| transaction.changes.len()).collect::<Vec<_>>(), [20_000; 2]);
        let status = stream.status();
        assert!(status.reconnects_total == 1 && status.open_tx_bytes == 0, "{status:?}");
    }
}
