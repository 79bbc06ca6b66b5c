//! Random scripts of a client.

use std::fmt;
use std::ops::Range;

use fastrand::Rng;
use tidegate_testkit::Frames;

use crate::shrink::Shrinks;

/// A message of a client, or a read of the replies.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Query(String),
    Parse(&'static str, String),
    Bind(&'static str, &'static str, Vec<String>),
    DescribeStatement(&'static str),
    DescribePortal(&'static str),
    Execute(&'static str, u32),
    CloseStatement(&'static str),
    ClosePortal(&'static str),
    Sync,
    Flush,
    CopyData(&'static str),
    CopyDone,
    CopyFail,
    /// The oid of a function, and its arguments.
    FunctionCall(u32, &'static [&'static str]),
    /// Another client sends this query before the next messages are sent.
    OtherClient(&'static str),
    /// A new client prepares, describes and executes this statement before the next messages are sent.
    NewClient(&'static str, Vec<String>),
    Read,
}

impl Op {
    /// Appends the message; `TABLE` in its SQL is replaced by the name of the table.
    pub(crate) fn append(&self, frames: Frames, table: &str) -> Frames {
        let sql = |text: &str| text.replace("TABLE", table);
        match self {
            Self::Query(text) => frames.query(&sql(text)),
            Self::Parse(name, text) => frames.parse(name, &sql(text)),
            Self::Bind(portal, statement, values) => {
                let values: Vec<_> = values.iter().map(String::as_str).collect();
                frames.bind_portal(portal, statement, &values)
            }
            Self::DescribeStatement(name) => frames.describe_statement(name),
            Self::DescribePortal(name) => frames.describe_portal(name),
            Self::Execute(portal, rows) => frames.execute_portal(portal, *rows),
            Self::CloseStatement(name) => frames.close_statement(name),
            Self::ClosePortal(name) => frames.close_portal(name),
            Self::Sync => frames.sync(),
            Self::Flush => frames.flush(),
            Self::CopyData(data) => frames.copy_data(data.as_bytes()),
            Self::CopyDone => frames.copy_done(),
            Self::CopyFail => frames.copy_fail("on purpose"),
            Self::FunctionCall(function, arguments) => frames.message(b'F', &function_call(*function, arguments)),
            Self::Read | Self::OtherClient(_) | Self::NewClient(..) => frames,
        }
    }

    /// Whether another client sends the op.
    pub(crate) fn is_of_another_client(&self) -> bool {
        matches!(self, Self::OtherClient(_) | Self::NewClient(..))
    }

    /// Whether Postgres usually answers with ReadyForQuery.
    pub(crate) fn ends_in_ready(&self) -> bool {
        matches!(self, Self::Query(_) | Self::Sync | Self::FunctionCall(..))
    }
}

/// The body of a FunctionCall with all arguments and the result as text.
fn function_call(function: u32, arguments: &[&str]) -> Vec<u8> {
    let count = u16::try_from(arguments.len()).expect("a few");
    let mut body = function.to_be_bytes().to_vec();
    body.extend([0, 0]);
    body.extend(count.to_be_bytes());
    for argument in arguments {
        body.extend(u32::try_from(argument.len()).expect("short").to_be_bytes());
        body.extend(argument.bytes());
    }
    body.extend([0, 0]);
    body
}

/// A script of a client. The runner brings it to a state where Postgres answers.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) ops: Vec<Op>,
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ops.iter().try_for_each(|op| writeln!(f, "    {op:?}"))
    }
}

const STATEMENTS: [&str; 4] = ["", "a", "b", "c"];
const PORTALS: [&str; 3] = ["", "p", "q"];

/// Statements for both protocols.
const SQL: &[&str] = &[
    "select 1",
    "select 'two', null, 3.5",
    "select n from generate_series(1, 5) n",
    "select n, repeat('x', n * 50) from generate_series(1, 40) n",
    "insert into TABLE values (1)",
    "insert into TABLE values (2), (3) returning n",
    "update TABLE set n = n + 1",
    "delete from TABLE where n > 3",
    "select n from TABLE order by n",
    "select count(*) from TABLE",
    "select 1 / 0",
    "select 1 / (random() * 0)::int",
    "selec",
    "select * from no_such_table",
    "select 1 as a, 2 as a",
    "do $$ begin raise notice 'noticed'; end $$",
    "begin",
    "begin isolation level serializable",
    "commit",
    "rollback",
    "savepoint s",
    "rollback to s",
    "release s",
    "show transaction_isolation",
    "set local application_name = 'local'",
    "set application_name = 'changed'",
    "show application_name",
    "set work_mem = '7MB'",
    "reset work_mem",
    "set local work_mem = '8MB'",
    "show work_mem",
    "discard all",
    "declare c cursor for select generate_series(1, 6)",
    "fetch 2 from c",
    "close c",
    "deallocate all",
    "prepare plan (int) as select $1 + 1",
    "execute plan(1)",
    "deallocate plan",
    "create temporary table scratch (n int)",
    "select count(*) from scratch",
    "values (1), (2)",
    "explain (costs off) select 1",
    "copy TABLE to stdout",
    "",
    " ; ",
    "-- nothing",
    "select repeat('long', 30000)",
    "select n, repeat('x', 20000) from generate_series(1, 9) n",
    "listen TABLE",
    "unlisten *",
    "notify TABLE, 'payload'",
    "select pg_notify('TABLE', n::text) from generate_series(1, 3) n",
    "declare h cursor with hold for select generate_series(1, 3)",
    "fetch 2 from h",
];

/// Several statements in one Query.
const SEVERAL: &[&str] = &[
    "select 1; select 2",
    "begin; insert into TABLE values (7); commit",
    "insert into TABLE values (8); select 1 / 0; select 3",
    "begin; select 1 / 0; rollback; select 'after'",
    "select 1;;select 2;",
    "commit; begin; select 4",
    "rollback; select 5",
    "copy TABLE to stdout; select 6",
    "set application_name = 'several'; select 7",
    "set application_name = 'undone'; select 1 / 0; select 8",
    "begin; set application_name = 'kept'; commit; select 1 / 0",
    "set local application_name = 'local'; show application_name; commit",
    "begin; savepoint s; set application_name = 'undone'; rollback to s; show application_name",
    "copy TABLE to stdout; select 1 / 0; copy TABLE to stdout",
    "notify TABLE, 'one'; begin; notify TABLE, 'two'; commit; select 9",
    "begin; insert into TABLE values (9); rollback; ; select 10; begin",
    "deallocate all; select 11",
    "reset work_mem; show work_mem",
    "set work_mem = '9MB'; select 13",
    "select 1 / 0; reset work_mem",
    "select pg_advisory_unlock_all(); close all; unlisten *; reset work_mem",
    "prepare plan as select 12; execute plan; deallocate plan",
];

/// Statements with parameters, and the number of parameters.
const WITH_PARAMETERS: &[(&str, usize)] = &[
    ("select $1::int + 1", 1),
    ("insert into TABLE values ($1)", 1),
    ("select n from generate_series(1, $1::int) n", 1),
    ("select $1::text || $2::text", 2),
    ("select n from TABLE where n = $1 or n = $2", 2),
    // `10 / $1` would fail in planning, but only until a server has planned it five times.
    ("select 10 / ($1::int + (random() * 0)::int)", 1),
];

/// Functions by oid: a sum, a division by zero, `upper`, and an unknown function.
const FUNCTIONS: &[(u32, &[&str])] = &[(177, &["40", "2"]), (154, &["1", "0"]), (871, &["loud"]), (3, &[])];

const DATA: &[&str] = &["1\n", "2\n3\n", "4", "\n", "not a number\n", "", "\\.\n"];

/// Beginnings of statements that open a transaction block without ending it, or need an open one.
const OF_BLOCKS: &[&str] = &["begin", "savepoint", "declare c", "fetch", "rollback; select", "commit; begin"];

impl Shrinks for Script {
    fn len(&self) -> usize {
        self.ops.len()
    }

    fn without(&self, range: Range<usize>) -> Self {
        let mut rest = self.clone();
        rest.ops.drain(range);
        rest
    }
}

impl Script {
    /// Removes transaction blocks, which statement mode rejects.
    pub(crate) fn without_blocks(mut self) -> Self {
        let is_of_block =
            |text: &str| !text.ends_with("; commit") && OF_BLOCKS.iter().any(|beginning| text.starts_with(beginning));
        self.ops.retain(|op| match op {
            Op::Query(text) | Op::Parse(_, text) => !is_of_block(text),
            // Statement mode rejects it if one of its statements fails.
            Op::OtherClient(text) => !text.starts_with("begin"),
            _ => true,
        });
        self
    }

    /// Whether the script may change the columns of the table.
    pub(crate) fn changes_schema(&self) -> bool {
        self.ops.iter().any(Op::is_of_another_client)
    }

    /// The script of this seed.
    pub(crate) fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut ops = Vec::new();
        if rng.u8(..4) == 0 {
            let first = rng.usize(..SHARED.len());
            for _ in 0..rng.usize(2..10) {
                push_schema_ops(&mut rng, first, &mut ops);
            }
            return Self { ops };
        }
        for _ in 0..rng.usize(1..14) {
            push_ops(&mut rng, &mut ops);
            if rng.u8(..10) < 4 {
                ops.push(Op::Read);
            }
        }
        Self { ops }
    }
}

fn push_ops(rng: &mut Rng, ops: &mut Vec<Op>) {
    match rng.u8(..21) {
        0..4 => ops.push(Op::Query(one_of(rng, SQL).to_owned())),
        4 => ops.push(Op::Query(one_of(rng, SEVERAL).to_owned())),
        5..8 => once(rng, ops),
        8..11 => prepared(rng, ops),
        11 => suspended_portals(rng, ops),
        12 => simple_copy_in(rng, ops),
        13 => extended_copy_in(rng, ops),
        14 => ops.push(if rng.bool() { Op::Sync } else { Op::Flush }),
        15 => {
            // The gateway cannot answer for the server in the middle of a pipeline.
            ops.push(Op::Sync);
            ops.push(Op::Query(format!("deallocate {}", one_of(rng, &STATEMENTS[1..]))));
        }
        16 => {
            // A FunctionCall, like a Query, does not belong in the middle of a pipeline.
            if rng.u8(..4) > 0 {
                ops.push(Op::Sync);
            }
            let (function, arguments) = FUNCTIONS[rng.usize(..FUNCTIONS.len())];
            ops.push(Op::FunctionCall(function, arguments));
        }
        17 => stray(rng, ops),
        18 => rejected_copy_in(rng, ops),
        19 => flush_then_query(rng, ops),
        _ => set_config(rng, ops),
    }
}

fn one_of<'v>(rng: &mut Rng, values: &[&'v str]) -> &'v str {
    values[rng.usize(..values.len())]
}

fn values(rng: &mut Rng, count: usize) -> Vec<String> {
    (0..count).map(|_| rng.i32(-1..6).to_string()).collect()
}

fn text_and_values(rng: &mut Rng) -> (String, Vec<String>) {
    if rng.bool() {
        return (one_of(rng, SQL).to_owned(), Vec::new());
    }
    let (text, count) = WITH_PARAMETERS[rng.usize(..WITH_PARAMETERS.len())];
    // The number of values is sometimes wrong.
    let count = if rng.u8(..20) == 0 { rng.usize(..3) } else { count };
    (text.to_owned(), values(rng, count))
}

/// Most pipelines end in Sync, some in Flush, and some continue.
fn end(rng: &mut Rng, ops: &mut Vec<Op>) {
    match rng.u8(..10) {
        0..7 => ops.push(Op::Sync),
        7 | 8 => ops.push(Op::Flush),
        _ => {}
    }
}

fn once(rng: &mut Rng, ops: &mut Vec<Op>) {
    let (text, values) = text_and_values(rng);
    ops.push(Op::Parse("", text));
    if rng.u8(..4) == 0 {
        ops.push(Op::DescribeStatement(""));
    }
    ops.push(Op::Bind("", "", values));
    if rng.bool() {
        ops.push(Op::DescribePortal(""));
    }
    ops.push(Op::Execute("", if rng.u8(..4) == 0 { rng.u32(1..4) } else { 0 }));
    end(rng, ops);
}

fn prepared(rng: &mut Rng, ops: &mut Vec<Op>) {
    let name = one_of(rng, &STATEMENTS);
    let (text, values) = text_and_values(rng);
    if rng.u8(..3) == 0 {
        ops.push(Op::CloseStatement(name));
    }
    if rng.u8(..3) > 0 {
        ops.push(Op::Parse(name, text));
    }
    if rng.u8(..3) == 0 {
        ops.push(Op::DescribeStatement(name));
    }
    for _ in 0..rng.usize(..4) {
        let portal = one_of(rng, &PORTALS);
        ops.push(Op::Bind(portal, name, values.clone()));
        ops.push(Op::Execute(portal, if rng.u8(..4) == 0 { rng.u32(1..4) } else { 0 }));
    }
    end(rng, ops);
}

fn suspended_portals(rng: &mut Rng, ops: &mut Vec<Op>) {
    let portal = one_of(rng, &PORTALS);
    if rng.bool() {
        ops.push(Op::Query("begin".to_owned()));
    }
    let statement = one_of(rng, &STATEMENTS[..2]);
    let text = match rng.u8(..6) {
        0 => "insert into TABLE select generate_series(1, 3) returning n",
        1 => "select n, repeat('x', 30000) from generate_series(1, 5) n",
        2 => "copy TABLE to stdout",
        _ => "select n from generate_series(1, 5) n",
    };
    ops.extend([Op::CloseStatement(statement), Op::Parse(statement, text.to_owned())]);
    ops.push(Op::Bind(portal, statement, Vec::new()));
    for _ in 0..rng.usize(1..5) {
        ops.push(Op::Execute(portal, rng.u32(..4)));
        match rng.u8(..9) {
            0..3 => end(rng, ops),
            3 => ops.push(Op::DescribePortal(portal)),
            4 => ops.extend([Op::Flush, Op::Read]),
            5 => ops.push(Op::Bind(one_of(rng, &PORTALS), statement, Vec::new())),
            6 => ops.push(Op::ClosePortal(one_of(rng, &PORTALS))),
            _ => {}
        }
    }
    if rng.bool() {
        ops.push(Op::ClosePortal(portal));
    }
    ops.push(Op::Sync);
}

fn data(rng: &mut Rng, ops: &mut Vec<Op>) {
    for _ in 0..rng.usize(..4) {
        // Most lines are valid.
        let line = if rng.u8(..4) == 0 { one_of(rng, DATA) } else { DATA[rng.usize(..2)] };
        ops.push(Op::CopyData(line));
        if rng.u8(..8) == 0 {
            ops.push(if rng.bool() { Op::Sync } else { Op::Flush });
        }
        if rng.u8(..8) == 0 {
            ops.push(Op::Read);
        }
    }
    ops.push(if rng.u8(..4) == 0 { Op::CopyFail } else { Op::CopyDone });
}

fn copy_text(rng: &mut Rng) -> String {
    let table = if rng.u8(..6) == 0 { "no_such_table" } else { "TABLE" };
    format!("copy {table} from stdin")
}

fn simple_copy_in(rng: &mut Rng, ops: &mut Vec<Op>) {
    let text = copy_text(rng);
    let several = rng.u8(..6);
    ops.push(Op::Query(match several {
        0 => format!("select 1; {text}; select 2"),
        1 => format!("{text}; {}", copy_text(rng)),
        _ => text,
    }));
    if rng.bool() {
        ops.push(Op::Read);
    }
    data(rng, ops);
    if several == 1 {
        data(rng, ops);
    }
}

fn extended_copy_in(rng: &mut Rng, ops: &mut Vec<Op>) {
    ops.extend([Op::Parse("", copy_text(rng)), Op::Bind("", "", Vec::new()), Op::Execute("", 0)]);
    match rng.u8(..4) {
        0 => ops.push(Op::Sync),
        1 => ops.extend([Op::Flush, Op::Read]),
        _ => {}
    }
    data(rng, ops);
    match rng.u8(..6) {
        0 => ops.extend([Op::Flush, Op::Read]),
        1 => ops.push(Op::Read),
        _ => {}
    }
    ops.push(Op::Sync);
}

/// Changes of the table by another client, which does not wait for locks of the script.
const SCHEMA_CHANGES: &[&str] = &[
    "begin; set local lock_timeout = '200ms'; alter table TABLE alter n type real; commit",
    "begin; set local lock_timeout = '200ms'; alter table TABLE alter n type bigint; commit",
    "begin; set local lock_timeout = '200ms'; alter table TABLE alter n type text; commit",
    "begin; set local lock_timeout = '200ms'; alter table TABLE alter n type int using 7; commit",
    "begin; set local lock_timeout = '200ms'; alter table TABLE add m int default 5; commit",
    "begin; set local lock_timeout = '200ms'; alter table TABLE drop m; commit",
    "begin; set local lock_timeout = '200ms'; alter table TABLE alter n set default 9; commit",
    "begin; set local lock_timeout = '200ms'; alter table TABLE rename n to k; commit",
    "begin; set local lock_timeout = '200ms'; alter table TABLE rename k to n; commit",
    "begin; set local lock_timeout = '200ms'; drop table TABLE; create table TABLE (n int); commit",
    "begin; set local lock_timeout = '200ms'; alter table TABLE add m int; rollback",
    "insert into TABLE values (42)",
];

/// Statements that several clients prepare, and the number of parameters.
const SHARED: &[(&str, usize)] = &[
    ("select * from TABLE order by 1", 0),
    ("select n from TABLE where n = $1", 1),
    ("select count(*) from TABLE where n > $1", 1),
    ("insert into TABLE default values returning *", 0),
    ("insert into TABLE (n) values ($1) returning n", 1),
];

/// Prepares, describes and executes statements while the table changes. Each name has one text, from `first` on,
/// because Postgres and the gateway may report different ones of two simultaneous errors.
fn push_schema_ops(rng: &mut Rng, first: usize, ops: &mut Vec<Op>) {
    let which = rng.usize(..STATEMENTS.len());
    let name = STATEMENTS[which];
    let (text, count) = SHARED[(first + which) % SHARED.len()];
    match rng.u8(..12) {
        0..3 => {
            ops.push(Op::Read);
            ops.push(Op::OtherClient(one_of(rng, SCHEMA_CHANGES)));
        }
        3 | 4 => {
            ops.push(Op::Read);
            ops.push(Op::NewClient(text, values(rng, count)));
        }
        5..8 => {
            ops.extend([Op::CloseStatement(name), Op::Parse(name, text.to_owned()), Op::DescribeStatement(name)]);
            ops.push(Op::Sync);
        }
        8 => ops.push(Op::Query(one_of(rng, &["begin", "commit", "rollback"]).to_owned())),
        _ => {
            let values = values(rng, count);
            for _ in 0..rng.usize(1..3) {
                let portal = one_of(rng, &PORTALS);
                ops.push(Op::Bind(portal, name, values.clone()));
                if rng.bool() {
                    ops.push(Op::DescribePortal(portal));
                }
                ops.push(Op::Execute(portal, 0));
            }
            // A Flush or a Sync makes the server take its locks before another client acts; the order would else depend
            // on timing.
            ops.push(if rng.u8(..4) == 0 { Op::Flush } else { Op::Sync });
        }
    }
}

/// A COPY that fails before it reads data, by a trigger or by FREEZE, with Sync and data at any position.
fn rejected_copy_in(rng: &mut Rng, ops: &mut Vec<Op>) {
    let text = if rng.bool() { "copy TABLE_rejecting from stdin" } else { "copy TABLE from stdin (freeze)" };
    if rng.u8(..3) == 0 {
        ops.push(Op::Query(text.to_owned()));
    } else {
        let name = one_of(rng, &STATEMENTS[..2]);
        ops.extend([Op::CloseStatement(name), Op::Parse(name, text.to_owned()), Op::Bind("", name, Vec::new())]);
        if rng.u8(..3) == 0 {
            ops.push(Op::DescribePortal(""));
        }
        ops.push(Op::Execute("", 0));
    }
    for _ in 0..rng.usize(..3) {
        ops.push(match rng.u8(..4) {
            0 | 1 => Op::Sync,
            2 => Op::Flush,
            _ => Op::Read,
        });
    }
    data(rng, ops);
    ops.push(Op::Sync);
}

/// A simple query after extended messages other than Execute, without a Sync in between.
fn flush_then_query(rng: &mut Rng, ops: &mut Vec<Op>) {
    let name = one_of(rng, &STATEMENTS);
    let (text, values) = text_and_values(rng);
    ops.extend([Op::CloseStatement(name), Op::Parse(name, text)]);
    if rng.bool() {
        ops.push(Op::DescribeStatement(name));
    }
    if rng.u8(..3) == 0 {
        ops.push(Op::Bind(one_of(rng, &PORTALS), name, values.clone()));
    }
    if rng.u8(..4) > 0 {
        ops.push(Op::Flush);
    }
    if rng.bool() {
        ops.push(Op::Read);
    }
    ops.push(Op::Query(one_of(rng, SQL).to_owned()));
    if rng.bool() {
        ops.extend([Op::Bind("", name, values), Op::Execute("", 0), Op::Sync]);
    }
}

/// Settings by `set_config` and in multi-statement queries, which follow their client.
fn set_config(rng: &mut Rng, ops: &mut Vec<Op>) {
    const SETS: &[&str] = &[
        "select set_config('work_mem', '7MB', false)",
        "select set_config('work_mem', 'much', false)",
        "select current_setting('jit') as cur, set_config('jit', 'off', false) as new",
        "select set_config('jit', 'on', true)",
        "select set_config('work_mem', '6MB', false) from TABLE",
        "select set_config('work_mem', '5MB', false), set_config('application_name', 'config', false)",
    ];
    const BLOCKS: &[&str] = &[
        "begin; set work_mem = '9MB'; set jit = off; commit",
        "begin; set work_mem = '8MB'; select 1 / 0; commit;",
        "begin; set work_mem = '7MB'",
        "set work_mem = '6MB'; reset jit; commit",
        "begin; select set_config('work_mem', '5MB', false); reset work_mem; commit",
    ];
    match rng.u8(..4) {
        0 => ops.push(Op::Query(one_of(rng, SETS).to_owned())),
        1 => ops.push(Op::Query(one_of(rng, BLOCKS).to_owned())),
        2 => {
            ops.push(Op::Parse("", one_of(rng, SETS).to_owned()));
            ops.extend([Op::Bind("", "", Vec::new()), Op::Execute("", rng.u32(..2)), Op::Sync]);
        }
        _ => {
            ops.push(Op::Parse("", "select set_config('work_mem', $1, false)".to_owned()));
            ops.extend([Op::Bind("", "", vec!["4321kB".to_owned()]), Op::Execute("", rng.u32(..2)), Op::Sync]);
        }
    }
    ops.extend([Op::Read, Op::Query("show work_mem".to_owned()), Op::Query("show jit".to_owned())]);
}

fn stray(rng: &mut Rng, ops: &mut Vec<Op>) {
    ops.push(match rng.u8(..8) {
        0 => Op::CopyData("5\n"),
        1 => Op::CopyDone,
        2 => Op::CopyFail,
        3 => Op::Execute(one_of(rng, &PORTALS), 0),
        4 => Op::DescribePortal(one_of(rng, &PORTALS)),
        5 => Op::DescribeStatement(one_of(rng, &STATEMENTS)),
        6 => Op::ClosePortal(one_of(rng, &PORTALS)),
        _ => Op::CloseStatement(one_of(rng, &STATEMENTS)),
    });
}
