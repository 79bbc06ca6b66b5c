//! Several clients whose settings meet on the same servers, while the configuration and the roles of the server change.
//!
//! Each client is a pair: a direct session, and one through the gateway. After each step of a client both have the same values,
//! the same user, and were told the same (ParameterStatus).

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;
use tidegate_testkit::{Frames, Gateway, Outcome, RawClient, Server, Startup, eventually};

use crate::shrink::Shrinks;

/// Compared after each step. The server reports the first ones.
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

/// Parameters of a login.
type Parameters = Vec<(&'static str, &'static str)>;

/// A value that a configuration or a database gives to a parameter.
type Own = (&'static str, &'static str);

/// What happens in a script.
#[derive(Clone, Debug)]
enum Step {
    /// A configuration with this value is loaded.
    Load(Own),
    /// New sessions of the database have this value, or none of its own. All log in again.
    Database(Option<Own>),
    /// A role of this name is put in the place of another, which is dropped or renamed. The first client has it, the second takes
    /// it, the third holds a server.
    Role { role: &'static str, is_renamed: bool, order: [usize; CLIENTS] },
    /// A client leaves, and another one comes.
    LogIn(usize),
    /// A client sends statements, some of them by the extended protocol. They may be a transaction block, and stay together.
    Statements { who: usize, list: Vec<(String, bool)> },
    /// A client sets a parameter in a block, without a report.
    Block(usize),
    /// The values of a client are compared.
    Compare(usize),
}

/// A random script.
#[derive(Clone)]
pub(crate) struct Script {
    steps: Vec<Step>,
    /// Parameters of the logins, in their order; those beyond have none.
    logins: Vec<Parameters>,
}

impl Script {
    /// The script of this seed.
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

/// Its parts are its steps and the parameters of its logins.
impl Shrinks for Script {
    fn len(&self) -> usize {
        self.steps.len() + self.logins.iter().map(Vec::len).sum::<usize>()
    }

    fn without(&self, range: Range<usize>) -> Self {
        let mut at = 0;
        let mut stays = || {
            at += 1;
            !range.contains(&(at - 1))
        };
        let steps = self.steps.iter().filter(|_| stays()).cloned().collect();
        let logins =
            self.logins.iter().map(|parameters| parameters.iter().filter(|_| stays()).copied().collect()).collect();
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
    let who = rng.usize(..CLIENTS);
    let extended = |rng: &mut Rng, sql: String| (sql, rng.bool());
    match rng.u8(..20) {
        0 | 1 => steps.push(Step::Load(own_value(rng))),
        2 => {
            let value = own_value(rng);
            steps.push(Step::Database(rng.bool().then_some(value)));
        }
        3 => {
            let mut order: [usize; CLIENTS] = std::array::from_fn(|who| who);
            let role = ROLES[rng.usize(..ROLES.len())];
            rng.shuffle(&mut order);
            steps.push(Step::Role { role, is_renamed: rng.bool(), order });
        }
        4 | 5 => steps.push(Step::LogIn(who)),
        6 | 7 => {
            let role = rng.bool().then(|| ROLES[rng.usize(..ROLES.len())]);
            let set = role.map_or("reset role".to_owned(), |role| format!("set role {role}"));
            steps.push(Step::Statements { who, list: vec![extended(rng, set)] });
        }
        8 => steps.push(Step::Block(who)),
        _ => {
            let list = statements(rng).into_iter().map(|sql| extended(rng, sql)).collect();
            steps.push(Step::Statements { who, list });
        }
    }
}

fn parameters(rng: &mut Rng) -> Parameters {
    const PARAMETERS: [(&str, &str); 8] = [
        ("TimeZone", "asia/tokyo"),
        // With an order: Postgres completes a style alone by what the file says, whatever the database says.
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

/// A parameter that a configuration may set, and a value.
fn own_value(rng: &mut Rng) -> Own {
    const OWN: [(&str, &[&str]); 5] = [
        ("TimeZone", &["UTC", "Europe/Paris", "America/Lima"]),
        ("DateStyle", &["ISO, MDY", "German, DMY"]),
        ("default_transaction_read_only", &["on", "off"]),
        ("IntervalStyle", &["postgres", "sql_standard"]),
        ("work_mem", &["4MB", "6MB"]),
    ];
    let (name, values) = OWN[rng.usize(..OWN.len())];
    (name, values[rng.usize(..values.len())])
}

/// Statements of a client, one after the other.
fn statements(rng: &mut Rng) -> Vec<String> {
    let (name, value) = own_value(rng);
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

/// One direct session, and one through the gateway that says the same.
struct Pair {
    direct: RawClient,
    through: RawClient,
}

/// A server of which scripts change the configuration, and a gateway before it.
pub(crate) struct Stage {
    server: Server,
    gateway: Gateway,
    /// Counts loaded configurations; a parameter that nothing else sets has the count as its value.
    loaded: u32,
    /// The configuration of the server is not that of its start.
    is_changed: bool,
    /// Logins of the script at hand.
    logins: std::vec::IntoIter<Parameters>,
}

impl Stage {
    pub(crate) fn new(binary: &str, major: u32, mode: &str) -> Self {
        let server = Server::start(major);
        server.sql(
            "create function zone(text) returns text language plpgsql as
             $$ begin return set_config('TimeZone', $1, false); end $$",
        );
        for role in ROLES {
            server.sql(&format!("create role {role}"));
        }
        // In session mode a client keeps its server.
        let size = if mode == "session" { CLIENTS } else { 2 };
        let gateway = Gateway::before(binary, server.address(), &format!("mode = \"{mode}\"\nsize = {size}\n"));
        Self { server, gateway, loaded: 0, is_changed: false, logins: Vec::new().into_iter() }
    }

    /// How the gateway differs from Postgres in this script, if it does. The stage is of no use then.
    pub(crate) fn difference(&mut self, script: &Script) -> Option<String> {
        let played = catch_unwind(AssertUnwindSafe(|| self.play(script)));
        let panic = played.err()?;
        let text = panic.downcast_ref::<String>().cloned();
        Some(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default())
    }

    fn play(&mut self, script: &Script) {
        self.restore_configuration();
        self.logins = script.logins.clone().into_iter();
        let mut pairs: Vec<Pair> = (0..CLIENTS).map(|_| self.log_in()).collect();
        for step in &script.steps {
            self.take_step(step, &mut pairs);
        }
    }

    fn take_step(&mut self, step: &Step, pairs: &mut Vec<Pair>) {
        match step {
            Step::Load(own) => self.load_configuration(*own, pairs),
            Step::Database(own) => {
                let change = match own {
                    Some((name, value)) => format!("alter database postgres set {name} = '{value}'"),
                    None => "alter database postgres reset all".to_owned(),
                };
                self.is_changed = true;
                self.change_database(&change);
                pairs.clear();
                pairs.extend((0..CLIENTS).map(|_| self.log_in()));
            }
            Step::Role { role, is_renamed, order } => self.change_role(role, *is_renamed, *order, pairs),
            Step::LogIn(who) => {
                // In session mode its place has to be free.
                drop(pairs.remove(*who));
                let pair = self.log_in();
                pairs.insert(*who, pair);
            }
            Step::Statements { who, list } => {
                list.iter().for_each(|(sql, is_extended)| run(&mut pairs[*who], sql, *is_extended));
            }
            Step::Block(who) => set_in_block(*who, pairs),
            Step::Compare(who) => compare(&mut pairs[*who]),
        }
    }

    /// Undoes what the script before has changed, so that a script does the same whatever was played before.
    fn restore_configuration(&mut self) {
        if std::mem::take(&mut self.is_changed) {
            self.change_database("alter database postgres reset all");
            let mut admin = self.server.client();
            admin.ok("alter system reset all");
            let expected = self.reload(&mut admin);
            eventually("new sessions have it", || self.server.client().value(LOADED) == expected);
            self.gateway.console().ok("RECONNECT");
        }
    }

    fn log_in(&mut self) -> Pair {
        let parameters = self.logins.next().unwrap_or_default();
        let connect = |startup: Startup| {
            parameters.iter().fold(startup, |startup, (name, value)| startup.parameter(name, value)).connect()
        };
        let pair = Pair { direct: connect(self.server.startup()), through: connect(self.gateway.startup("postgres")) };
        assert!(
            pair.direct.parameters == pair.through.parameters,
            "after the login with {parameters:?}: {}",
            told(&pair)
        );
        pair
    }

    /// Loads another configuration, and waits until all sessions have it.
    fn load_configuration(&mut self, (name, value): Own, pairs: &mut [Pair]) {
        self.is_changed = true;
        let mut admin = self.server.client();
        admin.ok(&format!("alter system set {name} = '{value}'"));
        let expected = self.reload(&mut admin);
        on_each_server(pairs, |_, pair| {
            eventually("the session has it", || pair.direct.value(LOADED) == expected);
            eventually("the server has it", || pair.through.value(LOADED) == expected);
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

    /// New sessions have other values.
    fn change_database(&self, change: &str) {
        self.server.client().ok(&format!("begin read write; {change}; commit"));
        self.gateway.console().ok("RECONNECT");
    }

    /// A client takes a role, another role takes its name, and a second client, which takes that one, gets the server of the
    /// first.
    fn change_role(&mut self, role: &str, is_renamed: bool, order: [usize; CLIENTS], pairs: &mut [Pair]) {
        self.loaded += 1;
        let change = match is_renamed {
            false => format!("drop role {role}; create role {role}"),
            true => format!("alter role {role} rename to {role}_{}; create role {role}", self.loaded),
        };
        let [first, second, holder] = order;
        let set_role = |pair: &mut Pair| {
            pair.direct.ok(&format!("set role {role}"));
            pair.through.ok(&format!("set role {role}"));
        };
        set_role(&mut pairs[first]);
        self.server.client().ok(&format!("begin read write; {change}; commit"));
        pairs[first].through.ok("begin");
        set_role(&mut pairs[second]);
        pairs[holder].through.ok("begin");
        pairs[first].through.ok("commit");
        compare(&mut pairs[second]);
        pairs[holder].through.ok("commit");
        // A session keeps the number of a role until it sets one again.
        pairs.iter_mut().for_each(set_role);
    }
}

/// Shows which configuration a session has loaded.
const LOADED: &str = "select setting from pg_settings where name = 'authentication_timeout'";

fn run(pair: &mut Pair, sql: &str, is_extended: bool) {
    let is_extended = is_extended && !sql.contains(';');
    let frames = if is_extended { Frames::new().once(sql).sync() } else { Frames::new().query(sql) };
    let answer = |client: &mut RawClient| {
        client.send(&frames);
        client.until_ready()
    };
    let (direct, through) = (answer(&mut pair.direct), answer(&mut pair.through));
    let of = |outcome: &Outcome| (outcome.tags.clone(), outcome.code(), outcome.status, outcome.rows.clone());
    assert!(of(&direct) == of(&through), "{sql}\nPostgres: {direct:?}\nTidegate: {through:?}");
    compare(pair);
}

fn compare(pair: &mut Pair) {
    let values: Vec<_> = NAMES.iter().map(|name| format!("current_setting('{name}')")).collect();
    let sql = format!("select current_user, {}", values.join(", "));
    let (direct, through) = (pair.direct.query(&sql), pair.through.query(&sql));
    let same = (&direct.rows, direct.code()) == (&through.rows, through.code());
    assert!(same, "Postgres: {:?}\nTidegate: {:?}", (&direct.rows, &direct.error), (&through.rows, &through.error));
    assert!(pair.direct.parameters == pair.through.parameters, "{}", told(pair));
}

/// What a block has set without a report, the other clients must not see. What the client itself sees is not compared: the
/// gateway resets its server after the transaction.
fn set_in_block(who: usize, pairs: &mut [Pair]) {
    let both = |pair: &mut Pair, sql: &str| {
        pair.direct.ok(sql);
        pair.through.ok(sql);
    };
    both(&mut pairs[who], "do $$ begin set work_mem = '17MB'; end $$");
    for (_, pair) in pairs.iter_mut().enumerate().filter(|(other, _)| *other != who) {
        compare(pair);
    }
    both(&mut pairs[who], "reset work_mem");
}

/// Does something with each client while another one holds a server, so that each server has its turn.
fn on_each_server(pairs: &mut [Pair], mut act: impl FnMut(usize, &mut Pair)) {
    for held in 0..pairs.len() {
        pairs[held].through.ok("begin; select 1");
        if held > 0 {
            pairs[held - 1].through.ok("commit");
        }
        for who in (0..pairs.len()).filter(|who| *who != held) {
            act(who, &mut pairs[who]);
        }
    }
    pairs.last_mut().expect("there are some").through.ok("commit");
}

fn told(pair: &Pair) -> String {
    let (direct, through) = (&pair.direct.parameters, &pair.through.parameters);
    let differ = direct.iter().filter(|(name, value)| through.get(*name) != Some(value));
    let differ: Vec<_> =
        differ.map(|(name, value)| format!("{name}: {value}, through {:?}", through.get(name))).collect();
    format!("told otherwise: {differ:?}")
}
