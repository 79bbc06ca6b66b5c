//! The router with a stream of events and no database.

use tidegate_changes::{
    Change, ChangeId, Lsn, PgTimestamp, RelationColumn, Relations, TransactionBegin, TransactionCommit,
};
use tidegate_predicate::{Collation, Column, ColumnType, Table};
use tidegate_wire::replication::pgoutput::{ColumnValue, encode};

use super::*;
use crate::definition::ShapeDefinition;
use crate::handle::ShapeHandle;
use crate::parameters::{LogMode, Replica};
use crate::row_form::{RowForm, TransactionSnapshot};
use crate::table::tests::{column, table};

const OID: u32 = 16_384;
const OWNERS: u32 = 16_385;

struct Stream {
    routing: Routing,
    relations: Relations,
    table: Arc<Table>,
    form: Arc<RowForm>,
    log: LogMode,
    next_id: ShapeId,
}

fn relation(columns: &[&str]) -> Relation {
    let described = |(at, name): (usize, &&str)| RelationColumn {
        name: (*name).into(),
        type_oid: 25,
        type_modifier: -1,
        is_key: at == 0,
    };
    Relation {
        oid: OID,
        schema: "public".into(),
        name: "items".into(),
        identity: ReplicaIdentity::Full,
        columns: columns.iter().enumerate().map(described).collect(),
        version: 0,
    }
}

impl Stream {
    fn new() -> Self {
        let columns = ["id", "name"].map(|name| Column::new(name, ColumnType::TEXT)).to_vec();
        let info =
            Arc::new(table("public", "items", vec![column("id", "text", Some(0)), column("name", "text", None)]));
        let mut stream = Self {
            routing: Routing::new(100, 1000, Arc::default()),
            relations: Relations::default(),
            table: Arc::new(Table::new("public", "items", columns, Collation::c())),
            form: Arc::new(RowForm::new(info, vec![0, 1])),
            log: LogMode::Full,
            next_id: 1,
        };
        stream.relations.update(relation(&["id", "name"]));
        stream
    }

    fn register(&mut self) -> Arc<Shape> {
        let form = Arc::clone(&self.form);
        let definition =
            ShapeDefinition { form, predicate: None, replica: Replica::Default, log: LogMode::Full, inner: None };
        let id = self.next_id;
        self.next_id += 1;
        let shape = Arc::new(Shape::new(id, ShapeHandle { hash: 1, micros: id }, Arc::new(definition)));
        let predicate = Arc::new(Predicate::always_true(&self.table));
        let (done, _) = oneshot::channel();
        self.routing.command(RouteCommand::Register { shape: Arc::clone(&shape), predicate, done });
        shape
    }

    /// A shape with subqueries on the owners, without a route.
    fn shape_with_owners(&mut self, text: &str) -> (Arc<Shape>, Arc<Predicate>) {
        let other = |relation: Relation| Relation { oid: OWNERS, name: "owners".into(), ..relation };
        self.relations.update(other(relation(&["id", "name"])));
        let info = table("public", "owners", vec![column("id", "text", Some(0)), column("name", "text", None)]);
        let info = Arc::new(TableInfo { oid: OWNERS, ..info });
        let columns = ["id", "name"].map(|name| Column::new(name, ColumnType::TEXT)).to_vec();
        let owners = Arc::new(Table::new("public", "owners", columns, Collation::c()));
        let predicate = Arc::new(tidegate_predicate::parse_with(text, &[], &self.table, &[owners]).unwrap());
        let infos = predicate.subqueries().iter().map(|_| Arc::clone(&info)).collect();
        let inner = Some(Arc::new(crate::definition::InnerTables(infos)));
        let (form, replica, log) = (Arc::clone(&self.form), Replica::Default, self.log);
        let definition = ShapeDefinition { form, predicate: Some(predicate.shared_text()), replica, log, inner };
        let shape = Arc::new(Shape::new(1, ShapeHandle { hash: 1, micros: 1 }, Arc::new(definition)));
        shape.log().phase = ShapePhase::Complete;
        (shape, predicate)
    }

    fn register_with_owners(&mut self, text: &str) -> (Arc<Shape>, Arc<Predicate>) {
        let (shape, predicate) = self.shape_with_owners(text);
        let (done, _) = oneshot::channel();
        let register = RouteCommand::Register { shape: Arc::clone(&shape), predicate: Arc::clone(&predicate), done };
        self.routing.command(register);
        (shape, predicate)
    }

    /// The results of the subqueries in a snapshot, of which each has these owners.
    fn known(
        &mut self,
        predicate: &Predicate,
        owners: &[&str],
        snapshot: &str,
        moves: Option<MovedRows>,
        is_at_first_held: bool,
    ) -> SeamResult {
        self.known_sets(results(predicate, owners), snapshot, moves, is_at_first_held)
    }

    fn known_sets(
        &mut self,
        sets: Vec<ValueSet>,
        snapshot: &str,
        moves: Option<MovedRows>,
        is_at_first_held: bool,
    ) -> SeamResult {
        let snapshot = TransactionSnapshot::parse(snapshot).unwrap();
        let filter = SnapshotFilter { snapshot, until_lsn: u64::MAX };
        let results = Box::new(SubqueryResults { sets, filter, moves, is_at_first_held });
        let (done, mut result) = oneshot::channel();
        self.routing.command(RouteCommand::SubqueriesKnown { id: 1, results, done });
        result.try_recv().unwrap()
    }

    /// The results of the subqueries of a restored shape without snapshot.
    fn resumed(&mut self, sets: Vec<ValueSet>, snapshot: &str, until_lsn: u64) -> MoveStep {
        let filter = SnapshotFilter { snapshot: TransactionSnapshot::parse(snapshot).unwrap(), until_lsn };
        let (done, mut result) = oneshot::channel();
        self.routing.command(RouteCommand::ResultsRead { id: 1, sets, filter, done });
        result.try_recv().unwrap()
    }

    /// A part of the rows of a snapshot that may have moved.
    fn read(&mut self, rows: &[[&str; 2]]) -> SeamResult {
        let (rows, (done, mut result)) = (held_rows(rows), oneshot::channel());
        self.routing.command(RouteCommand::RowsRead { id: 1, rows, done });
        result.try_recv().unwrap()
    }

    /// The last rows of a snapshot that may have moved.
    fn moved(&mut self, rows: &[[&str; 2]], snapshot: &str, until_lsn: u64) -> oneshot::Receiver<MoveStep> {
        let rows = held_rows(rows);
        let filter = SnapshotFilter { snapshot: TransactionSnapshot::parse(snapshot).unwrap(), until_lsn };
        let (done, result) = oneshot::channel();
        self.routing.command(RouteCommand::RowsMoved { id: 1, rows, filter, done });
        result
    }

    fn began(&mut self, shape: &Shape, snapshot: &str, until_lsn: u64) -> SeamResult {
        let filter = SnapshotFilter { snapshot: TransactionSnapshot::parse(snapshot).unwrap(), until_lsn };
        let (done, mut result) = oneshot::channel();
        self.routing.command(RouteCommand::SnapshotBegan { id: shape.id, filter, done });
        result.try_recv().unwrap()
    }

    /// A shape with an empty snapshot before all transactions.
    fn live(&mut self) -> Arc<Shape> {
        let shape = self.register();
        assert_eq!(self.began(&shape, "1000:1000:", 0), SeamResult::Sound);
        shape.log().phase = ShapePhase::Complete;
        shape
    }

    fn transaction(&mut self, lsn: u64, xid: u32, changes: &[Frame<'_>]) {
        self.begin(lsn, xid, changes);
        let (commit_lsn, end_lsn, changes) = (Lsn(lsn), Lsn(lsn + 1), changes.len() as u64);
        let commit_time = PgTimestamp(0);
        self.routing.apply(&ChangeEvent::Commit(TransactionCommit { commit_lsn, end_lsn, commit_time, xid, changes }));
    }

    /// A transaction without its commit.
    fn begin(&mut self, lsn: u64, xid: u32, changes: &[Frame<'_>]) {
        let commit_lsn = Lsn(lsn);
        let begin = TransactionBegin { commit_lsn, commit_time: PgTimestamp(0), xid, origin: None };
        self.routing.apply(&ChangeEvent::Begin(begin));
        for (seq, frame) in changes.iter().enumerate() {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let id = ChangeId { commit_lsn, seq: seq as u64 };
            let change = Change::decode(id, &bytes.into(), &self.relations).unwrap();
            self.routing.apply(&ChangeEvent::Change(change));
        }
    }
}

fn held_rows(rows: &[[&str; 2]]) -> Vec<HeldRow> {
    rows.iter().map(|row| HeldRow::new(&row.map(|value| Some(value.as_bytes())))).collect()
}

/// Results with these owners, of which each has one row.
fn results(predicate: &Predicate, owners: &[&str]) -> Vec<ValueSet> {
    results_of(predicate, &vec![owners; predicate.subqueries().len()])
}

/// Results with other owners for each subquery.
fn results_of(predicate: &Predicate, owners: &[&[&str]]) -> Vec<ValueSet> {
    let result = |(subquery, owners): (&tidegate_predicate::Subquery, &&[&str])| {
        let mut set = subquery.empty_set();
        owners.iter().for_each(|owner| set.add(Some(owner.as_bytes()), 1).unwrap());
        set
    };
    predicate.subqueries().iter().zip(owners).map(result).collect()
}

/// More owners than values are searched for.
fn many_owners() -> Vec<String> {
    (0..=10_000).map(|number| number.to_string()).collect()
}

fn by_value(level: MoveLevel, condition: &str) -> MoveQuery {
    MoveQuery::ByValue(level, condition.to_owned())
}

enum Frame<'a> {
    Insert([&'a str; 2]),
    Update([&'a str; 2], [&'a str; 2]),
    Truncate,
    /// A row of the other table.
    Owner(&'a str),
    OwnerLeft(&'a str),
}

impl Frame<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Insert(new) => encode::insert(None, OID, &columns(new), out),
            Self::Update(old, new) => {
                encode::update(None, OID, Some(encode::OldColumns::Full(&columns(old))), &columns(new), out);
            }
            Self::Owner(id) => encode::insert(None, OWNERS, &columns(&[id, ""]), out),
            Self::OwnerLeft(id) => {
                encode::delete(None, OWNERS, encode::OldColumns::Full(&columns(&[id, ""])), out);
            }
            Self::Truncate => encode::truncate(None, &[OID], false, false, out),
        }
    }
}

fn columns<'a>(row: &'a [&'a str; 2]) -> [ColumnValue<'a>; 2] {
    row.map(|value| ColumnValue::Text(value.as_bytes()))
}

/// Positions and messages of a log.
fn messages(shape: &Shape) -> Vec<(String, String)> {
    let runs = shape.log().runs.clone();
    let mut found = Vec::new();
    for extent in runs {
        let bytes = *extent.bytes.unwrap();
        found.extend(run::items(&bytes).map(|(at, json)| (at.to_string(), String::from_utf8(json.to_vec()).unwrap())));
    }
    found
}

fn offsets(shape: &Shape) -> Vec<String> {
    messages(shape).into_iter().map(|(at, _)| at).collect()
}

/// SH-17, SH-49: a changed key takes two operations, also at the end of a transaction.
#[test]
fn operations_of_a_transaction_are_numbered() {
    let mut stream = Stream::new();
    let shape = stream.live();
    let changes =
        [Frame::Insert(["1", "a"]), Frame::Update(["1", "a"], ["1", "b"]), Frame::Update(["1", "b"], ["2", "b"])];
    stream.transaction(50, 1001, &changes);
    assert_eq!(offsets(&shape), ["50_0", "50_2", "50_4", "50_5"]);
    let found = messages(&shape);
    let last: Vec<bool> = found.iter().map(|(_, json)| json.contains("\"last\":true")).collect();
    assert_eq!(last, [false, false, false, true]);
    let (writes, lsn) = stream.routing.take_writes();
    assert_eq!((writes.len(), lsn), (1, 51));
}

/// SH-18: a replay doubles no operation, whatever part of it is repeated.
#[test]
fn replay_appends_nothing() {
    let mut stream = Stream::new();
    let shape = stream.live();
    for _ in 0..3 {
        for lsn in [50, 60, 70] {
            stream.transaction(lsn, 1001, &[Frame::Insert(["1", "a"])]);
        }
    }
    assert_eq!(offsets(&shape), ["50_0", "60_0", "70_0"]);
    assert_eq!(stream.routing.take_writes().0.len(), 3);
}

/// SH-03: transactions are in the snapshot or in the log, and in one of them only.
#[test]
fn transactions_of_the_snapshot_are_skipped() {
    let mut stream = Stream::new();
    let shape = stream.register();
    // Committed before the snapshot, in progress at it, and later.
    stream.transaction(50, 1001, &[Frame::Insert(["1", "a"])]);
    stream.transaction(60, 1002, &[Frame::Insert(["2", "a"])]);
    assert_eq!(stream.began(&shape, "1002:1004:1002", 65), SeamResult::Sound);
    stream.transaction(62, 1003, &[Frame::Insert(["3", "a"])]);
    stream.transaction(70, 1003, &[Frame::Insert(["4", "a"])]);
    stream.transaction(80, 999, &[Frame::Insert(["5", "a"])]);
    assert_eq!(offsets(&shape), ["60_0", "70_0", "80_0"]);
    assert!(stream.routing.filtered.is_empty(), "the filter ends with the stream's position");
}

/// SH-05: a commit that was decoded before the registration and is not visible yet.
#[test]
fn snapshot_without_a_routed_commit_is_refused() {
    let mut stream = Stream::new();
    stream.transaction(50, 1001, &[Frame::Insert(["1", "a"])]);
    let shape = stream.register();
    assert_eq!(stream.began(&shape, "1001:1002:1001", 60), SeamResult::Retry);
    assert_eq!(stream.began(&shape, "1001:1001:", 60), SeamResult::Retry);
    assert_eq!(stream.began(&shape, "1002:1002:", 60), SeamResult::Sound);
    assert_eq!(stream.began(&shape, "1002:1002:", 60), SeamResult::Gone, "only once");
}

/// SH-24, SH-37.
#[test]
fn truncate_removes_shapes_and_wakes_waiters() {
    let mut stream = Stream::new();
    let shape = stream.live();
    stream.transaction(50, 1001, &[Frame::Insert(["1", "a"]), Frame::Truncate, Frame::Insert(["2", "b"])]);
    assert_eq!(shape.log().phase, ShapePhase::Removed);
    assert_eq!(stream.routing.take_removed().len(), 1);
    assert!(stream.routing.is_empty() && stream.routing.take_tables_changed());
    assert!(stream.routing.take_writes().0.is_empty());
}

#[test]
fn equal_description_keeps_shapes() {
    let mut stream = Stream::new();
    let shape = stream.live();
    let mut relations = Relations::default();
    let same = relations.update(relation(&["id", "name"])).unwrap();
    stream.routing.apply(&ChangeEvent::Schema(same));
    assert_eq!(shape.log().phase, ShapePhase::Complete);
    let wider = relations.update(relation(&["id", "name", "more"])).unwrap();
    stream.routing.apply(&ChangeEvent::Schema(wider));
    assert_eq!(shape.log().phase, ShapePhase::Removed);
}

/// SH-53: a shape that is removed does not disturb the others.
#[test]
fn shapes_are_independent() {
    let mut stream = Stream::new();
    let shapes: Vec<_> = (0..3).map(|_| stream.live()).collect();
    stream.transaction(50, 1001, &[Frame::Insert(["1", "a"])]);
    stream.routing.command(RouteCommand::Remove(Arc::clone(&shapes[1])));
    stream.transaction(60, 1002, &[Frame::Insert(["2", "a"])]);
    assert_eq!(offsets(&shapes[0]), ["50_0", "60_0"]);
    assert_eq!(offsets(&shapes[1]), ["50_0"]);
    assert_eq!(messages(&shapes[0]), messages(&shapes[2]));
}

/// SH-22: a large transaction is handed to the store while it is received, and readers see it whole.
#[test]
fn large_transaction_is_written_in_parts() {
    let mut stream = Stream::new();
    let shape = stream.live();
    let long = "x".repeat(transaction::PART_LEN / 3);
    let rows: Vec<String> = (0..10).map(|id| id.to_string()).collect();
    let changes: Vec<Frame<'_>> = rows.iter().map(|id| Frame::Insert([id, &long])).collect();
    stream.begin(50, 1001, &changes[..5]);
    let (parts, discarded) = stream.routing.take_parts();
    assert_eq!((parts.len(), discarded.len()), (2, 0));
    assert!(messages(&shape).is_empty(), "not committed");
    // The connection breaks, and the transaction comes again.
    stream.transaction(50, 1001, &changes);
    let (parts, discarded) = stream.routing.take_parts();
    assert_eq!((parts.len(), discarded.len()), (4, 2));
    let (writes, lsn) = stream.routing.take_writes();
    assert_eq!((writes.len(), lsn), (1, 51));
    let found = messages(&shape);
    let expected: Vec<String> = (0..10).map(|change| format!("50_{}", change * 2)).collect();
    assert_eq!(found.iter().map(|(at, _)| at.as_str()).collect::<Vec<_>>(), expected);
    let last: Vec<bool> = found.iter().map(|(_, json)| json.contains("\"last\":true")).collect();
    assert_eq!(last.iter().filter(|is_last| **is_last).count(), 1);
    assert!(last[9]);
    // A replay of what the log has is not written.
    stream.transaction(50, 1001, &changes);
    assert!(stream.routing.take_parts().0.is_empty() && stream.routing.take_writes().0.is_empty());
    assert_eq!(messages(&shape).len(), 10);
}

#[test]
fn chunk_ends_are_in_the_log() {
    let mut stream = Stream::new();
    let shape = stream.live();
    for lsn in 1..=4 {
        stream.transaction(lsn * 10, 1001, &[Frame::Insert(["1", "a"])]);
    }
    // Each message is longer than the chunk of 100 bytes.
    let ends: Vec<String> = shape.log().rare().chunk_ends.iter().map(ToString::to_string).collect();
    assert_eq!(ends, ["10_0", "20_0", "30_0", "40_0"]);
}

/// A message that is all that a comparison has found.
fn moved_at(lsn: u64) -> MovedRows {
    let mut run = Vec::new();
    let at = LogOffset { tx: lsn, op: 0 };
    run::push_item(&mut run, at, |out| out.extend_from_slice(b"{\"headers\":{}}"));
    MovedRows { run, ends: (at, at), rows: 2 }
}

const OWNED: &str = "name IN (SELECT id FROM owners)";
const ANN: &str = r#"("name" IN ('ann'::text))"#;
const EMPTY: &str = r#"("name" IN (''::text))"#;
/// The result of the inner subquery moves rows of the owners into the result of the other one.
const NESTED: &str = "name IN (SELECT id FROM owners WHERE name IN (SELECT id FROM owners))";

/// SH-56: rows with a value that comes or goes move by the transaction itself; what a later one did is taken back.
#[test]
fn rows_move_by_value() {
    let mut stream = Stream::new();
    let (shape, predicate) = stream.register_with_owners(OWNED);
    stream.transaction(10, 1001, &[Frame::Insert(["1", "ann"]), Frame::Insert(["2", "bob"])]);
    assert!(offsets(&shape).is_empty(), "the result is not known");
    assert_eq!(stream.known(&predicate, &["bob"], "1001:1001:", None, false), SeamResult::Sound);
    assert_eq!(offsets(&shape), ["10_2"], "the snapshot does not have the transaction");
    stream.transaction(20, 1002, &[Frame::Owner("ann"), Frame::Insert(["3", "bob"])]);
    let moves = stream.routing.take_moves();
    let query = by_value(MoveLevel::Shape, ANN);
    assert_eq!((moves.len(), moves[0].lsn, &moves[0].query, shape.known_lsn(100)), (1, 20, &query, 19));
    stream.transaction(30, 1003, &[Frame::Insert(["4", "ann"]), Frame::Update(["1", "ann"], ["1", "eve"])]);
    let retry = stream.moved(&[], "1002:1002:", 31).try_recv();
    assert_eq!(retry, Ok(MoveStep::Retry), "it lacks the move");
    // The snapshot has the third transaction.
    assert_eq!(stream.moved(&[["4", "ann"]], "1004:1004:", 31).try_recv(), Ok(MoveStep::Done));
    let found = messages(&shape);
    let expected = ["10_2", "20_2", "20_4", "30_0", "30_2"];
    assert_eq!(found.iter().map(|(at, _)| at.as_str()).collect::<Vec<_>>(), expected);
    assert!(found[2].1.contains(r#""id":"1","name":"ann""#) && found[2].1.contains(r#""txids":[1002]"#), "{found:?}");
    assert!(!found[1].1.contains("last") && found[2].1.contains("last"), "{found:?}");
    assert!(found[4].1.contains("delete"), "{found:?}");
    assert_eq!(shape.known_lsn(100), 100);
    // The stream was interrupted, and repeats transactions.
    stream.transaction(20, 1002, &[Frame::Owner("ann"), Frame::Insert(["3", "bob"])]);
    stream.transaction(40, 1004, &[Frame::OwnerLeft("ann"), Frame::Owner("ann"), Frame::Insert(["5", "ann"])]);
    assert!(stream.routing.take_moves().is_empty(), "the result is as before");
    assert_eq!(offsets(&shape).last().unwrap(), "40_4");
}

/// SH-56: a snapshot is of use when the stream has passed it, and a later transaction that moves rows needs another one.
#[test]
fn moves_follow_each_other() {
    let mut stream = Stream::new();
    let (shape, predicate) = stream.register_with_owners(OWNED);
    assert_eq!(stream.known(&predicate, &["bob", "ann"], "1001:1001:", None, false), SeamResult::Sound);
    stream.transaction(50, 1005, &[Frame::OwnerLeft("ann")]);
    assert_eq!(stream.routing.take_moves().len(), 1);
    stream.transaction(60, 1006, &[Frame::Owner("eve")]);
    stream.transaction(70, 1007, &[Frame::Insert(["6", "eve"])]);
    let mut result = stream.moved(&[["5", "ann"], ["4", "ann"]], "1008:1008:", 80);
    assert!(result.try_recv().is_err(), "the stream has not passed the snapshot");
    stream.routing.apply(&ChangeEvent::Progress(Lsn(80)));
    assert_eq!(result.try_recv(), Ok(MoveStep::Done));
    let moves = stream.routing.take_moves();
    assert_eq!((moves.len(), moves[0].lsn, shape.known_lsn(100)), (1, 60, 59));
    assert_eq!(offsets(&shape), ["50_0", "50_2"]);
    assert_eq!(stream.moved(&[["6", "eve"]], "1008:1008:", 80).try_recv(), Ok(MoveStep::Done));
    assert_eq!((offsets(&shape).last().unwrap().as_str(), shape.known_lsn(100)), ("70_0", 100));
    stream.routing.command(RouteCommand::RemoveTable(OWNERS));
    assert!(stream.routing.is_empty() && stream.routing.tables.is_empty(), "both tables are forgotten");
}

/// SH-56: equal rows of a table without a primary key move as often as they exist.
#[test]
fn equal_rows_move_together() {
    let mut stream = Stream::new();
    let info = table("public", "items", vec![column("id", "text", None), column("name", "text", None)]);
    stream.form = Arc::new(RowForm::new(Arc::new(info), vec![0, 1]));
    let (shape, predicate) = stream.register_with_owners(OWNED);
    assert_eq!(stream.known(&predicate, &["bob"], "1001:1001:", None, false), SeamResult::Sound);
    stream.transaction(20, 1002, &[Frame::Owner("ann")]);
    assert_eq!(stream.routing.take_moves()[0].query, by_value(MoveLevel::Shape, ANN));
    let twice = [["1", "ann"]; 2];
    stream.transaction(30, 1003, &[Frame::Insert(["1", "ann"]), Frame::Update(["1", "ann"], ["1", "eve"])]);
    assert_eq!(stream.moved(&twice, "1004:1004:", 31).try_recv(), Ok(MoveStep::Done));
    assert_eq!(offsets(&shape), ["20_0", "20_2", "30_0", "30_2"]);
    stream.transaction(40, 1004, &[Frame::OwnerLeft("ann")]);
    assert_eq!(stream.moved(&twice, "1005:1005:", 41).try_recv(), Ok(MoveStep::Done));
    let deletes = messages(&shape).into_iter().filter(|(_, json)| json.contains("delete")).map(|(at, _)| at);
    assert_eq!(deletes.collect::<Vec<_>>(), ["30_2", "40_0", "40_2"]);
}

/// SH-56: the result around a changed one is completed first, from rows of its table.
#[test]
fn nested_results_move_rows_by_value() {
    let mut stream = Stream::new();
    let (shape, predicate) = stream.register_with_owners(NESTED);
    // The owners are ("bob", "bob") and ("ann", "").
    let sets = results_of(&predicate, &[&["bob", "ann"], &["bob"]]);
    assert_eq!(stream.known_sets(sets, "1001:1001:", None, false), SeamResult::Sound);
    stream.transaction(20, 1002, &[Frame::Owner(""), Frame::Insert(["3", "bob"])]);
    let moves = stream.routing.take_moves();
    assert_eq!((moves.len(), moves[0].lsn, &moves[0].query), (1, 20, &by_value(MoveLevel::Subquery(1), EMPTY)));
    stream.transaction(30, 1003, &[Frame::OwnerLeft("ann"), Frame::Insert(["4", "ann"])]);
    // The snapshot has the third transaction.
    let MoveStep::Next(query) = stream.moved(&[["", ""]], "1004:1004:", 31).try_recv().unwrap() else { panic!() };
    let both = [r#"("name" IN (''::text, 'ann'::text))"#, r#"("name" IN ('ann'::text, ''::text))"#];
    assert!(both.iter().any(|condition| query == by_value(MoveLevel::Shape, condition)), "{query:?}");
    assert_eq!(stream.read(&[["1", "ann"], ["1", "ann"]]), SeamResult::Sound);
    assert_eq!(stream.began(&shape, "1004:1004:", 31), SeamResult::Sound, "the rows are read again");
    assert_eq!(stream.read(&[["1", "ann"]]), SeamResult::Sound);
    assert_eq!(stream.moved(&[["4", "ann"]], "1004:1004:", 31).try_recv(), Ok(MoveStep::Done));
    assert_eq!(offsets(&shape), ["20_2", "20_4"]);
    let moves = stream.routing.take_moves();
    assert_eq!((moves.len(), moves[0].lsn, &moves[0].query), (1, 30, &by_value(MoveLevel::Subquery(1), ANN)));
    let next = stream.moved(&[], "1004:1004:", 31).try_recv();
    assert_eq!(next, Ok(MoveStep::Next(by_value(MoveLevel::Shape, ANN))));
    assert_eq!(stream.moved(&[["1", "ann"], ["4", "ann"]], "1004:1004:", 31).try_recv(), Ok(MoveStep::Done));
    assert_eq!(offsets(&shape), ["20_2", "20_4", "30_2", "30_4", "30_6"]);
    assert_eq!(shape.known_lsn(100), 100);
    // Another owner has the name: the result around it is as before.
    stream.transaction(40, 1004, &[Frame::Owner("")]);
    assert!(stream.routing.take_moves().is_empty());
}

/// SH-56: the transactions of the snapshot are dropped.
#[test]
fn changes_are_held_while_rows_are_compared() {
    let mut stream = Stream::new();
    let (shape, predicate) = stream.register_with_owners(OWNED);
    assert_eq!(stream.known(&predicate, &["bob"], "1001:1001:", None, false), SeamResult::Sound);
    let many = many_owners();
    let many = many.iter().map(|id| Frame::Owner(id)).chain([Frame::Insert(["3", "bob"])]);
    stream.transaction(20, 1002, &many.collect::<Vec<_>>());
    let moves = stream.routing.take_moves();
    assert_eq!((moves.len(), moves[0].lsn, &moves[0].query), (1, 20, &MoveQuery::Comparison));
    stream.transaction(30, 1003, &[Frame::Insert(["4", "bob"])]);
    stream.transaction(40, 1004, &[Frame::Insert(["5", "bob"])]);
    let retry = stream.known(&predicate, &["bob"], "1002:1002:", Some(moved_at(20)), false);
    assert_eq!(retry, SeamResult::Retry, "it lacks the move");
    let sound = stream.known(&predicate, &["bob", ""], "1004:1004:", Some(moved_at(20)), false);
    assert_eq!((sound, offsets(&shape)), (SeamResult::Sound, ["20_0", "40_0"].map(String::from).to_vec()));
    assert_eq!(shape.known_lsn(100), 100);
}

/// Too many values of the middle result: the log is compared, if it has a snapshot.
#[test]
fn comparison_may_follow_a_level() {
    let mut stream = Stream::new();
    let (shape, predicate) = stream.register_with_owners(NESTED);
    assert_eq!(stream.known(&predicate, &["bob"], "1001:1001:", None, false), SeamResult::Sound);
    stream.transaction(20, 1002, &[Frame::Owner("")]);
    stream.transaction(30, 1003, &[Frame::Insert(["4", "bob"])]);
    let many = many_owners();
    let many: Vec<[&str; 2]> = many.iter().map(|id| [id.as_str(), ""]).collect();
    let next = stream.moved(&many, "1003:1003:", 31).try_recv();
    assert_eq!(next, Ok(MoveStep::Next(MoveQuery::Comparison)));
    let known = |stream: &mut Stream, snapshot| stream.known(&predicate, &["bob"], snapshot, Some(moved_at(20)), false);
    assert_eq!(known(&mut stream, "1003:1003:"), SeamResult::Retry, "it lacks a transaction that was held");
    assert_eq!(known(&mut stream, "1004:1004:"), SeamResult::Sound);
    assert_eq!((offsets(&shape), shape.known_lsn(100)), (vec!["20_0".to_owned()], 100));
}

/// A restored shape is compared when the stream has repeated what its log has. The messages have the position of the first
/// transaction after it.
#[test]
fn restored_shape_is_compared() {
    let mut stream = Stream::new();
    let (shape, predicate) = stream.shape_with_owners(OWNED);
    let end = LogOffset { tx: 30, op: 0 };
    shape.log().append(Extent::unwritten(end, bytes::Bytes::new()), false);
    stream.routing.applied_lsn = 20;
    stream.routing.restore(&shape, &predicate);
    assert!(stream.routing.take_moves().is_empty(), "the stream repeats transactions");
    assert_eq!(shape.known_lsn(100), 19);
    stream.transaction(30, 1001, &[Frame::Insert(["3", "bob"])]);
    let moves = stream.routing.take_moves();
    assert_eq!((moves.len(), &moves[0].query), (1, &MoveQuery::Restored));
    let (done, mut first) = oneshot::channel();
    stream.routing.command(RouteCommand::FirstHeld { id: 1, done });
    assert!(first.try_recv().is_err(), "what the log has is not held");
    stream.transaction(40, 1003, &[Frame::Insert(["4", "bob"])]);
    stream.transaction(50, 1002, &[Frame::Owner("ann")]);
    assert_eq!(first.try_recv(), Ok(40));
    let known =
        |stream: &mut Stream, snapshot| stream.known(&predicate, &["bob", "ann"], snapshot, Some(moved_at(40)), true);
    assert_eq!(known(&mut stream, "1001:1002:1001"), SeamResult::Retry, "a transaction of the log is not visible");
    assert_eq!(known(&mut stream, "1003:1004:1003"), SeamResult::Retry, "the first transaction would be lost");
    assert_eq!(known(&mut stream, "1004:1004:"), SeamResult::Sound);
    assert_eq!((offsets(&shape), shape.known_lsn(100)), (vec!["40_0".to_owned()], 100));
}

/// A restored shape of which the log has changes only: the results before the transactions that are held are those of the
/// snapshot without their changes. The stream is not confirmed beyond what is held.
#[test]
fn log_without_snapshot_is_resumed() {
    let mut stream = Stream::new();
    stream.log = LogMode::ChangesOnly;
    let (shape, predicate) = stream.shape_with_owners(OWNED);
    let end = LogOffset { tx: 30, op: 0 };
    shape.log().append(Extent::unwritten(end, bytes::Bytes::new()), false);
    let snapshot = TransactionSnapshot::parse("1000:1002:1000").unwrap();
    shape.log().rare_mut().filter = Some(Box::new(SnapshotFilter { snapshot, until_lsn: 50 }));
    stream.routing.applied_lsn = 20;
    stream.routing.restore(&shape, &predicate);
    stream.transaction(30, 1002, &[Frame::Owner("bob")]);
    assert_eq!(stream.routing.take_moves()[0].query, MoveQuery::Restored);
    stream.transaction(40, 1001, &[Frame::Owner("its first snapshot has this transaction")]);
    stream.transaction(50, 1003, &[Frame::Insert(["4", "bob"]), Frame::Insert(["5", "ann"])]);
    stream.transaction(60, 1004, &[Frame::Owner("ann"), Frame::OwnerLeft("bob")]);
    stream.transaction(70, 1005, &[Frame::Insert(["6", "ann"])]);
    assert_eq!(stream.routing.take_writes().1, 20);
    let sets = || results(&predicate, &["ann"]);
    assert_eq!(stream.resumed(sets(), "1002:1003:1002", 61), MoveStep::Retry, "one is not visible");
    assert_eq!(stream.resumed(sets(), "1005:1005:", 61), MoveStep::Done);
    assert_eq!(offsets(&shape), ["50_0"], "the owner was the other one");
    let moves = stream.routing.take_moves();
    assert_eq!((moves.len(), moves[0].lsn, shape.known_lsn(100)), (1, 60, 59));
    let (writes, lsn) = stream.routing.take_writes();
    assert_eq!((writes.len(), lsn), (1, 60), "the move is not in the log");
    // The snapshot has the last transaction.
    let rows = [["4", "bob"], ["5", "ann"], ["6", "ann"]];
    assert_eq!(stream.moved(&rows, "1006:1006:", 71).try_recv(), Ok(MoveStep::Done));
    assert_eq!(offsets(&shape), ["50_0", "60_0", "60_2", "70_0"]);
    assert_eq!((stream.routing.take_writes().1, shape.known_lsn(100)), (71, 100));
}

/// Results of a snapshot are taken back level by level, from rows of the tables between them.
#[test]
fn nested_results_are_taken_back() {
    let mut stream = Stream::new();
    stream.log = LogMode::ChangesOnly;
    let (shape, predicate) = stream.shape_with_owners(NESTED);
    stream.routing.applied_lsn = 20;
    stream.routing.restore(&shape, &predicate);
    assert_eq!(stream.routing.take_moves()[0].query, MoveQuery::Restored);
    stream.transaction(50, 1003, &[Frame::Owner(""), Frame::Insert(["4", "ann"])]);
    // The owners are ("bob", "bob"), ("ann", "") and ("", "").
    let sets = results_of(&predicate, &[&["bob", "ann", ""], &["bob", "ann", ""]]);
    let middle = || MoveStep::Next(by_value(MoveLevel::Subquery(1), EMPTY));
    assert_eq!(stream.resumed(sets, "1004:1004:", 51), middle());
    assert_eq!(stream.routing.take_writes().1, 20);
    let named = [["ann", ""], ["", ""]];
    assert_eq!(stream.moved(&named, "1004:1004:", 51).try_recv(), Ok(MoveStep::Done));
    let moves = stream.routing.take_moves();
    assert_eq!((moves[0].lsn, &moves[0].query), (50, &by_value(MoveLevel::Subquery(1), EMPTY)));
    assert_eq!((stream.routing.take_writes().1, offsets(&shape).len()), (50, 0));
    assert!(matches!(stream.moved(&named, "1004:1004:", 51).try_recv(), Ok(MoveStep::Next(_))));
    assert_eq!(stream.moved(&[["4", "ann"]], "1004:1004:", 51).try_recv(), Ok(MoveStep::Done));
    assert_eq!((offsets(&shape), shape.known_lsn(100)), (vec!["50_0".to_owned()], 100));
    assert_eq!(stream.routing.take_writes().1, 51);
}

/// All rows are read where all may move, because the log cannot be compared.
#[test]
fn log_without_snapshot_is_not_compared() {
    let many = many_owners();
    let many: Vec<Frame<'_>> = many.iter().map(|id| Frame::Owner(id)).collect();
    for (log, changes, query) in [
        (LogMode::Full, &many[..], MoveQuery::Comparison),
        (LogMode::ChangesOnly, &many[..], by_value(MoveLevel::Shape, "true")),
    ] {
        let mut stream = Stream::new();
        stream.log = log;
        let (shape, predicate) = stream.register_with_owners(OWNED);
        assert_eq!(stream.known(&predicate, &["bob"], "1001:1001:", None, false), SeamResult::Sound);
        stream.transaction(20, 1002, changes);
        let moves = stream.routing.take_moves();
        assert_eq!((moves.len(), &moves[0].query), (1, &query));
        let is_confirmed = log == LogMode::Full;
        assert_eq!(stream.routing.take_writes().1, if is_confirmed { 21 } else { 20 });
        if !is_confirmed {
            stream.transaction(30, 1003, &[Frame::Update(["1", "7"], ["1", "eve"])]);
            let sound = stream.moved(&[["1", "eve"], ["2", "9"], ["3", "bob"]], "1004:1004:", 31).try_recv();
            assert_eq!(sound, Ok(MoveStep::Done));
            assert_eq!(offsets(&shape), ["20_0", "20_2", "30_0"]);
        }
    }
}
