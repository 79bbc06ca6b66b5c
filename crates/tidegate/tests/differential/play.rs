//! Plays a script at a door, and compares what came.

use std::fmt::Write as _;
use std::time::Duration;

use fastrand::Rng;
use tidegate_testkit::{Door, Fixture, Frames, Lost, Message, RawClient, eventually};
use tidegate_wire::backend::{Column, RowDescription};

use crate::script::{Op, Script};

/// No message for so long means that Postgres has said all. If it had not, the rest is read at the next read.
const QUIET: Duration = Duration::from_millis(20);
/// What is missing for so long is missing.
const PATIENCE: Duration = Duration::from_secs(4);

/// Both doors and what is between the plays.
pub(crate) struct Stage<'f> {
    fixture: &'f Fixture,
    mode: &'static str,
    direct: Door,
    gateway: Door,
    table: String,
    keeper: RawClient,
}

/// What one door answered: the messages of each read, whether the connection ended in it, and what befell others.
#[derive(Default)]
struct Played {
    reads: Vec<Vec<Message>>,
    /// The answers to other clients of the script.
    others: Vec<Vec<Message>>,
    ended: bool,
    /// The play has ended where Postgres refused a statement because its columns have changed.
    is_cut: bool,
    harm: Option<String>,
}

impl Played {
    /// Postgres refuses such a statement until it is prepared again, the gateway once: there the comparison ends.
    fn cut_at_changed_plan(&mut self) -> bool {
        let is_refusal = |message: &Message| {
            message.tag == b'E' && message.error().message == "cached plan must not change result type"
        };
        let Some(last) = self.reads.last_mut() else { return false };
        if let Some(at) = last.iter().position(is_refusal) {
            last.truncate(at + 1);
            self.is_cut = true;
        }
        self.is_cut
    }

    /// A message in the middle of COPY IN that has no place there: Postgres closes, and what it read before is chance.
    fn lost_synchronisation(&self) -> bool {
        let lost = |message: &Message| {
            message.tag == b'E' && message.error().code == "08P01" && message.error().severity == "FATAL"
        };
        self.reads.iter().flatten().any(lost)
    }
}

impl<'f> Stage<'f> {
    pub(crate) fn new(fixture: &'f Fixture, mode: &'static str) -> Self {
        let table = fixture.own_table("n int");
        make_refusing_table(fixture, &table);
        let gateway = gateway(fixture, mode);
        Self { fixture, mode, direct: fixture.direct(), gateway, table, keeper: fixture.server.client() }
    }

    /// How the gateway differs from Postgres in this script, if it does. A script that makes Postgres crash tells
    /// nothing, wherever that happens, and neither do those that other tests play at the same server meanwhile.
    pub(crate) fn difference(&mut self, script: &Script) -> Option<String> {
        let expected = self.play(&self.direct, script, None);
        if !self.clear_table() || !self.restore_table(script) {
            return None;
        }
        let expected = expected.expect("Postgres takes a client");
        if expected.lost_synchronisation() {
            return None;
        }
        let actual = self.play(&self.gateway, script, Some(&expected));
        let difference = match &actual {
            Ok(actual) => compare(&expected, actual),
            Err(lost) => Some(format!("  Tidegate did not take a client: {lost}\n")),
        };
        let intact = self.clear_table() && self.restore_table(script);
        if difference.is_some() || !intact {
            // Whatever went wrong must not go on into the next script.
            self.gateway = gateway(self.fixture, self.mode);
        }
        difference.filter(|_| intact)
    }

    /// Waits for the locks of the play before. False if Postgres has crashed since the last time; it is up again then.
    fn clear_table(&mut self) -> bool {
        let truncate = format!("truncate {}", self.table);
        if self.keeper.try_query(&truncate).is_ok() {
            return true;
        }
        eventually("Postgres is up again", || match self.direct.startup().try_connect() {
            Ok(keeper) => {
                self.keeper = keeper;
                self.keeper.try_query(&truncate).is_ok()
            }
            Err(_) => false,
        });
        false
    }

    /// Gives the table its first columns again.
    fn restore_table(&mut self, script: &Script) -> bool {
        let restore = format!("drop table {0}; create table {0} (n int)", self.table);
        !script.changes_schema() || self.keeper.try_query(&restore).is_ok()
    }

    fn play(&self, door: &Door, script: &Script, expected: Option<&Played>) -> Result<Played, Lost> {
        let mut client = door.startup().parameter("application_name", "script").try_connect()?;
        let mut passer_by = PasserBy::new(door)?;
        let mut played = Played::default();
        let mut rng = Rng::with_seed(script.ops.len() as u64);
        for batch in batches(script) {
            if expected.is_some_and(|expected| expected.is_cut && played.reads.len() == expected.reads.len()) {
                break;
            }
            let others = batch.iter().filter(|op| op.is_of_another());
            let answers = others.map(|op| play_other(door, op, &self.table)).collect::<Result<Vec<_>, _>>();
            match answers {
                Ok(answers) => played.others.extend(answers),
                Err(lost) => played.harm = Some(format!("another client of the script was not served: {lost}")),
            }
            if played.harm.is_some() {
                break;
            }
            played.harm = passer_by.act().err().map(|lost| format!("another client was not served: {lost}"));
            if played.harm.is_some() {
                break;
            }
            let frames = batch.iter().fold(Frames::new(), |frames, op| op.append(frames, &self.table));
            if send(&mut client, &frames, &mut rng).is_err() {
                // The connection ended; what came before is still to be read.
            }
            let wanted = expected.map(|expected| expected.reads.get(played.reads.len()).map_or(0, Vec::len));
            let (read, ended) = match wanted {
                None => read_until_quiet(&mut client, &batch),
                Some(wanted) => read_exactly(&mut client, wanted),
            };
            played.reads.push(read);
            if expected.is_none() && played.cut_at_changed_plan() {
                break;
            }
            if ended {
                played.ended = true;
                break;
            }
        }
        Ok(played)
    }
}

/// Another table beside `table`, whose trigger refuses every insert before any row is read.
fn make_refusing_table(fixture: &Fixture, table: &str) {
    let own = format!("{table}_refusing");
    fixture.server.sql(&format!("create table {own} (n int)"));
    let body = "begin raise exception 'refused'; end";
    fixture.server.sql(&format!("create function {own}() returns trigger language plpgsql as $${body}$$"));
    fixture
        .server
        .sql(&format!("create trigger refuse before insert on {own} for each statement execute function {own}()"));
}

/// A server each for the script, for the client that passes by, and for the other clients of the script.
fn gateway(fixture: &Fixture, mode: &str) -> Door {
    let size = if mode == "session" { 8 } else { 3 };
    Door::through(fixture.gateway(&format!("mode = \"{mode}\"\nsize = {size}\n")))
}

/// The answers to another client of the script.
fn play_other(door: &Door, op: &Op, table: &str) -> Result<Vec<Message>, Lost> {
    let mut client = door.startup().try_connect()?;
    client.set_patience(PATIENCE);
    match op {
        Op::Elsewhere(text) => Ok(client.try_query(&text.replace("TABLE", table))?.messages),
        Op::Anew(text, values) => {
            let values: Vec<_> = values.iter().map(String::as_str).collect();
            let frames = Frames::new().parse("anew", &text.replace("TABLE", table)).describe_statement("anew");
            client.try_send(frames.bind("anew", &values).execute().sync().bytes())?;
            Ok(client.try_until_ready()?.messages)
        }
        _ => Ok(Vec::new()),
    }
}

/// The ops between two reads; the last batch ends what may be open.
fn batches(script: &Script) -> Vec<Vec<Op>> {
    let ops = with_syncs(&script.ops);
    let mut batches: Vec<_> = ops.split_inclusive(|op| matches!(op, Op::Read)).map(<[Op]>::to_vec).collect();
    batches.push(vec![Op::CopyFail, Op::Sync, Op::Query("rollback".to_owned())]);
    batches.push(vec![Op::Query("select 'the end'".to_owned())]);
    batches
}

/// Puts a Sync between an Execute and a Query: without it, Postgres 18.6 answers the requests that follow with internal
/// errors, and has been seen to crash.
fn with_syncs(ops: &[Op]) -> Vec<Op> {
    let mut executed = false;
    let mut settled = Vec::with_capacity(ops.len());
    for op in ops {
        if executed && matches!(op, Op::Query(_) | Op::FunctionCall(..)) {
            settled.push(Op::Sync);
        }
        executed =
            matches!(op, Op::Execute(..)) || executed && !matches!(op, Op::Sync | Op::Query(_) | Op::FunctionCall(..));
        settled.push(op.clone());
    }
    settled
}

/// In one write, or cut somewhere.
fn send(client: &mut RawClient, frames: &Frames, rng: &mut Rng) -> Result<(), Lost> {
    let bytes = frames.bytes();
    let cut = if rng.bool() { rng.usize(..=bytes.len()) } else { bytes.len() };
    client.try_send(&bytes[..cut])?;
    client.try_send(&bytes[cut..])
}

fn read_until_quiet(client: &mut RawClient, batch: &[Op]) -> (Vec<Message>, bool) {
    let ready_expected = batch.iter().filter(|op| op.ends_in_ready()).count();
    let ends_in_ready = batch.iter().rev().find(|op| !matches!(op, Op::Read)).is_some_and(Op::ends_in_ready);
    let mut messages: Vec<Message> = Vec::new();
    client.set_patience(QUIET);
    loop {
        let ready = messages.iter().filter(|message| message.tag == b'Z').count();
        if ends_in_ready && ready >= ready_expected {
            return (messages, false);
        }
        match client.try_recv() {
            Ok(message) if message.tag == b'S' => {}
            Ok(message) => messages.push(message),
            Err(Lost::Timeout) => return (messages, false),
            Err(_) => return (messages, true),
        }
    }
}

fn read_exactly(client: &mut RawClient, count: usize) -> (Vec<Message>, bool) {
    let mut messages = Vec::new();
    client.set_patience(PATIENCE);
    while messages.len() < count {
        match client.try_recv() {
            Ok(message) if message.tag == b'S' => {}
            Ok(message) => messages.push(message),
            Err(_) => return (messages, true),
        }
    }
    (messages, false)
}

fn compare(expected: &Played, actual: &Played) -> Option<String> {
    let left: Vec<_> = expected.reads.iter().chain(&expected.others).flatten().collect();
    let right: Vec<_> = actual.reads.iter().chain(&actual.others).flatten().collect();
    let same = left.len() == right.len() && left.iter().zip(&right).all(|(left, right)| equal(left, right));
    if same && actual.harm.is_none() {
        return None;
    }
    let place = left.iter().zip(&right).take_while(|(left, right)| equal(left, right)).count();
    let mut report = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(report, "  Postgres: {}", around(&left, place, expected.ended));
    let _ = writeln!(report, "  Tidegate: {}", around(&right, place, actual.ended));
    let _ = actual.harm.iter().try_for_each(|harm| writeln!(report, "  {harm}"));
    Some(report)
}

/// A few messages before the first difference, and what follows.
fn around(messages: &[&Message], place: usize, ended: bool) -> String {
    let start = place.saturating_sub(3);
    let shown: Vec<_> = messages.iter().skip(start).take(8).map(|message| format!("{message:?}")).collect();
    let end = if ended { " (ended)" } else { "" };
    format!("... {}{end}", shown.join(" "))
}

/// Errors and notices are compared by what a client acts on: the place in the server's source is not part of it.
fn equal(left: &Message, right: &Message) -> bool {
    match (left.tag, right.tag) {
        (b'E', b'E') | (b'N', b'N') => {
            let (left, right) = (left.error(), right.error());
            (left.code, left.severity, left.message) == (right.code, right.severity, right.message)
        }
        // Of whatever process.
        (b'A', b'A') => {
            let ((_, channel, payload), (_, other_channel, other_payload)) =
                (left.notification(), right.notification());
            (channel, payload) == (other_channel, other_payload)
        }
        (b'T', b'T') => columns(left) == columns(right),
        _ => left == right,
    }
}

/// The part of a description by which a client decodes rows. The table may have been created again between the plays.
fn columns(message: &Message) -> Vec<(String, u32, i32, i16)> {
    let described = RowDescription::decode(&message.body).expect("a RowDescription");
    let column =
        |it: Column<'_>| (String::from_utf8_lossy(it.name).into_owned(), it.type_oid, it.type_modifier, it.format);
    described.map(column).collect()
}

/// Another client, which takes a server away and gives it back between the steps of the script.
struct PasserBy {
    client: Option<RawClient>,
    holds: bool,
}

impl PasserBy {
    fn new(door: &Door) -> Result<Self, Lost> {
        let client = door.gateway.is_some().then(|| door.startup().try_connect()).transpose()?;
        Ok(Self { client, holds: false })
    }

    fn act(&mut self) -> Result<(), Lost> {
        let Some(client) = &mut self.client else { return Ok(()) };
        self.holds = !self.holds;
        client.set_patience(PATIENCE);
        client.try_query(if self.holds { "begin; select 'passing by'" } else { "commit" }).map(drop)
    }
}
