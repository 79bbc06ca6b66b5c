//! Clients with different settings on shared servers, while the configuration and the roles of the server change.
//!
//! Each client is a pair of a direct session and one through the gateway. After each step of a client both must have
//! the same values, the same user, and the same reported parameters.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;
use tidegate_testkit::{Frames, Gateway, Outcome, RawClient, Server, Startup, eventually};

use crate::shrink::Shrinks;

/// Settings that are compared after each step. The server reports the first six.
const NAMES: [&str; 8] = [
    "TimeZone",
    "DateStyle",
    "IntervalStyle",
    "client_encoding",
    "standard_conforming_strings",
    "default_transaction_read_only",
    "work_mem",
    "statement_timeout",
];

const CLIENTS: usize = 3;
const ROLES: [&str; 2] = ["first_role", "second_role"];

/// The parameters of a login.
type Parameters = Vec<(&'static str, &'static str)>;

/// A parameter and the default that a configuration or a database sets.
type DefaultValue = (&'static str, &'static str);

/// A step of a script.
#[derive(Clone, Debug)]
enum Step {
    /// Loads a configuration with this value.
    Load(DefaultValue),
    /// Sets this default for new sessions of the database, or removes it. All clients log in again.
    Database(Option<DefaultValue>),
    /// Replaces a role, which is dropped or renamed, by a new one of the same name. The first client has the old role,
    /// the second sets the new one, and the third holds a server.
    Role { role: &'static str, is_renamed: bool, order: [usize; CLIENTS] },
    /// A client disconnects, and a new one connects.
    LogIn(usize),
    /// A client sends statements by the simple or the extended protocol. They may form a transaction block, and are not
    /// separated.
    Statements { client: usize, list: Vec<(String, bool)> },
    /// A client sets a parameter in a DO block, which is not reported.
    Block(usize),
    /// Compares the values of a client.
    Compare(usize),
}

/// A random script.
#[derive(Clone)]
pub(crate) struct Script {
    steps: Vec<Step>,
    /// The parameters of the logins, in their order; later logins have none.
    logins: Vec<Parameters>,
}

impl Script {
    /// Creates the script of this seed.
    pub(crate) fn random(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let logins = (0..CLIENTS * 6).map(|_| parameters(&mut rng)).collect();
        let mut steps = Vec::new();
        for _ in 0..rng.usize(3..14) {
            add_steps(&mut rng, &mut steps);
            steps.push(Step::Compare(rng.usize(..CLIENTS)));
        }
        Self { steps, logins }
    }
}

/// The parts are the steps and the parameters of the logins.
impl Shrinks for Script {
    fn len(&self) -> usize {
        self.steps.len() + self.logins.iter().map(Vec::len).sum::<usize>()
    }

    fn without(&self, range: Range<usize>) -> Self {
        let mut at = 0;
        let mut is_kept = || {
            at += 1;
            !range.contains(&(at - 1))
        };
        let steps = self.steps.iter().filter(|_| is_kept()).cloned().collect();
        let logins =
            self.logins.iter().map(|parameters| parameters.iter().filter(|_| is_kept()).copied().collect()).collect();
        Self { steps, logins }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, parameters) in self.logins.iter().enumerate().filter(|(_, parameters)| !parameters.is_empty()) {
            writeln!(f, "login {number}: {parameters:?}")?;
        }
        self.steps.iter().try_for_each(|step| writeln!(f, "{step:?}"))
    }
}

fn add_steps(rng: &mut Rng, steps: &mut Vec<Step>) {
    let client = rng.usize(..CLIENTS);
    let extended = |rng: &mut Rng, sql: String| (sql, rng.bool());
    match rng.u8(..20) {
        0 | 1 => steps.push(Step::Load(random_setting(rng))),
        2 => {
            let value = random_setting(rng);
            steps.push(Step::Database(rng.bool().then_some(value)));
        }
        3 => {
            let mut order: [usize; CLIENTS] = std::array::from_fn(|client| client);
            let role = ROLES[rng.usize(..ROLES.len())];
            rng.shuffle(&mut order);
            steps.push(Step::Role { role, is_renamed: rng.bool(), order });
        }
        4 | 5 => steps.push(Step::LogIn(client)),
        6 | 7 => {
            let role = rng.bool().then(|| ROLES[rng.usize(..ROLES.len())]);
            let set = role.map_or("reset role".to_owned(), |role| format!("set role {role}"));
            steps.push(Step::Statements { client, list: vec![extended(rng, set)] });
        }
        8 => steps.push(Step::Block(client)),
        _ => {
            let list = statements(rng).into_iter().map(|sql| extended(rng, sql)).collect();
            steps.push(Step::Statements { client, list });
        }
    }
}

fn parameters(rng: &mut Rng) -> Parameters {
    const PARAMETERS: [(&str, &str); 8] = [
        ("TimeZone", "asia/tokyo"),
        // The value contains the order, because Postgres completes a style by the configuration file and not by the
        // database.
        ("DateStyle", "sql, dmy"),
        ("client_encoding", "latin-1"),
        ("standard_conforming_strings", "true"),
        ("standard_conforming_strings", "0"),
        ("IntervalStyle", "ISO_8601"),
        ("work_mem", "8192"),
        ("application_name", "script"),
    ];
    PARAMETERS.into_iter().filter(|_| rng.u8(..6) == 0).collect()
}

/// A setting that a configuration may contain, and a value.
fn random_setting(rng: &mut Rng) -> DefaultValue {
    const SETTINGS: [(&str, &[&str]); 5] = [
        ("TimeZone", &["UTC", "Europe/Paris", "America/Lima"]),
        ("DateStyle", &["ISO, MDY", "German, DMY"]),
        ("default_transaction_read_only", &["on", "off"]),
        ("IntervalStyle", &["postgres", "sql_standard"]),
        ("work_mem", &["4MB", "6MB"]),
    ];
    let (name, values) = SETTINGS[rng.usize(..SETTINGS.len())];
    (name, values[rng.usize(..values.len())])
}

/// Consecutive statements of a client.
fn statements(rng: &mut Rng) -> Vec<String> {
    let (name, value) = random_setting(rng);
    let set =
        format!("set {name} = '{value}'").replace("'ISO, MDY'", "ISO, MDY").replace("'German, DMY'", "German, DMY");
    match rng.u8(..12) {
        0..4 => vec![set],
        4 => vec![format!("reset {name}")],
        5 => vec![["reset all", "discard all"][rng.usize(..2)].to_owned(), "reset role".to_owned()],
        6 => vec!["begin".to_owned(), set, "rollback".to_owned()],
        7 => vec![format!("select zone('{}')", ["Asia/Tokyo", "UTC"][rng.usize(..2)])],
        8 | 9 => vec!["do $$ begin perform zone('Asia/Kolkata'); end $$".to_owned()],
        10 => vec!["begin".to_owned(), format!("set local {}", &set[4..]), "commit".to_owned()],
        _ => vec!["select 1".to_owned()],
    }
}

/// A direct session, and one through the gateway that sends the same.
struct Pair {
    direct: RawClient,
    pooled: RawClient,
}

/// A server whose configuration the scripts change, and a gateway in front of it.
pub(crate) struct SettingsRunner {
    server: Server,
    gateway: Gateway,
    /// The number of loaded configurations, which is also the value of a parameter that nothing else sets.
    loaded: u32,
    /// Whether a script has changed the configuration of the server.
    is_changed: bool,
    /// The logins of the current script that are still to be made.
    logins: std::vec::IntoIter<Parameters>,
}

impl SettingsRunner {
    pub(crate) fn new(binary: &str, major: u32, mode: &str) -> Self {
        let server = Server::start(major);
        server.sql(
            "create function zone(text) returns text language plpgsql as
             $$ begin return set_config('TimeZone', $1, false); end $$",
        );
        for role in ROLES {
            server.sql(&format!("create role {role}"));
        }
        // A client in session mode keeps its server.
        let size = if mode == "session" { CLIENTS } else { 2 };
        let gateway = Gateway::for_server(binary, server.address(), &format!("mode = \"{mode}\"\nsize = {size}\n"));
        Self { server, gateway, loaded: 0, is_changed: false, logins: Vec::new().into_iter() }
    }

    /// Runs a script and returns the difference between the gateway and Postgres, if there is one. The runner cannot be
    /// used after a difference.
    pub(crate) fn difference(&mut self, script: &Script) -> Option<String> {
        let result = catch_unwind(AssertUnwindSafe(|| self.run(script)));
        let panic = result.err()?;
        let text = panic.downcast_ref::<String>().cloned();
        Some(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    }

    fn run(&mut self, script: &Script) {
        self.restore_configuration();
        self.logins = script.logins.clone().into_iter();
        let mut pairs: Vec<Pair> = (0..CLIENTS).map(|_| self.log_in()).collect();
        for step in &script.steps {
            self.take_step(step, &mut pairs);
        }
    }

    fn take_step(&mut self, step: &Step, pairs: &mut Vec<Pair>) {
        match step {
            Step::Load(default) => self.load_configuration(*default, pairs),
            Step::Database(default) => {
                let change = match default {
                    Some((name, value)) => format!("alter database postgres set {name} = '{value}'"),
                    None => "alter database postgres reset all".to_owned(),
                };
                self.is_changed = true;
                self.change_database(&change);
                pairs.clear();
                pairs.extend((0..CLIENTS).map(|_| self.log_in()));
            }
            Step::Role { role, is_renamed, order } => self.change_role(role, *is_renamed, *order, pairs),
            Step::LogIn(client) => {
                // The login in session mode needs a free server.
                drop(pairs.remove(*client));
                let pair = self.log_in();
                pairs.insert(*client, pair);
            }
            Step::Statements { client, list } => {
                list.iter().for_each(|(sql, is_extended)| run_statement(&mut pairs[*client], sql, *is_extended));
            }
            Step::Block(client) => set_in_block(*client, pairs),
            Step::Compare(client) => compare(&mut pairs[*client]),
        }
    }

    /// Restores the configuration that the previous script has changed, so that a script does not depend on previous
    /// ones.
    fn restore_configuration(&mut self) {
        if std::mem::take(&mut self.is_changed) {
            self.change_database("alter database postgres reset all");
            let mut admin = self.server.client();
            admin.ok("alter system reset all");
            let expected = self.reload(&mut admin);
            eventually("new sessions have the configuration", || self.server.client().value(LOADED) == expected);
            self.gateway.console().ok("RECONNECT");
        }
    }

    fn log_in(&mut self) -> Pair {
        let parameters = self.logins.next().unwrap_or_default();
        let connect = |startup: Startup| {
            parameters.iter().fold(startup, |startup, (name, value)| startup.parameter(name, value)).connect()
        };
        let pair = Pair { direct: connect(self.server.startup()), pooled: connect(self.gateway.startup("postgres")) };
        assert!(
            pair.direct.parameters == pair.pooled.parameters,
            "after the login with {parameters:?}: {}",
            differing_parameters(&pair)
        );
        pair
    }

    /// Reloads the server with another configuration, and waits until all sessions have it.
    fn load_configuration(&mut self, (name, value): DefaultValue, pairs: &mut [Pair]) {
        self.is_changed = true;
        let mut admin = self.server.client();
        admin.ok(&format!("alter system set {name} = '{value}'"));
        let expected = self.reload(&mut admin);
        on_each_server(pairs, |_, pair| {
            eventually("the direct session has the configuration", || pair.direct.value(LOADED) == expected);
            eventually("the pooled server has the configuration", || pair.pooled.value(LOADED) == expected);
        });
        pairs.iter_mut().for_each(compare);
    }

    /// Returns the value of [`LOADED`] in sessions that have loaded the configuration.
    fn reload(&mut self, admin: &mut RawClient) -> String {
        self.loaded += 1;
        let expected = (100 + self.loaded % 400).to_string();
        admin.ok(&format!("alter system set authentication_timeout = '{expected}'"));
        admin.ok("select pg_reload_conf()");
        expected
    }

    /// Changes the defaults of new sessions.
    fn change_database(&self, change: &str) {
        self.server.client().ok(&format!("begin read write; {change}; commit"));
        self.gateway.console().ok("RECONNECT");
    }

    /// A client sets a role, another role gets its name, and a second client sets that one on the server of the first.
    fn change_role(&mut self, role: &str, is_renamed: bool, order: [usize; CLIENTS], pairs: &mut [Pair]) {
        self.loaded += 1;
        let change = match is_renamed {
            false => format!("drop role {role}; create role {role}"),
            true => format!("alter role {role} rename to {role}_{}; create role {role}", self.loaded),
        };
        let [first, second, holder] = order;
        let set_role = |pair: &mut Pair| {
            pair.direct.ok(&format!("set role {role}"));
            pair.pooled.ok(&format!("set role {role}"));
        };
        set_role(&mut pairs[first]);
        self.server.client().ok(&format!("begin read write; {change}; commit"));
        pairs[first].pooled.ok("begin");
        set_role(&mut pairs[second]);
        pairs[holder].pooled.ok("begin");
        pairs[first].pooled.ok("commit");
        compare(&mut pairs[second]);
        pairs[holder].pooled.ok("commit");
        // A session keeps the oid of a role until it sets a role again.
        pairs.iter_mut().for_each(set_role);
    }
}

/// Returns the number of the configuration that a session has loaded.
const LOADED: &str = "select setting from pg_settings where name = 'authentication_timeout'";

fn run_statement(pair: &mut Pair, sql: &str, is_extended: bool) {
    let is_extended = is_extended && !sql.contains(';');
    let frames = if is_extended { Frames::new().once(sql).sync() } else { Frames::new().query(sql) };
    let run = |client: &mut RawClient| {
        client.send(&frames);
        client.until_ready()
    };
    let (direct, pooled) = (run(&mut pair.direct), run(&mut pair.pooled));
    let comparable = |outcome: &Outcome| (outcome.tags.clone(), outcome.code(), outcome.status, outcome.rows.clone());
    assert!(comparable(&direct) == comparable(&pooled), "{sql}\nPostgres: {direct:?}\ngateway: {pooled:?}");
    compare(pair);
}

fn compare(pair: &mut Pair) {
    let values: Vec<_> = NAMES.iter().map(|name| format!("current_setting('{name}')")).collect();
    let sql = format!("select current_user, {}", values.join(", "));
    let (direct, pooled) = (pair.direct.query(&sql), pair.pooled.query(&sql));
    let same = (&direct.rows, direct.code()) == (&pooled.rows, pooled.code());
    assert!(same, "Postgres: {:?}\nTidegate: {:?}", (&direct.rows, &direct.error), (&pooled.rows, &pooled.error));
    assert!(pair.direct.parameters == pair.pooled.parameters, "{}", differing_parameters(pair));
}

/// A setting made in a DO block without a report must not reach other clients. The client itself is not compared,
/// because the gateway resets its server after the transaction.
fn set_in_block(client: usize, pairs: &mut [Pair]) {
    let both = |pair: &mut Pair, sql: &str| {
        pair.direct.ok(sql);
        pair.pooled.ok(sql);
    };
    both(&mut pairs[client], "do $$ begin set work_mem = '17MB'; end $$");
    for (_, pair) in pairs.iter_mut().enumerate().filter(|(other, _)| *other != client) {
        compare(pair);
    }
    both(&mut pairs[client], "reset work_mem");
}

/// Runs `act` for each client while another one holds a server, so that each server is used.
fn on_each_server(pairs: &mut [Pair], mut act: impl FnMut(usize, &mut Pair)) {
    for holder in 0..pairs.len() {
        pairs[holder].pooled.ok("begin; select 1");
        if holder > 0 {
            pairs[holder - 1].pooled.ok("commit");
        }
        for client in (0..pairs.len()).filter(|client| *client != holder) {
            act(client, &mut pairs[client]);
        }
    }
    pairs.last_mut().expect("there are clients").pooled.ok("commit");
}

fn differing_parameters(pair: &Pair) -> String {
    let (direct, pooled) = (&pair.direct.parameters, &pair.pooled.parameters);
    let differ = direct.iter().filter(|(name, value)| pooled.get(*name) != Some(value));
    let differ: Vec<_> =
        differ.map(|(name, value)| format!("{name}: {value}, through {:?}", pooled.get(name))).collect();
    format!("reported parameters differ: {differ:?}")
}
