//! Runs a script against Postgres and the gateway, and compares the messages.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use fastrand::Rng;
use tidegate_testkit::{ClientError, Fixture, Frames, Message, RawClient, Target, eventually};
use tidegate_wire::backend::{FieldDescription, RowDescription};

use crate::script::{Op, Script};

/// A read of Postgres ends when no message arrives for this time, and Postgres waits for the client.
const QUIET_PERIOD: Duration = Duration::from_millis(20);
/// A message that does not arrive in this time is missing.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Both targets, and the state between the scripts.
pub(crate) struct Runner<'f> {
    fixture: &'f Fixture,
    mode: &'static str,
    direct: Target,
    gateway: Target,
    table: String,
    admin: RawClient,
}

/// The result of a script on one target: the messages of each read, whether the connection ended, and effects on other
/// clients.
#[derive(Default)]
struct ScriptResult {
    reads: Vec<Vec<Message>>,
    /// The replies to other clients of the script.
    others: Vec<Vec<Message>>,
    ended: bool,
    /// The script ended where Postgres rejected a statement because its columns have changed.
    is_cut: bool,
    failure: Option<String>,
}

impl ScriptResult {
    /// Postgres rejects such a statement until it is prepared again, the gateway only once: the comparison ends there.
    fn cut_at_changed_plan(&mut self) -> bool {
        let is_rejection = |message: &Message| {
            message.tag == b'E' && message.error().message == "cached plan must not change result type"
        };
        let Some(last) = self.reads.last_mut() else { return false };
        if let Some(at) = last.iter().position(is_rejection) {
            last.truncate(at + 1);
            self.is_cut = true;
        }
        self.is_cut
    }

    /// An invalid message during COPY IN: Postgres closes, and how much it read before depends on timing.
    fn lost_synchronisation(&self) -> bool {
        let is_lost = |message: &Message| {
            message.tag == b'E' && message.error().code == "08P01" && message.error().severity == "FATAL"
        };
        self.reads.iter().flatten().any(is_lost)
    }
}

impl<'f> Runner<'f> {
    pub(crate) fn new(fixture: &'f Fixture, mode: &'static str) -> Self {
        let table = fixture.create_table("n int");
        make_rejecting_table(fixture, &table);
        let gateway = gateway(fixture, mode);
        Self { fixture, mode, direct: fixture.direct(), gateway, table, admin: fixture.server.client() }
    }

    /// The difference between the gateway and Postgres in this script, if there is one. A script that crashes Postgres
    /// is not compared, and neither is a script during which another test crashes the same server.
    pub(crate) fn difference(&mut self, script: &Script) -> Option<String> {
        let expected = self.run(&self.direct, script, None);
        if !self.clear_table() || !self.restore_table(script) {
            return None;
        }
        let expected = expected.expect("Postgres accepts a client");
        if expected.lost_synchronisation() {
            return None;
        }
        let actual = self.run(&self.gateway, script, Some(&expected));
        let difference = match &actual {
            Ok(actual) => compare(&expected, actual),
            Err(error) => Some(format!("  the gateway did not accept a client: {error}\n")),
        };
        let intact = self.clear_table() && self.restore_table(script);
        if difference.is_some() || !intact {
            // A faulty state must not affect the next script.
            self.gateway = gateway(self.fixture, self.mode);
        }
        difference.filter(|_| intact)
    }

    /// Waits for the locks of the previous script. Returns false if Postgres has crashed since; it is up again then.
    fn clear_table(&mut self) -> bool {
        let truncate = format!("truncate {}", self.table);
        if self.admin.try_query(&truncate).is_ok() {
            return true;
        }
        eventually("Postgres is up again", || match self.direct.startup().try_connect() {
            Ok(admin) => {
                self.admin = admin;
                self.admin.try_query(&truncate).is_ok()
            }
            Err(_) => false,
        });
        false
    }

    /// Restores the columns of the table.
    fn restore_table(&mut self, script: &Script) -> bool {
        let restore = format!("drop table {0}; create table {0} (n int)", self.table);
        !script.changes_schema() || self.admin.try_query(&restore).is_ok()
    }

    fn run(
        &self,
        target: &Target,
        script: &Script,
        expected: Option<&ScriptResult>,
    ) -> Result<ScriptResult, ClientError> {
        let mut client = target.startup().parameter("application_name", "script").try_connect()?;
        let mut background = BackgroundClient::new(target)?;
        let mut result = ScriptResult::default();
        let mut rng = Rng::with_seed(script.ops.len() as u64);
        for batch in batches(script) {
            if expected.is_some_and(|expected| expected.is_cut && result.reads.len() == expected.reads.len()) {
                break;
            }
            let others = batch.iter().filter(|op| op.is_of_another_client());
            let answers = others.map(|op| run_other(target, op, &self.table)).collect::<Result<Vec<_>, _>>();
            match answers {
                Ok(answers) => result.others.extend(answers),
                Err(error) => result.failure = Some(format!("another client of the script was not served: {error}")),
            }
            if result.failure.is_some() {
                break;
            }
            result.failure = background.step().err().map(|error| format!("another client was not served: {error}"));
            if result.failure.is_some() {
                break;
            }
            let frames = batch.iter().fold(Frames::new(), |frames, op| op.append(frames, &self.table));
            if send(&mut client, &frames, &mut rng).is_err() {
                // The connection has ended; the messages before the end are still read.
            }
            let expected_count = expected.map(|expected| expected.reads.get(result.reads.len()).map_or(0, Vec::len));
            let (read, ended) = match expected_count {
                None => read_until_quiet_period(&mut client, &batch, target),
                Some(expected_count) => read_exactly(&mut client, expected_count),
            };
            result.reads.push(read);
            if expected.is_none() && result.cut_at_changed_plan() {
                break;
            }
            if ended {
                result.ended = true;
                break;
            }
        }
        Ok(result)
    }
}

/// Creates a table next to `table` whose trigger rejects every insert before a row is read.
fn make_rejecting_table(fixture: &Fixture, table: &str) {
    let rejecting = format!("{table}_rejecting");
    fixture.server.sql(&format!("create table {rejecting} (n int)"));
    let body = "begin raise exception 'rejected'; end";
    fixture.server.sql(&format!("create function {rejecting}() returns trigger language plpgsql as $${body}$$"));
    fixture.server.sql(&format!(
        "create trigger reject before insert on {rejecting} for each statement execute function {rejecting}()"
    ));
}

/// A gateway with a server for the script, for the background client, and for the other clients of the script.
fn gateway(fixture: &Fixture, mode: &str) -> Target {
    let size = if mode == "session" { 8 } else { 3 };
    Target::through(fixture.gateway(&format!("mode = \"{mode}\"\nsize = {size}\n")))
}

/// Runs an op of another client, and returns the replies.
fn run_other(target: &Target, op: &Op, table: &str) -> Result<Vec<Message>, ClientError> {
    let mut client = target.startup().try_connect()?;
    client.set_timeout(TIMEOUT);
    match op {
        Op::OtherClient(text) => Ok(client.try_query(&text.replace("TABLE", table))?.messages),
        Op::NewClient(text, values) => {
            let values: Vec<_> = values.iter().map(String::as_str).collect();
            let frames = Frames::new().parse("new", &text.replace("TABLE", table)).describe_statement("new");
            client.try_send(frames.bind("new", &values).execute().sync().bytes())?;
            Ok(client.try_until_ready()?.messages)
        }
        _ => Ok(Vec::new()),
    }
}

/// Splits the script after each read. The last batches end open COPYs and transactions.
fn batches(script: &Script) -> Vec<Vec<Op>> {
    let ops = with_syncs(&script.ops);
    let mut batches: Vec<_> = ops.split_inclusive(|op| matches!(op, Op::Read)).map(<[Op]>::to_vec).collect();
    batches.push(vec![Op::CopyFail, Op::Sync, Op::Query("rollback".to_owned())]);
    batches.push(vec![Op::Query("select 'the end'".to_owned())]);
    batches
}

/// Inserts a Sync between an Execute and a Query. Without it, Postgres 18.6 answers later requests with internal
/// errors, and has crashed.
fn with_syncs(ops: &[Op]) -> Vec<Op> {
    let mut executed = false;
    let mut synced = Vec::with_capacity(ops.len());
    for op in ops {
        if executed && matches!(op, Op::Query(_) | Op::FunctionCall(..)) {
            synced.push(Op::Sync);
        }
        executed =
            matches!(op, Op::Execute(..)) || executed && !matches!(op, Op::Sync | Op::Query(_) | Op::FunctionCall(..));
        synced.push(op.clone());
    }
    synced
}

/// Sends the frames in one write or, in half of the cases, in two.
fn send(client: &mut RawClient, frames: &Frames, rng: &mut Rng) -> Result<(), ClientError> {
    let bytes = frames.bytes();
    let cut = if rng.bool() { rng.usize(..=bytes.len()) } else { bytes.len() };
    client.try_send(&bytes[..cut])?;
    client.try_send(&bytes[cut..])
}

fn read_until_quiet_period(client: &mut RawClient, batch: &[Op], target: &Target) -> (Vec<Message>, bool) {
    let ready_expected = batch.iter().filter(|op| op.ends_in_ready()).count();
    let ends_in_ready = batch.iter().rev().find(|op| !matches!(op, Op::Read)).is_some_and(Op::ends_in_ready);
    let mut messages: Vec<Message> = Vec::new();
    client.set_timeout(QUIET_PERIOD);
    let started = Instant::now();
    loop {
        let ready = messages.iter().filter(|message| message.tag == b'Z').count();
        if ends_in_ready && ready >= ready_expected {
            return (messages, false);
        }
        match client.try_recv() {
            Ok(message) if message.tag == b'S' => {}
            Ok(message) => messages.push(message),
            Err(ClientError::Timeout) => {
                let is_quiet = waits_for_client(target, client) && !client.has_input();
                if is_quiet || started.elapsed() > TIMEOUT {
                    return (messages, false);
                }
            }
            Err(_) => return (messages, true),
        }
    }
}

/// Whether the backend of a direct client waits for a message, or has ended. On a busy machine it may still execute the last one.
fn waits_for_client(target: &Target, client: &RawClient) -> bool {
    let sql = format!("select wait_event from pg_stat_activity where pid = {}", client.process_id());
    let Ok(mut observer) = target.startup().try_connect() else { return true };
    let found = observer.try_query(&sql).map(|outcome| outcome.rows).unwrap_or_default();
    found.first().is_none_or(|row| row[0] == "ClientRead")
}

fn read_exactly(client: &mut RawClient, count: usize) -> (Vec<Message>, bool) {
    let mut messages = Vec::new();
    client.set_timeout(TIMEOUT);
    while messages.len() < count {
        match client.try_recv() {
            Ok(message) if message.tag == b'S' => {}
            Ok(message) => messages.push(message),
            Err(_) => return (messages, true),
        }
    }
    (messages, false)
}

fn compare(expected: &ScriptResult, actual: &ScriptResult) -> Option<String> {
    let left: Vec<_> = expected.reads.iter().chain(&expected.others).flatten().collect();
    let right: Vec<_> = actual.reads.iter().chain(&actual.others).flatten().collect();
    let same = left.len() == right.len() && left.iter().zip(&right).all(|(left, right)| equal(left, right));
    if same && actual.failure.is_none() {
        return None;
    }
    let position = left.iter().zip(&right).take_while(|(left, right)| equal(left, right)).count();
    let mut report = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(report, "  Postgres: {}", around(&left, position, expected.ended));
    let _ = writeln!(report, "  Tidegate: {}", around(&right, position, actual.ended));
    let _ = actual.failure.iter().try_for_each(|failure| writeln!(report, "  {failure}"));
    Some(report)
}

/// Some messages before the first difference, and those after it.
fn around(messages: &[&Message], position: usize, ended: bool) -> String {
    let start = position.saturating_sub(3);
    let shown: Vec<_> = messages.iter().skip(start).take(8).map(|message| format!("{message:?}")).collect();
    let end = if ended { " (ended)" } else { "" };
    format!("... {}{end}", shown.join(" "))
}

/// Errors and notices are compared without their location in the source of the server.
fn equal(left: &Message, right: &Message) -> bool {
    match (left.tag, right.tag) {
        (b'E', b'E') | (b'N', b'N') => {
            let (left, right) = (left.error(), right.error());
            (left.code, left.severity, left.message) == (right.code, right.severity, right.message)
        }
        // The process id may differ.
        (b'A', b'A') => {
            let ((_, channel, payload), (_, other_channel, other_payload)) =
                (left.notification(), right.notification());
            (channel, payload) == (other_channel, other_payload)
        }
        (b'T', b'T') => columns(left) == columns(right),
        _ => left == right,
    }
}

/// The fields of a RowDescription that decide how a client decodes rows. The table oid is not compared, because the
/// table may have been created again.
fn columns(message: &Message) -> Vec<(String, u32, i32, i16)> {
    let described = RowDescription::decode(&message.body).expect("a RowDescription");
    let column = |column: FieldDescription<'_>| {
        (String::from_utf8_lossy(column.name).into_owned(), column.type_oid, column.type_modifier, column.format)
    };
    described.map(column).collect()
}

/// Another client, which occupies and releases a server between the steps of the script.
struct BackgroundClient {
    client: Option<RawClient>,
    holds: bool,
}

impl BackgroundClient {
    fn new(target: &Target) -> Result<Self, ClientError> {
        let client = target.gateway.is_some().then(|| target.startup().try_connect()).transpose()?;
        Ok(Self { client, holds: false })
    }

    fn step(&mut self) -> Result<(), ClientError> {
        let Some(client) = &mut self.client else { return Ok(()) };
        self.holds = !self.holds;
        client.set_timeout(TIMEOUT);
        client.try_query(if self.holds { "begin; select 'background'" } else { "commit" }).map(drop)
    }
}
