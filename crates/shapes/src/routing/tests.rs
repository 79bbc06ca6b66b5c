//! The router with a stream of events and no database.

use tidegate_changes::{
    Change, ChangeId, Lsn, PgTimestamp, RelationColumn, Relations, TransactionBegin, TransactionCommit,
};
use tidegate_predicate::{Collation, Column, ColumnType, Table};
use tidegate_wire::replication::pgoutput::{ColumnValue, encode};

use super::*;
use crate::definition::{Handle, ShapeDefinition};
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
        let shape = Arc::new(Shape::new(id, Handle { hash: 1, micros: id }, Arc::new(definition)));
        let predicate = Arc::new(Predicate::always_true(&self.table));
        let (done, _) = oneshot::channel();
        self.routing.command(RouteCommand::Register { shape: Arc::clone(&shape), predicate, done });
        shape
    }

    /// A shape of the rows whose name is the id of an owner.
    fn register_with_owners(&mut self) -> (Arc<Shape>, Arc<Predicate>) {
        let other = |relation: Relation| Relation { oid: OWNERS, name: "owners".into(), ..relation };
        self.relations.update(other(relation(&["id", "name"])));
        let info = table("public", "owners", vec![column("id", "text", Some(0)), column("name", "text", None)]);
        let info = Arc::new(TableInfo { oid: OWNERS, ..info });
        let columns = ["id", "name"].map(|name| Column::new(name, ColumnType::TEXT)).to_vec();
        let owners = Arc::new(Table::new("public", "owners", columns, Collation::c()));
        let text = "name IN (SELECT id FROM owners)";
        let predicate = Arc::new(tidegate_predicate::parse_with(text, &[], &self.table, &[owners]).unwrap());
        let inner = Some(Arc::new(crate::definition::InnerTables(vec![info])));
        let (form, replica, log) = (Arc::clone(&self.form), Replica::Default, LogMode::Full);
        let definition = ShapeDefinition { form, predicate: Some(predicate.shared_text()), replica, log, inner };
        let shape = Arc::new(Shape::new(1, Handle { hash: 1, micros: 1 }, Arc::new(definition)));
        let (done, _) = oneshot::channel();
        let register = RouteCommand::Register { shape: Arc::clone(&shape), predicate: Arc::clone(&predicate), done };
        self.routing.command(register);
        shape.log().phase = ShapePhase::Complete;
        (shape, predicate)
    }

    /// The result of the subquery in a snapshot.
    fn known(
        &mut self,
        predicate: &Predicate,
        owners: &[&str],
        snapshot: &str,
        moves: Option<MovedRows>,
    ) -> SeamResult {
        let mut set = predicate.subqueries()[0].empty_set();
        owners.iter().for_each(|owner| set.add(Some(owner.as_bytes()), 1).unwrap());
        let snapshot = TransactionSnapshot::parse(snapshot).unwrap();
        let filter = SnapshotFilter { snapshot, until_lsn: u64::MAX };
        let results = Box::new(SubqueryResults { sets: vec![set], filter, moves });
        let (done, mut result) = oneshot::channel();
        self.routing.command(RouteCommand::SubqueriesKnown { id: 1, results, done });
        result.try_recv().unwrap()
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
        let bytes = extent.bytes.unwrap();
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
    let ends: Vec<String> = shape.log().chunk_ends.iter().map(ToString::to_string).collect();
    assert_eq!(ends, ["10_0", "20_0", "30_0", "40_0"]);
}

/// SH-56: changes are held from the transaction that moves rows on, until a snapshot has it; repeated ones count once.
#[test]
fn changes_are_held_while_rows_move() {
    let mut stream = Stream::new();
    let (shape, predicate) = stream.register_with_owners();
    stream.transaction(10, 1001, &[Frame::Insert(["1", "ann"]), Frame::Insert(["2", "bob"])]);
    assert!(offsets(&shape).is_empty(), "the result is not known");
    assert_eq!(stream.known(&predicate, &["bob"], "1001:1001:", None), SeamResult::Sound);
    assert_eq!(offsets(&shape), ["10_2"], "the snapshot does not have the transaction");
    stream.transaction(20, 1002, &[Frame::Owner("ann"), Frame::Insert(["3", "bob"])]);
    let moves = stream.routing.take_moves();
    assert_eq!((moves.len(), moves[0].lsn, shape.known_lsn(100)), (1, 20, 19));
    stream.transaction(30, 1003, &[Frame::Insert(["4", "ann"])]);
    assert_eq!(stream.known(&predicate, &["bob"], "1002:1002:", None), SeamResult::Retry, "it lacks the move");
    let mut run = Vec::new();
    let at = LogOffset { tx: 20, op: 0 };
    run::push_item(&mut run, at, |out| out.extend_from_slice(b"{\"headers\":{}}"));
    let moved = MovedRows { run, ends: (at, at), rows: 2 };
    assert_eq!(stream.known(&predicate, &["bob", "ann"], "1003:1003:", Some(moved)), SeamResult::Sound);
    assert_eq!((offsets(&shape), shape.known_lsn(100)), (["10_2", "20_0", "30_0"].map(String::from).to_vec(), 100));
    // The stream was interrupted, and repeats transactions.
    stream.transaction(20, 1002, &[Frame::Owner("ann"), Frame::Insert(["3", "bob"])]);
    stream.transaction(40, 1004, &[Frame::OwnerLeft("ann"), Frame::Owner("ann"), Frame::Insert(["5", "ann"])]);
    assert!(stream.routing.take_moves().is_empty(), "the result is as before");
    assert_eq!(offsets(&shape).last().unwrap(), "40_4");
    stream.transaction(50, 1005, &[Frame::OwnerLeft("ann")]);
    assert_eq!(stream.routing.take_moves().len(), 1);
    stream.transaction(60, 1006, &[Frame::Owner("eve")]);
    stream.transaction(70, 1007, &[Frame::Insert(["6", "eve"])]);
    assert_eq!(stream.known(&predicate, &["bob"], "1006:1006:", None), SeamResult::Moved(60), "it moves rows again");
    assert!(stream.routing.take_moves().is_empty(), "the same task goes on");
    assert_eq!((offsets(&shape).last().unwrap().as_str(), shape.known_lsn(100)), ("40_4", 59));
    stream.routing.command(RouteCommand::RemoveTable(OWNERS));
    assert!(stream.routing.is_empty() && stream.routing.tables.is_empty(), "both tables are forgotten");
}
