//! Effects of SET in transactions, chained transactions and savepoints.

use std::collections::BTreeMap;

use fastrand::Rng;
use tidegate_testkit::{Fixture, Frames, Message, Outcome, RawClient, Startup, on_each_postgres};

const NAMES: [&str; 6] = ["work_mem", "statement_timeout", "application_name", "search_path", "my.setting", "timezone"];

/// Parameters that both versions of Postgres report.
const REPORTED: [&str; 2] = ["application_name", "TimeZone"];

/// The same client through the gateway and directly at Postgres.
struct ClientPair {
    through: RawClient,
    direct: RawClient,
    /// The last reported values of each.
    reported: [BTreeMap<String, String>; 2],
    script: Vec<String>,
}

impl ClientPair {
    fn both<T>(&mut self, mut each: impl FnMut(&mut RawClient) -> T) -> (T, T) {
        (each(&mut self.through), each(&mut self.direct))
    }

    /// Sends the same statements to both and asserts that the outcomes are equal.
    #[track_caller]
    fn run(&mut self, statements: &[String], extended: bool) -> char {
        self.script.push(format!("{}{}", if extended { "extended: " } else { "" }, statements.join(" | ")));
        let frames = match extended {
            true => statements.iter().fold(Frames::new(), |frames, sql| frames.once(sql)).sync(),
            false => Frames::new().query(&statements.join("; ")),
        };
        let (through, direct) = self.both(|client| {
            client.send(&frames);
            client.until_ready()
        });
        self.note([&through, &direct]);
        let comparable = |outcome: &Outcome| (outcome.tags.clone(), outcome.code(), outcome.status);
        assert_eq!(comparable(&through), comparable(&direct), "{:#?}", self.script);
        direct.status
    }

    #[track_caller]
    fn compare(&mut self) {
        for name in NAMES {
            // A fresh server does not have a custom setting that was never set.
            let sql = format!("select coalesce(current_setting('{name}', true), '')");
            let (through, direct) = self.both(|client| client.ok(&sql));
            assert_eq!(through.value(), direct.value(), "{name} after {:#?}", self.script);
            self.note([&through, &direct]);
        }
        assert_eq!(self.reported[0], self.reported[1], "reported after {:#?}", self.script);
        self.script.clear();
    }

    fn note(&mut self, outcomes: [&Outcome; 2]) {
        for (reported, outcome) in self.reported.iter_mut().zip(outcomes) {
            let reports = outcome.messages.iter().filter(|message| message.tag == b'S').map(Message::parameter);
            reported.extend(reports.filter(|(name, _)| REPORTED.contains(&name.as_str())));
        }
    }
}

fn value(name: &str, rng: &mut Rng) -> String {
    match name {
        "timezone" => ["UTC", "Europe/Paris"][rng.usize(..2)].to_owned(),
        _ => (100_000 + rng.u32(..1000)).to_string(),
    }
}

fn statement(rng: &mut Rng) -> String {
    let point = ["s", "S", "\"s\"", "t", "savepoint", "\"T\""][rng.usize(..6)];
    let name = NAMES[rng.usize(..NAMES.len())];
    let value = value(name, rng);
    match rng.u8(..28) {
        0..2 => "begin".to_owned(),
        2 => "commit".to_owned(),
        3 => "rollback".to_owned(),
        4 => "commit and chain".to_owned(),
        5 | 6 => "rollback /* all */ and chain -- of it".to_owned(),
        7 | 8 => format!("savepoint {point}"),
        9 => format!("release {point}"),
        10 => format!("RELEASE SAVEPOINT {point};"),
        11 => format!("rollback to {point}"),
        12 => format!("Rollback /* some */ Work To Savepoint {point} -- of it"),
        13 => format!("rollback transaction to {point}"),
        14 => "select 1/0".to_owned(),
        15 => format!("set local {name} = '{value}'"),
        16 => format!("reset {name}"),
        17 => ["reset all", "discard plans", "abort", "end", "select 1"][rng.usize(..5)].to_owned(),
        18 => format!("set {name} to default"),
        19 => ["reset time zone", "set time zone local", "discard all", "reset all"][rng.usize(..4)].to_owned(),
        _ => format!("set {name} = '{value}'"),
    }
}

/// A few transactions of one client.
fn transactions(pair: &mut ClientPair, rng: &mut Rng) {
    let mut status = 'I';
    for _ in 0..rng.u8(1..14) {
        let extended = rng.bool();
        let how_many = if extended && rng.u8(..4) == 0 { rng.u8(2..5) } else { 1 };
        let statements: Vec<_> = (0..how_many).map(|_| statement(rng)).collect();
        status = pair.run(&statements, extended);
    }
    while status != 'I' {
        let end = ["commit", "rollback"][rng.usize(..2)].to_owned();
        status = pair.run(&[end], rng.bool());
    }
    pair.compare();
}

fn pair(fixture: &Fixture, gateway: &tidegate_testkit::Gateway) -> ClientPair {
    pair_with(fixture, gateway, &[])
}

/// A pair with these startup parameters.
fn pair_with(fixture: &Fixture, gateway: &tidegate_testkit::Gateway, parameters: &[(&str, &str)]) -> ClientPair {
    let connect = |startup: Startup| {
        parameters.iter().fold(startup, |startup, (name, value)| startup.parameter(name, value)).connect()
    };
    let (mut through, mut direct) = (connect(gateway.startup("postgres")), connect(fixture.direct().startup()));
    let reported = [&mut through, &mut direct].map(|client| {
        REPORTED.iter().map(|name| ((*name).to_owned(), client.value(&format!("show {name}")))).collect()
    });
    ClientPair { through, direct, reported, script: Vec::new() }
}

on_each_postgres! {
    /// EDGE-56.
    fn random_set_in_transactions_matches_postgres(fixture) {
        let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..1 << 32));
        println!("TIDEGATE_SEED={seed}");
        let mut rng = Rng::with_seed(seed);
        // All clients share one server in turn, so that a leak between them would be found.
        let gateway = fixture.gateway("size = 1\n");
        let given = "-c work_mem=77kB -c my.setting=given -c statement_timeout=100s";
        let given = [("options", given), ("application_name", "given"), ("TimeZone", "Asia/Tokyo")];
        let mut clients =
            [pair(fixture, &gateway), pair_with(fixture, &gateway, &given), pair_with(fixture, &gateway, &given[1..2])];
        for _ in 0..200 {
            let client = rng.usize(..clients.len());
            transactions(&mut clients[client], &mut rng);
        }
        for client in &mut clients {
            client.compare();
        }
    }

    /// EDGE-57: Short sequences of extended queries that random scripts rarely contain.
    fn reset_sequences_match_postgres(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let options = ("options", "-c work_mem=77kB -c my.setting=given");
        let given = [options, ("application_name", "given"), ("TimeZone", "Asia/Tokyo")];
        let sequences: [&[&[&str]]; 10] = [
            &[&["select 1/0"], &["reset my.setting"]],
            &[&["set application_name to default"]],
            &[&["set time zone local"], &["reset time zone"]],
            &[&["begin"], &["set work_mem to default"], &["commit"]],
            &[&["begin", "reset all", "commit"]],
            &[&["begin"], &["reset all", "commit and chain"], &["set local timezone = 'UTC'"], &["rollback"]],
            // The server reports only a part of the values that the client has at the end of the transaction.
            &[&["begin"], &["set local timezone = 'UTC'"], &["reset work_mem"], &["commit"]],
            &[&["discard all", "select 1/0"]],
            &[&["discard all", "begin", "select 1/0"], &["commit"]],
            &[&["reset all", "set application_name = 'behind'"]],
        ];
        let session = fixture.gateway("size = 1\nmode = \"session\"\n");
        for (sequences, gateway) in sequences.into_iter().flat_map(|sequences| [(sequences, &gateway), (sequences, &session)]) {
            let mut client = pair_with(fixture, gateway, &given);
            client.run(&["set my.setting = 'changed'".to_owned()], false);
            for sequence in sequences {
                client.run(&sequence.iter().map(|sql| (*sql).to_owned()).collect::<Vec<_>>(), true);
            }
            client.compare();
        }
    }

    /// EDGE-56.
    fn set_after_rollback_and_chain_is_kept(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        let script = ["begin", "set work_mem = '5MB'", "commit and chain", "set work_mem = '6MB'", "rollback and chain"];
        for sql in script.into_iter().chain(["set statement_timeout = '7s'", "commit"]) {
            client.ok(sql);
        }
        assert_eq!(other.value("show work_mem"), "4MB");
        assert_eq!(other.value("show statement_timeout"), "0");
        assert_eq!(client.value("show work_mem"), "5MB");
        assert_eq!(client.value("show statement_timeout"), "7s");
    }

    /// EDGE-56.
    fn rollback_with_a_set_needs_no_reset(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let (mut client, mut other) = (gateway.client("postgres"), gateway.client("postgres"));
        for sql in ["begin", "set work_mem = '5MB'"] {
            client.ok(sql);
        }
        client.send(&Frames::new().parse("plan", "select 1").sync().query("rollback"));
        client.until_ready();
        client.until_ready();
        assert_eq!(other.value("show work_mem"), "4MB");
        let count = other.value("select count(*) from pg_prepared_statements where name like 'tidegate%'");
        assert_eq!(count, "1", "the server was reset");
    }

    /// EDGE-56: The gateway cannot track which SET remains, so that the client stays with its server.
    fn savepoints_among_other_statements(fixture) {
        let script = [
            ("begin", "begin"),
            ("set work_mem = '5MB'", "set work_mem = '5MB'"),
            ("savepoint s", "savepoint s; select 1"),
            ("set work_mem = '6MB'", "set work_mem = '6MB'"),
            ("rollback to s", "select 1; rollback to s"),
            ("set statement_timeout = '7s'", "set statement_timeout = '7s'"),
            ("release s", "release s; select 1"),
            ("commit", "commit"),
        ];
        for mask in [0, 0b100, 0b10000, 0b1000000, 0b1010100] {
            let gateway = fixture.gateway("size = 2\n");
            let mut client = pair(fixture, &gateway);
            for (number, (alone, among_others)) in script.iter().enumerate() {
                let sql = if mask >> number & 1 == 1 { among_others } else { alone };
                client.run(&[(*sql).to_owned()], false);
            }
            let mut other = gateway.client("postgres");
            other.ok("begin");
            assert_eq!(other.value("show work_mem"), "4MB");
            assert_eq!(other.value("show statement_timeout"), "0");
            client.compare();
        }
    }
}
