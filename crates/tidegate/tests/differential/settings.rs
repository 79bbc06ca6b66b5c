//! Several clients whose settings meet on the same servers, while the configuration and the roles of the server change.
//!
//! Each client is a pair: a direct session, and one through the gateway. After each step of a client both have the same values,
//! the same user, and were told the same (ParameterStatus).

use std::fmt::Write as _;

use fastrand::Rng;
use tidegate_testkit::{Frames, Gateway, Outcome, RawClient, Server, Startup, eventually};

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

/// One direct session, and one through the gateway that says the same.
struct Pair {
    direct: RawClient,
    through: RawClient,
}

pub(crate) struct Stage {
    server: Server,
    gateway: Gateway,
    is_session_mode: bool,
    /// Counts loaded configurations; a parameter that nothing else sets has the count as its value.
    loaded: u32,
    log: String,
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
        let is_session_mode = mode == "session";
        let size = if is_session_mode { CLIENTS } else { 2 };
        let gateway = Gateway::before(binary, server.address(), &format!("mode = \"{mode}\"\nsize = {size}\n"));
        Self { server, gateway, is_session_mode, loaded: 0, log: String::new() }
    }

    /// Plays the script of this seed.
    ///
    /// # Panics
    /// If the gateway differs; what was done is in the message.
    pub(crate) fn play(&mut self, seed: u64) {
        let mut rng = Rng::with_seed(seed);
        self.log.clear();
        let mut pairs: Vec<Pair> = (0..CLIENTS).map(|_| self.log_in(&mut rng)).collect();
        for _ in 0..rng.usize(3..14) {
            let who = rng.usize(..CLIENTS);
            match rng.u8(..20) {
                0 | 1 => self.load_configuration(&mut rng, &mut pairs),
                2 => {
                    self.change_database(&mut rng);
                    pairs.clear();
                    pairs.extend((0..CLIENTS).map(|_| self.log_in(&mut rng)));
                }
                3 => self.change_role(&mut rng, &mut pairs),
                4 | 5 => {
                    // In session mode its place has to be free.
                    let _ = pairs.remove(who);
                    let pair = self.log_in(&mut rng);
                    pairs.insert(who, pair);
                }
                6 | 7 => {
                    let role = rng.bool().then(|| ROLES[rng.usize(..ROLES.len())]);
                    let set = role.map_or("reset role".to_owned(), |role| format!("set role {role}"));
                    self.step(who, &mut pairs[who], &set, rng.bool());
                }
                8 => self.set_in_block(who, &mut pairs),
                _ => {
                    for sql in statements(&mut rng) {
                        self.step(who, &mut pairs[who], &sql, rng.bool());
                    }
                }
            }
            let other = rng.usize(..CLIENTS);
            self.compare(other, &mut pairs[other]);
        }
    }

    fn log_in(&mut self, rng: &mut Rng) -> Pair {
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
        let chosen: Vec<_> = PARAMETERS.into_iter().filter(|_| rng.u8(..6) == 0).collect();
        let _ = writeln!(self.log, "log in {chosen:?}");
        let connect = |startup: Startup| {
            chosen.iter().fold(startup, |startup, (name, value)| startup.parameter(name, value)).connect()
        };
        let (direct, mut through) = (connect(self.server.startup()), connect(self.gateway.startup("postgres")));
        if self.is_session_mode {
            // Where sessions hold all servers, a login does not know of a configuration that was loaded meanwhile. The first
            // reply tells.
            through.ok("select 1");
        }
        let pair = Pair { direct, through };
        self.check(pair.direct.parameters == pair.through.parameters, || told(&pair));
        pair
    }

    fn step(&mut self, who: usize, pair: &mut Pair, sql: &str, extended: bool) {
        let _ = writeln!(self.log, "{who}: {sql}");
        let frames =
            if extended && !sql.contains(';') { Frames::new().once(sql).sync() } else { Frames::new().query(sql) };
        let answer = |client: &mut RawClient| {
            client.send(&frames);
            client.until_ready()
        };
        let (direct, through) = (answer(&mut pair.direct), answer(&mut pair.through));
        let of = |outcome: &Outcome| (outcome.tags.clone(), outcome.code(), outcome.status, outcome.rows.clone());
        self.check(of(&direct) == of(&through), || format!("Postgres: {direct:?}\nTidegate: {through:?}"));
        self.compare(who, pair);
    }

    fn compare(&mut self, who: usize, pair: &mut Pair) {
        let values: Vec<_> = NAMES.iter().map(|name| format!("current_setting('{name}')")).collect();
        let sql = format!("select current_user, {}", values.join(", "));
        let (direct, through) = (pair.direct.query(&sql), pair.through.query(&sql));
        let same = (&direct.rows, direct.code()) == (&through.rows, through.code());
        self.check(same, || {
            format!("{who} has {:?}\nand through {:?}", (&direct.rows, &direct.error), (&through.rows, &through.error))
        });
        self.check(pair.direct.parameters == pair.through.parameters, || told(pair));
    }

    #[track_caller]
    fn check(&self, holds: bool, what: impl FnOnce() -> String) {
        assert!(holds, "{}\n{}", self.log, what());
    }

    /// Loads another configuration, and waits until all sessions have it.
    fn load_configuration(&mut self, rng: &mut Rng, pairs: &mut [Pair]) {
        let (name, values) = own_value(rng);
        let value = values[rng.usize(..values.len())];
        self.loaded += 1;
        let _ = writeln!(self.log, "alter system set {name} = '{value}', and reload");
        let mut admin = self.server.client();
        admin.ok(&format!("alter system set {name} = '{value}'"));
        admin.ok(&format!("alter system set authentication_timeout = '{}'", 100 + self.loaded % 400));
        admin.ok("select pg_reload_conf()");
        let expected = (100 + self.loaded % 400).to_string();
        let show = "select setting from pg_settings where name = 'authentication_timeout'";
        on_each_server(pairs, |_, pair| {
            eventually("the session has it", || pair.direct.value(show) == expected);
            eventually("the server has it", || pair.through.value(show) == expected);
        });
        for (who, pair) in pairs.iter_mut().enumerate() {
            self.compare(who, pair);
        }
    }

    /// What a block has set without a report, the other clients must not see. What the client itself sees is not compared: the
    /// gateway resets its server after the transaction.
    fn set_in_block(&mut self, who: usize, pairs: &mut [Pair]) {
        let _ = writeln!(self.log, "{who}: work_mem set in a block, and reset");
        let both = |pair: &mut Pair, sql: &str| {
            pair.direct.ok(sql);
            pair.through.ok(sql);
        };
        both(&mut pairs[who], "do $$ begin set work_mem = '17MB'; end $$");
        for (other, pair) in pairs.iter_mut().enumerate().filter(|(other, _)| *other != who) {
            self.compare(other, pair);
        }
        both(&mut pairs[who], "reset work_mem");
    }

    /// New sessions have other values.
    fn change_database(&mut self, rng: &mut Rng) {
        let (name, values) = own_value(rng);
        let value = values[rng.usize(..values.len())];
        let change = match rng.bool() {
            true => format!("alter database postgres set {name} = '{value}'"),
            false => "alter database postgres reset all".to_owned(),
        };
        let _ = writeln!(self.log, "{change}, and RECONNECT; all log in again");
        self.server.client().ok(&format!("begin read write; {change}; commit"));
        self.gateway.console().ok("RECONNECT");
    }

    /// A client takes a role, another role takes its name, and a second client, which takes that one, gets the server of the
    /// first.
    fn change_role(&mut self, rng: &mut Rng, pairs: &mut [Pair]) {
        let role = ROLES[rng.usize(..ROLES.len())];
        self.loaded += 1;
        let change = match rng.bool() {
            true => format!("drop role {role}; create role {role}"),
            false => format!("alter role {role} rename to {role}_{}; create role {role}", self.loaded),
        };
        let mut order: [usize; CLIENTS] = std::array::from_fn(|who| who);
        rng.shuffle(&mut order);
        let [first, second, holder] = order;
        let _ = writeln!(self.log, "{first}: set role {role}; {change}; {second}: set role {role}; then all");
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
        self.compare(second, &mut pairs[second]);
        pairs[holder].through.ok("commit");
        // A session keeps the number of a role until it sets one again.
        pairs.iter_mut().for_each(set_role);
    }
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

/// A parameter that a configuration may set, and some values.
fn own_value(rng: &mut Rng) -> (&'static str, &'static [&'static str]) {
    const OWN: [(&str, &[&str]); 5] = [
        ("TimeZone", &["UTC", "Europe/Paris", "America/Lima"]),
        ("DateStyle", &["ISO, MDY", "German, DMY"]),
        ("default_transaction_read_only", &["on", "off"]),
        ("IntervalStyle", &["postgres", "sql_standard"]),
        ("work_mem", &["4MB", "6MB"]),
    ];
    OWN[rng.usize(..OWN.len())]
}

/// Statements of a client, one after the other.
fn statements(rng: &mut Rng) -> Vec<String> {
    let (name, values) = own_value(rng);
    let value = values[rng.usize(..values.len())];
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
