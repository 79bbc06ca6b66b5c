//! Copies of tables while they change.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tidegate_changes::{
    ChangeEvent, ChangeKind, ChangeOptions, ChangeStream, ColumnValue, ErrorClass, ExportedSnapshot, PgSnapshot,
    RowOperation, SnapshotEvent, SnapshotOptions, SnapshotState, SnapshotStream, slots::NewSlot,
};

use tokio::task::JoinHandle;

use crate::fixture::{Fixture, builder, versions, within};

type Row = BTreeMap<String, Option<String>>;

/// A consumer that keeps the tables in memory, by schema and key.
#[derive(Default)]
struct Copy {
    rows: BTreeMap<(String, String), Row>,
    state: Option<SnapshotState>,
}

fn owned(value: ColumnValue<'_>) -> Option<String> {
    value.bytes().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

impl Copy {
    fn apply(&mut self, event: &SnapshotEvent) {
        match event {
            SnapshotEvent::Rows(rows) => {
                for row in &rows.rows {
                    let values: Row =
                        rows.columns(row).map(|(column, value)| (column.name.to_string(), owned(value))).collect();
                    let id = values["id"].clone().unwrap();
                    self.rows.insert((rows.relation.name.to_string(), id), values);
                }
            }
            SnapshotEvent::Change(ChangeEvent::Change(change)) => match &change.kind {
                ChangeKind::Row(row) => self.change(row),
                ChangeKind::Truncate(truncate) => {
                    for table in &truncate.relations {
                        self.rows.retain(|(name, _), _| **name != *table.name);
                    }
                }
                ChangeKind::Message(_) => {}
            },
            SnapshotEvent::Change(_) => {}
            SnapshotEvent::Complete(state) => self.state = Some(state.clone()),
        }
    }

    fn change(&mut self, row: &tidegate_changes::RowChange) {
        let table = row.relation().name.to_string();
        let old_id = row.before().find(|(column, _)| &*column.name == "id").and_then(|(_, value)| owned(value));
        let mut values = old_id.and_then(|id| self.rows.remove(&(table.clone(), id))).unwrap_or_default();
        if row.operation() == RowOperation::Delete {
            return;
        }
        let id = row.after().find(|(column, _)| &*column.name == "id").and_then(|(_, value)| owned(value)).unwrap();
        if let Some(known) = self.rows.remove(&(table.clone(), id.clone())) {
            values.extend(known);
        }
        for (column, value) in row.after().filter(|(_, value)| *value != ColumnValue::Unchanged) {
            values.insert(column.name.to_string(), owned(value));
        }
        self.rows.insert((table, id), values);
    }

    /// Compares without printing the large values.
    fn assert_equals(&self, fixture: &Fixture, tables: &[&str]) {
        let expected = Self::expected(fixture, tables);
        let differing: Vec<_> =
            expected.iter().filter(|(key, row)| self.rows.get(key) != Some(row)).map(|(key, _)| key).take(5).collect();
        assert!(differing.is_empty(), "rows that differ or are missing: {differing:?}");
        let more: Vec<_> = self.rows.keys().filter(|key| !expected.contains_key(key)).take(5).collect();
        assert!(more.is_empty(), "rows that are not in the table: {more:?}");
    }

    fn expected(fixture: &Fixture, tables: &[&str]) -> BTreeMap<(String, String), Row> {
        let mut found = BTreeMap::new();
        for table in tables {
            for row in fixture.sql(&format!("select id::text, v, n::text from {table}")) {
                let id = row[0].clone().unwrap();
                let names = ["id", "v", "n"].map(str::to_owned);
                found.insert(((*table).to_owned(), id), names.into_iter().zip(row).collect());
            }
        }
        found
    }
}

async fn next(stream: &mut SnapshotStream) -> SnapshotEvent {
    within("a snapshot event", stream.next()).await.unwrap().expect("the stream goes on")
}

fn acknowledge(stream: &SnapshotStream, event: &SnapshotEvent) {
    if let SnapshotEvent::Change(ChangeEvent::Commit(commit)) = event {
        stream.acknowledge(commit.end_lsn);
    }
}

/// Receives up to a message with this content, which the caller writes after its last change.
async fn until_message(stream: &mut SnapshotStream, copy: &mut Copy, content: &str) {
    loop {
        let event = next(stream).await;
        acknowledge(stream, &event);
        copy.apply(&event);
        if let SnapshotEvent::Change(ChangeEvent::Change(change)) = &event
            && let ChangeKind::Message(message) = &change.kind
            && message.content == content.as_bytes()
        {
            return;
        }
    }
}

async fn until_complete(stream: &mut SnapshotStream, copy: &mut Copy) {
    while copy.state.is_none() {
        let event = next(stream).await;
        acknowledge(stream, &event);
        copy.apply(&event);
    }
}

fn prepare(fixture: &Fixture) {
    fixture.sql("drop table t");
    for table in ["t", "other"] {
        fixture.sql(&format!(
            "create table {table} (id bigint primary key, v text, n int); \
             alter table {table} alter v set storage external; alter publication p add table {table}; \
             insert into {table} select i, repeat(i::text, 1000), i from generate_series(1, 3000) i"
        ));
    }
    // The slot is newer than the rows, so only the copy delivers them.
    fixture.sql("select pg_drop_replication_slot('s')");
    fixture.sql("select pg_create_logical_replication_slot('s', 'pgoutput')");
}

fn random_change(random: &mut fastrand::Rng) -> String {
    let table = if random.bool() { "t" } else { "other" };
    let id = random.u32(1..4000);
    match random.u8(..12) {
        0 => format!("delete from {table} where id = {id}"),
        1 => format!("update {table} set id = id + 10000 where id = {id}"),
        2 | 3 => format!("insert into {table} values ({id}, 'new', 0) on conflict (id) do update set v = 'newer'"),
        4 => format!(
            "begin; savepoint a; delete from {table} where id > {id}; rollback to a; \
             update {table} set n = 7 where id = {id}; commit"
        ),
        5 => format!("update {table} set v = repeat('y', 5000) where id = {id}"),
        // Leaves the large value as it is.
        _ => format!("update {table} set n = n + 1 where id = {id}"),
    }
}

/// Changes the tables at random until it is stopped.
struct RandomWriter {
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl RandomWriter {
    /// Starts with a seed. Executes `once` after 100 changes: not so often that a copy cannot end.
    fn start(fixture: &Arc<Fixture>, seed: u64, once: Option<&'static str>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (writing, stopping) = (Arc::clone(fixture), Arc::clone(&stop));
        let task = tokio::task::spawn_blocking(move || {
            let mut random = fastrand::Rng::with_seed(seed);
            for number in 1.. {
                if stopping.load(Ordering::Relaxed) {
                    break;
                }
                writing.sql(&random_change(&mut random));
                if let Some(once) = once.filter(|_| number == 100) {
                    writing.sql(once);
                }
            }
        });
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}

fn small() -> SnapshotOptions {
    SnapshotOptions { chunk_rows: 200, chunk_bytes: 200_000, ..SnapshotOptions::default() }
}

/// CH-42, CH-47, CH-61: the copy and the stream together give the table, while it changes.
#[tokio::test(flavor = "multi_thread")]
async fn copy_under_load_equals_the_table() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for major in versions() {
        let fixture = Arc::new(Fixture::new(major));
        prepare(&fixture);
        let writer = RandomWriter::start(&fixture, seed, None);
        let mut stream = SnapshotStream::start(fixture.options(), small(), SnapshotState::default()).await.unwrap();
        let mut copy = Copy::default();
        until_complete(&mut stream, &mut copy).await;
        writer.stop().await;
        fixture.sql("select pg_logical_emit_message(true, 'test', 'end')");
        until_message(&mut stream, &mut copy, "end").await;
        copy.assert_equals(&fixture, &["t", "other"]);
        stream.stop().await;
    }
}

/// CH-59: the copy goes on at its last key; what was read before is not read again.
#[tokio::test(flavor = "multi_thread")]
async fn stopped_copy_goes_on_where_it_was() {
    for (tables, parallel) in [(&["t", "other"][..], 2), (&["t"], 4)] {
        let fixture = Fixture::new(18);
        prepare(&fixture);
        let tables_copied = tables.iter().map(|table| format!("public.{table}")).collect();
        let options = SnapshotOptions { tables: tables_copied, parallel, ..small() };
        let mut copy = Copy::default();
        let mut state = SnapshotState::default();
        let mut rows = 0;
        while copy.state.is_none() {
            let stream = SnapshotStream::start(fixture.options(), options.clone(), state.clone());
            let mut stream = stream.await.unwrap();
            for _ in 0..3 {
                let event = loop {
                    let event = next(&mut stream).await;
                    acknowledge(&stream, &event);
                    copy.apply(&event);
                    if !matches!(event, SnapshotEvent::Change(_)) {
                        break event;
                    }
                };
                if let SnapshotEvent::Rows(found) = &event {
                    rows += found.rows.len();
                    state.tables.retain(|table| table.oid != found.progress.oid);
                    state.tables.push(found.progress.clone());
                }
                if copy.state.is_some() {
                    break;
                }
            }
            // The state is as good as JSON, which a consumer may store.
            state = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
            stream.stop().await;
        }
        assert_eq!(rows, 3000 * tables.len());
        copy.assert_equals(&fixture, tables);
        assert!(copy.state.unwrap().is_done());
    }
}

/// Several chunks of a table are read at the same time, and delivered in the order of its key, also if a TRUNCATE makes some of
/// them worthless.
#[tokio::test(flavor = "multi_thread")]
async fn table_is_read_by_several_connections() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for major in versions() {
        let fixture = Arc::new(Fixture::new(major));
        prepare(&fixture);
        let truncate = "begin; truncate t; \
                        insert into t select i, repeat(i::text, 1000), -i from generate_series(1, 2500) i; commit";
        let writer = RandomWriter::start(&fixture, seed, Some(truncate));
        let options = SnapshotOptions { tables: vec!["public.t".to_owned()], parallel: 4, ..small() };
        let mut stream = SnapshotStream::start(fixture.options(), options, SnapshotState::default()).await.unwrap();
        let mut copy = Copy::default();
        let mut last = 0;
        while copy.state.is_none() {
            let event = next(&mut stream).await;
            acknowledge(&stream, &event);
            if let SnapshotEvent::Rows(rows) = &event {
                for row in &rows.rows {
                    let id: u64 = owned(row.values().next().unwrap()).unwrap().parse().unwrap();
                    assert!(id > last, "{id} after {last}");
                    last = id;
                }
                let end: Option<u64> = rows.progress.last_key.as_ref().map(|key| key[0].parse().unwrap());
                assert!(rows.progress.is_done || end.is_some_and(|end| end >= last));
                last = last.max(end.unwrap_or_default());
            }
            copy.apply(&event);
        }
        writer.stop().await;
        fixture.sql("select pg_logical_emit_message(true, 'test', 'end')");
        until_message(&mut stream, &mut copy, "end").await;
        copy.rows.retain(|(table, _), _| table == "t");
        copy.assert_equals(&fixture, &["t"]);
        stream.stop().await;
    }
}

/// The size of a chunk follows from the rows before it. Rows that are larger than expected end it early.
#[tokio::test(flavor = "multi_thread")]
async fn large_rows_after_small_ones_keep_chunks_small() {
    let fixture = Fixture::new(18);
    prepare(&fixture);
    fixture.sql("truncate t");
    fixture.sql("insert into t select i, 'small', i from generate_series(1, 2000) i");
    fixture.sql("insert into t select i, repeat('x', 20000), i from generate_series(2001, 2300) i");
    for parallel in [1, 3] {
        let tables = vec!["public.t".to_owned()];
        let options = SnapshotOptions { tables, parallel, chunk_bytes: 50_000, ..SnapshotOptions::default() };
        let mut stream = SnapshotStream::start(fixture.options(), options, SnapshotState::default()).await.unwrap();
        let (mut copy, mut rows, mut largest) = (Copy::default(), 0, 0);
        while copy.state.is_none() {
            let event = next(&mut stream).await;
            acknowledge(&stream, &event);
            if let SnapshotEvent::Rows(found) = &event {
                (rows, largest) = (rows + found.rows.len(), largest.max(found.bytes));
            }
            copy.apply(&event);
        }
        assert_eq!(rows, 2300);
        assert!(largest < 130_000, "a chunk of {largest} bytes");
        copy.rows.retain(|(table, _), _| table == "t");
        copy.assert_equals(&fixture, &["t"]);
        stream.stop().await;
    }
}

/// CH-66: a transaction that waits for a synchronous standby is in the stream, and not visible to the copy.
#[tokio::test(flavor = "multi_thread")]
async fn delivered_transaction_must_be_visible_to_the_copy() {
    for (major, parallel) in versions().into_iter().zip([1, 4].into_iter().cycle()) {
        let fixture = Fixture::new(major);
        prepare(&fixture);
        let options = SnapshotOptions { chunk_rows: 100, parallel, attempts_max: 1000, ..small() };
        let mut stream = SnapshotStream::start(fixture.options(), options, SnapshotState::default()).await.unwrap();
        let mut copy = Copy::default();
        while copy.rows.is_empty() {
            copy.apply(&next(&mut stream).await);
        }
        assert!(!copy.rows.contains_key(&("t".to_owned(), "2999".to_owned())));
        fixture.sql("alter system set synchronous_standby_names = 'absent'");
        fixture.sql("select pg_reload_conf()");
        fixture.until("select current_setting('synchronous_standby_names') = 'absent'").await;
        // The checkpointer makes the setting effective, before it serves the request.
        fixture.sql("checkpoint");
        let mut waiting = fixture.connection().await;
        // 2999 is in a later chunk of both tables.
        let update = tokio::spawn(async move {
            waiting.query("set synchronous_commit = on; update t set n = -1 where id = 2999").await
        });
        fixture.until("select exists (select from pg_stat_activity where wait_event = 'SyncRep')").await;
        let mut held_rounds = 0;
        let mut is_delivered = false;
        while held_rounds < 3 {
            let event = next(&mut stream).await;
            copy.apply(&event);
            match event {
                SnapshotEvent::Change(ChangeEvent::Change(change)) => match &change.kind {
                    ChangeKind::Row(_) => is_delivered = true,
                    ChangeKind::Message(message) if is_delivered && message.content.ends_with(b":high") => {
                        held_rounds += 1;
                    }
                    _ => {}
                },
                SnapshotEvent::Rows(_) => assert!(held_rounds == 0, "rows of a snapshot that lacks a delivered change"),
                _ => {}
            }
        }
        fixture.sql("alter system reset synchronous_standby_names");
        fixture.sql("select pg_reload_conf()");
        within("the update", update).await.unwrap().unwrap();
        until_complete(&mut stream, &mut copy).await;
        copy.assert_equals(&fixture, &["t", "other"]);
    }
}

/// Backfill of one table while the stream runs.
#[tokio::test(flavor = "multi_thread")]
async fn table_is_copied_again_on_request() {
    let fixture = Fixture::with(builder(18));
    prepare(&fixture);
    let options = SnapshotOptions { tables: vec!["public.other".to_owned()], ..small() };
    let mut stream = SnapshotStream::start(fixture.options(), options, SnapshotState::default()).await.unwrap();
    let mut copy = Copy::default();
    until_complete(&mut stream, &mut copy).await;
    copy.assert_equals(&fixture, &["other"]);
    copy.state = None;
    stream.backfill("public", "t").await.unwrap();
    until_complete(&mut stream, &mut copy).await;
    copy.assert_equals(&fixture, &["t", "other"]);
    assert!(stream.backfill("public", "absent").await.is_err());
}

/// The snapshot of the slot and the stream from it meet without a gap and without overlap, for tables without a key too.
#[tokio::test(flavor = "multi_thread")]
async fn exported_snapshot_ends_where_the_stream_begins() {
    for major in versions() {
        let fixture = Arc::new(Fixture::new(major));
        fixture.sql("create table keyless (n bigint); alter publication p add table keyless");
        let stop = Arc::new(AtomicBool::new(false));
        let (writing, stopping) = (Arc::clone(&fixture), Arc::clone(&stop));
        let writer = tokio::task::spawn_blocking(move || {
            let mut next = 0;
            while !stopping.load(Ordering::Relaxed) {
                writing.sql(&format!("insert into keyless select {next} * 1000 + n from generate_series(0, 999) n"));
                next += 1;
            }
            next * 1000
        });
        fixture.until("select count(*) > 5000 from keyless").await;
        let slot = NewSlot::new("exported");
        let publications = vec!["p".to_owned()];
        let snapshot = ExportedSnapshot::create(fixture.connect_options(), slot, publications).await.unwrap();
        let table = snapshot.tables().await.unwrap().into_iter().find(|table| table.name == "keyless").unwrap();
        let mut rows = snapshot.read(&table, 2).await.unwrap();
        let mut found = Vec::new();
        while let Some(batch) = within("rows", rows.next()).await.unwrap() {
            found.extend(batch.rows.iter().map(|row| owned(row.values().next().unwrap()).unwrap()));
        }
        assert!(found.len() > 5000);
        stop.store(true, Ordering::Relaxed);
        let total = writer.await.unwrap();
        let options = ChangeOptions { slot: "exported".to_owned(), ..fixture.options() };
        let mut stream = ChangeStream::start(options);
        while found.len() < total {
            if let Some(ChangeEvent::Change(change)) = within("a change", stream.next()).await.unwrap() {
                found.push(owned(change.row().unwrap().after().next().unwrap().1).unwrap());
            }
        }
        let mut numbers: Vec<usize> = found.iter().map(|text| text.parse().unwrap()).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..total), "Postgres {major}");
    }
}

/// A snapshot beside a slot that exists already: the copy has exactly those of the slot's transactions that the snapshot
/// shows.
#[tokio::test(flavor = "multi_thread")]
async fn exported_transaction_shows_what_it_holds() {
    for major in versions() {
        let fixture = Arc::new(Fixture::new(major));
        let stop = Arc::new(AtomicBool::new(false));
        let mut writers = Vec::new();
        for writer in 0..3 {
            let (writing, stopping) = (Arc::clone(&fixture), Arc::clone(&stop));
            writers.push(tokio::task::spawn_blocking(move || {
                let mut next = 0;
                while !stopping.load(Ordering::Relaxed) {
                    let (from, until) = (next, next + 10);
                    writing.sql(&format!(
                        "insert into t select {writer} + 3 * n from generate_series({from}, {until} - 1) n"
                    ));
                    next = until;
                }
                next
            }));
        }
        fixture.until("select count(*) > 500 from t").await;
        let open = ExportedSnapshot::open(fixture.connect_options(), vec!["p".to_owned()]);
        let snapshot = within("a snapshot", open).await.unwrap();
        assert_eq!(fixture.one("select count(*) from pg_replication_slots"), "1", "no slot holds WAL for the copy");
        let table = snapshot.tables().await.unwrap().remove(0);
        let (exported_at, shown) = (table.exported_at.unwrap(), PgSnapshot::parse(table.snapshot.as_ref().unwrap()));
        let mut rows = snapshot.read(&table, 2).await.unwrap();
        let mut found = Vec::new();
        while let Some(batch) = within("rows", rows.next()).await.unwrap() {
            found.extend(batch.rows.iter().map(|row| owned(row.values().next().unwrap()).unwrap()));
        }
        stop.store(true, Ordering::Relaxed);
        let mut total = 0;
        for writer in writers {
            total += writer.await.unwrap();
        }
        fixture.sql("select pg_logical_emit_message(true, 'test', 'end')");
        let mut stream = ChangeStream::start(ChangeOptions { messages: true, ..fixture.options() });
        let mut is_held = false;
        loop {
            match within("a change", stream.next()).await.unwrap().unwrap() {
                ChangeEvent::Begin(begin) => {
                    is_held = begin.commit_lsn.0 < exported_at && shown.as_ref().unwrap().shows(begin.xid);
                }
                ChangeEvent::Change(change) => match change.row() {
                    Some(row) if !is_held => found.push(owned(row.after().next().unwrap().1).unwrap()),
                    Some(_) => {}
                    None => break,
                },
                _ => {}
            }
        }
        let mut numbers: Vec<usize> = found.iter().map(|text| text.parse().unwrap()).collect();
        numbers.sort_unstable();
        let expected = fixture.sql("select id from t order by id");
        assert_eq!(numbers.len(), total);
        assert!(
            expected.iter().zip(&numbers).all(|(row, number)| row[0] == Some(number.to_string())),
            "Postgres {major}"
        );
    }
}

/// CH-62: the connection of the snapshot has ended.
#[tokio::test(flavor = "multi_thread")]
async fn lost_snapshot_is_reported() {
    let fixture = Fixture::new(18);
    let snapshot = ExportedSnapshot::open(fixture.connect_options(), vec!["p".to_owned()]).await.unwrap();
    let table = snapshot.tables().await.unwrap().remove(0);
    let holder = "from pg_stat_activity where state = 'idle in transaction'";
    fixture.sql(&format!("select pg_terminate_backend(pid) {holder}"));
    fixture.until(&format!("select count(*) = 0 {holder}")).await;
    let error = snapshot.read(&table, 2).await.unwrap_err();
    assert!(
        error.class() == ErrorClass::Retry && error.to_string().contains("the exported snapshot is gone"),
        "{error}"
    );
}

/// The tables are described by a few queries, however many they are.
#[tokio::test(flavor = "multi_thread")]
async fn many_tables_are_described_by_few_queries() {
    for major in versions() {
        let fixture = Fixture::with(builder(major).setting("log_statement", "all"));
        fixture.sql(
            "do $$ begin for i in 1 .. 300 loop execute format('create table many_%s (id int primary key, v text)', i); \
             execute format('insert into many_%s values (%s)', i, i); end loop; end $$",
        );
        fixture.sql("create publication many for all tables");
        let queries = || fixture.postgres.log().matches("pg_attribute").count();
        let before = queries();
        let (connect, publications) = (fixture.connect_options(), vec!["many".to_owned()]);
        let mut state = SnapshotState::default();
        let keyless = state.list_tables(&connect, &publications, &SnapshotOptions::default()).await.unwrap();
        assert_eq!((state.tables.len(), keyless.len()), (301, 0));
        let snapshot = ExportedSnapshot::open(connect, publications).await.unwrap();
        assert_eq!(snapshot.tables().await.unwrap().len(), 301);
        let queries = queries() - before;
        assert!((1..=4).contains(&queries), "{queries} queries of columns");
    }
}

/// The copy replaces rows of an earlier one: the consumer gets one notice, before the first row.
#[tokio::test(flavor = "multi_thread")]
async fn replacing_copy_clears_each_table_first() {
    let fixture = Fixture::new(18);
    prepare(&fixture);
    fixture.sql("delete from other");
    let (connect, publications) = (fixture.connect_options(), vec!["p".to_owned()]);
    let mut state = SnapshotState::default();
    state.list_tables(&connect, &publications, &small()).await.unwrap();
    let before = state.clone();
    state.tables.iter_mut().for_each(|table| table.replaces = true);
    let mut stream = SnapshotStream::start(fixture.options(), small(), state).await.unwrap();
    let (mut cleared, mut rows, mut places) = (Vec::new(), 0, Vec::new());
    loop {
        match next(&mut stream).await {
            SnapshotEvent::Rows(found) => {
                if found.clears {
                    assert!(found.relation.name[..] != *"t" || rows == 0, "rows came before");
                    cleared.push(found.relation.name.to_string());
                    places.push((found.lsn, found.first_seq - 1));
                }
                places.extend((found.first_seq..).take(found.rows.len()).map(|seq| (found.lsn, seq)));
                rows += found.rows.len();
                let known = before.tables.iter().find(|table| table.oid == found.progress.oid).unwrap();
                assert_ne!(known.copy, found.progress.copy, "rows that come again are no repetitions");
            }
            SnapshotEvent::Complete(_) => break,
            SnapshotEvent::Change(_) => {}
        }
    }
    cleared.sort();
    assert_eq!((cleared, rows), (vec!["other".to_owned(), "t".to_owned()], 3000));
    assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "the places of all steps rise");
}

#[tokio::test(flavor = "multi_thread")]
async fn table_without_a_key_is_refused() {
    let fixture = Fixture::new(18);
    fixture.sql("create table keyless (v text); alter publication p add table keyless");
    let error = SnapshotStream::start(fixture.options(), small(), SnapshotState::default()).await.unwrap_err();
    assert!(error.to_string().contains("public.keyless"), "{error}");
}

/// Row filters and column lists of publications hold for the copy, too.
#[tokio::test(flavor = "multi_thread")]
async fn copy_has_the_published_rows_and_columns() {
    let fixture = Fixture::new(18);
    prepare(&fixture);
    fixture.sql("alter publication p set table t (id, n) where (id < 10)");
    let mut stream = SnapshotStream::start(fixture.options(), small(), SnapshotState::default()).await.unwrap();
    let mut copy = Copy::default();
    until_complete(&mut stream, &mut copy).await;
    assert_eq!(copy.rows.len(), 9);
    assert!(copy.rows.values().all(|row| row.keys().eq(["id", "n"])));
}

/// CH-45, CH-46, CH-47: the copy and the stream write each value alike.
#[tokio::test(flavor = "multi_thread")]
async fn values_of_all_types_are_written_alike() {
    let values = [
        ("numeric", "'NaN'"),
        ("numeric(10,2)", "1.50"),
        ("float8", "'Infinity'"),
        ("float8", "0.1"),
        ("float4", "1e-30"),
        ("char(5)", "'a'"),
        ("text", "'Grüße'"),
        ("bytea", "'\\x00ff'"),
        ("boolean", "true"),
        ("date", "'0044-03-15 BC'"),
        ("timestamp", "'infinity'"),
        ("timestamptz", "'2026-03-01 12:00:00.123456+05'"),
        ("time with time zone", "'12:00+02'"),
        ("interval", "'1 year 2 days 03:04:05.6'"),
        ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
        ("jsonb", "'{\"b\": [1, null], \"a\": \"x\"}'"),
        ("json", "' {\"b\":  1}'"),
        ("text[]", "array['a', null, 'with \"quotes\"']"),
        ("int[]", "array[[1,2],[3,4]]"),
        ("mood", "'ok'"),
        ("pair", "row(1, 'a,b')::pair"),
        ("int4range", "'[1,5)'"),
        ("tsvector", "'a fat cat'::tsvector"),
        ("inet", "'::1'"),
        ("bit varying(5)", "B'101'"),
        ("money", "12.34"),
        ("xml", "'<a/>'"),
        ("oid", "7"),
    ];
    for major in versions() {
        let fixture = Fixture::new(major);
        fixture.sql("create type mood as enum ('ok', 'bad'); create type pair as (a int, b text); drop table t");
        let columns: Vec<_> =
            values.iter().enumerate().map(|(number, (kind, _))| format!("c{number} {kind}")).collect();
        let row: Vec<_> = values.iter().map(|(kind, value)| format!("{value}::{kind}")).collect();
        fixture.sql(&format!("create table t (id int primary key, {})", columns.join(", ")));
        fixture.sql("alter publication p add table t");
        fixture.sql(&format!("insert into t values (1, {})", row.join(", ")));
        fixture.sql("select pg_drop_replication_slot('s')");
        fixture.sql("select pg_create_logical_replication_slot('s', 'pgoutput')");
        let mut stream = SnapshotStream::start(fixture.options(), small(), SnapshotState::default()).await.unwrap();
        let mut copy = Copy::default();
        until_complete(&mut stream, &mut copy).await;
        fixture.sql("update t set id = 2; select pg_logical_emit_message(true, 'test', 'end')");
        let mut streamed = Copy::default();
        until_message(&mut stream, &mut streamed, "end").await;
        let row = |copy: &Copy| {
            let mut row = copy.rows.values().next().unwrap().clone();
            row.remove("id");
            row
        };
        assert_eq!(row(&copy), row(&streamed), "Postgres {major}");
        assert_eq!(row(&copy).len(), values.len());
    }
}
