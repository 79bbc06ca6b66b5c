//! The same files before the real PgBouncer and before this one: what a client, an operator or an exporter would notice.
//!
//! The program is the one that `TIDEGATE_PGBOUNCER` names, as `cargo xtask differ` does, or the one that is installed; where
//! there is none that is new enough, there is nothing to compare. Every difference has to be among those that
//! docs/src/migration/pgbouncer.md tells of.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::geteuid;
use tidegate_testkit::{Frames, Lost, Message, Process, RawClient, Startup, eventually};

use crate::bouncer::{Bouncer, Setup, free_port, server, with_places};

/// Names the program.
const VARIABLE: &str = "TIDEGATE_PGBOUNCER";

/// Where it is looked for if that names none.
const PLACES: &[&str] = &["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];

/// Older ones do not know the keys that are compared.
const OLDEST: (u32, u32) = (1, 24);

/// What differs and is told in docs/src/migration/pgbouncer.md, by the name of the case; besides the [`COMMANDS`].
const TOLD: &[&str] = &[
    // Types and columns of tables.
    "SHOW FDS",
    "SHOW MEM",
    "size of a user's pools",
    "databases while all are paused",
    "active sockets",
    // The tag is one that drivers can read.
    "SET conffile",
    // Logins.
    "a stranger in the console with auth_type = any",
    "wrong password",
    "no such user",
    "unknown parameter",
    // An operator sends clients away.
    "KILL",
    "SHUTDOWN WAIT_FOR_SERVERS",
    "a message that is too long",
    // In statement mode.
    "BEGIN in statement mode",
];

/// Everything that has columns.
const TABLES: &[&str] = &[
    "ACTIVE_SOCKETS",
    "CLIENTS",
    "CONFIG",
    "DATABASES",
    "DNS_HOSTS",
    "DNS_ZONES",
    "FDS",
    "LISTS",
    "MEM",
    "PEERS",
    "PEER_POOLS",
    "POOLS",
    "SERVERS",
    "SOCKETS",
    "STATE",
    "STATS",
    "STATS_AVERAGES",
    "STATS_TOTALS",
    "TOTALS",
    "USERS",
    "VERSION",
];

/// Commands of the console that are refused: here with the codes of Postgres, and texts that say more.
const COMMANDS: &[&str] = &[
    "SHOW nonsense",
    "nonsense",
    "PAUSE nowhere",
    "RESUME nowhere",
    "KILL nowhere",
    "DISABLE nowhere",
    "ENABLE nowhere",
    "RECONNECT nowhere",
    "WAIT_CLOSE nowhere",
    "PAUSE pgbouncer",
    "RESUME pgbouncer",
    "KILL pgbouncer",
    "DISABLE pgbouncer",
    "RECONNECT pgbouncer",
    "WAIT_CLOSE pgbouncer",
    "SET nonsense = 1",
    "SET pkt_buf = 1",
    "KILL_CLIENT 999999",
    "RESUME",
    "SELECT 1 FROM pg_class",
];

/// One of the two.
struct Subject {
    _process: Process,
    address: SocketAddr,
}

impl Subject {
    fn login(&self, database: &str) -> Startup {
        Startup::tcp(self.address, "app", database).password("secret")
    }

    fn console(&self) -> RawClient {
        self.login("pgbouncer").connect()
    }
}

const FILES: &[(&str, &str)] = &[("users.txt", "\"app\" \"secret\"\n\"other\" \"word\"\n")];

/// Both with this file; PgBouncer first.
fn both(program: &str, ini: &str) -> [Subject; 2] {
    let common = format!(
        "[databases]\nshop = $PG dbname=postgres user=postgres\nclosed = host=127.0.0.1 port=1\n\
         lost = $PG dbname=differ_lost user=postgres\nmistaken = $PG dbname=postgres user=differ_login password=wrong\n\
         [users]\nother = pool_mode=session max_user_connections=7\n[pgbouncer]\n\
         auth_type = md5\nauth_file = $DIR/users.txt\nadmin_users = app\nserver_login_retry = 1\npool_mode = transaction\n{ini}"
    );
    let ours = Bouncer::with(&Setup { ini: &common, files: FILES, ..Setup::default() });
    let address = ours.address();
    [theirs(program, &common), Subject { _process: ours.into_process(), address }]
}

fn theirs(program: &str, ini: &str) -> Subject {
    use std::os::unix::fs::PermissionsExt as _;
    for _ in 0..5 {
        let folder = tempfile::tempdir().expect("a folder");
        // It refuses to run as root, and has to read its files as somebody else.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("the folder is ours");
        let port = free_port();
        for (name, text) in FILES {
            std::fs::write(folder.path().join(name), text).expect("the folder can be written");
        }
        let file: PathBuf = folder.path().join("pgbouncer.ini");
        // Its sections do not go on where they are written a second time.
        let own = format!("{ini}\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n");
        std::fs::write(&file, with_places(&own, folder.path())).expect("the folder can be written");
        let mut command = Command::new(program);
        if geteuid().is_root() {
            command.args(["-u", "nobody"]);
        }
        command.arg(file);
        let address = (Ipv4Addr::LOCALHOST, port).into();
        let mut process = Process::spawn(command, address, folder);
        if process.accepts() {
            return Subject { _process: process, address };
        }
    }
    panic!("no free port found");
}

/// The program to compare with. Says so if there is none.
fn program() -> Option<String> {
    if let Ok(named) = std::env::var(VARIABLE) {
        return Some(named);
    }
    let installed: Vec<&str> = PLACES.iter().copied().filter(|place| Path::new(place).exists()).collect();
    if let Some(place) = installed.iter().find(|place| version(place) >= OLDEST) {
        return Some((*place).to_owned());
    }
    let (major, minor) = OLDEST;
    eprintln!(
        "nothing is compared with PgBouncer: of {PLACES:?} there are {installed:?}, none of version {major}.{minor} or newer; \
         {VARIABLE} may name one"
    );
    None
}

/// Major and minor version; keys that it does not know keep it from starting.
fn version(program: &str) -> (u32, u32) {
    let said = Command::new(program).arg("--version").output().expect("it can be started").stdout;
    let said = String::from_utf8_lossy(&said).into_owned();
    let mut numbers = said.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// An error as a client sees it, or that the connection is gone.
fn told(lost: &Lost) -> String {
    match lost {
        Lost::Refused(fields) => format!("{} {}: {}", fields.severity, fields.code, fields.message),
        Lost::Closed => "closed".to_owned(),
        other => format!("{other}"),
    }
}

fn login(startup: &Startup) -> String {
    startup.try_connect().map_or_else(|lost| told(&lost), |_| "let in".to_owned())
}

/// What is answered up to the end of the query or of the connection.
fn answered(client: &mut RawClient) -> String {
    let mut all = Vec::new();
    loop {
        match client.try_recv() {
            Ok(message) if message.tag == b'E' || message.tag == b'N' => {
                let fields = message.error();
                all.push(format!("{} {}: {}", fields.severity, fields.code, fields.message));
            }
            Ok(message) if message.tag == b'Z' => return all.join(", "),
            Ok(message) if message.tag == b'C' => all.push(message.text()),
            Ok(_) => {}
            Err(lost) => {
                all.push(told(&lost));
                return all.join(", ");
            }
        }
    }
}

fn asked(client: &mut RawClient, sql: &str) -> String {
    client.send(&Frames::new().query(sql));
    answered(client)
}

/// What was found so far.
#[derive(Default)]
struct Findings(Vec<(String, String, String)>);

impl Findings {
    fn compare(&mut self, case: &str, subjects: &[Subject; 2], answer: impl Fn(&Subject) -> String) {
        let [theirs, ours] = [answer(&subjects[0]), answer(&subjects[1])];
        println!("{case}\n    PgBouncer: {theirs}\n    Tidegate:  {ours}");
        if theirs != ours {
            self.0.push((case.to_owned(), theirs, ours));
        }
    }

    /// The same table of the console: columns of our own may stand behind.
    fn compare_table(&mut self, table: &str, subjects: &[Subject; 2]) {
        let [theirs, ours] = [columns(&subjects[0], table), columns(&subjects[1], table)];
        println!("SHOW {table}\n    PgBouncer: {theirs:?}\n    Tidegate:  {ours:?}");
        if ours.get(..theirs.len()) != Some(&theirs[..]) {
            self.0.push((format!("SHOW {table}"), format!("{theirs:?}"), format!("{ours:?}")));
        }
    }
}

/// What is compared, and how a subject is asked for it.
type Row = (&'static str, fn(&Subject) -> String);

/// What stands in tables, while a client is in a transaction of `shop`.
const ROWS: &[Row] = &[
    ("names of TOTALS", |subject| rows(subject, "TOTALS", &["name"], |_| true)),
    ("names of LISTS", |subject| rows(subject, "LISTS", &["list"], |_| true)),
    ("databases", |subject| {
        let columns = "name host database force_user pool_size min_pool_size reserve_pool_size server_lifetime pool_mode \
                       load_balance_hosts max_connections current_connections max_client_connections \
                       current_client_connections paused disabled";
        rows(subject, "DATABASES", &words(columns), |_| true)
    }),
    ("the console's port", |subject| {
        let shown = subject.console().show("DATABASES");
        let port = shown.iter().find(|row| row["name"] == "pgbouncer").map(|row| row["port"].clone());
        (port == Some(subject.address.port().to_string())).to_string()
    }),
    ("users", |subject| {
        let columns = "name pool_mode max_user_connections current_connections max_user_client_connections \
                       current_client_connections";
        rows(subject, "USERS", &words(columns), |_| true)
    }),
    ("size of a user's pools", |subject| {
        rows(subject, "USERS", &["name", "pool_size", "reserve_pool_size"], |row| row["name"] == "other")
    }),
    ("pools", |subject| {
        let columns = "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active \
                       sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait pool_mode \
                       load_balance_hosts";
        rows(subject, "POOLS", &words(columns), |_| true)
    }),
    ("what the console's clients did", |subject| {
        let columns = "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time \
                       query_time wait_time";
        rows(subject, "STATS_TOTALS", &words(columns), |row| row["database"] == "pgbouncer")
    }),
    ("items of LISTS", |subject| {
        let is_kept = |row: &BTreeMap<String, String>| !row["list"].starts_with("free_");
        rows(subject, "LISTS", &["list", "items"], is_kept)
    }),
    ("this end of a client's connection", |subject| {
        let shown = subject.console().show("CLIENTS");
        let own = |row: &BTreeMap<String, String>| row["local_port"] == subject.address.port().to_string();
        shown.iter().map(|row| format!("{} {}", row["local_addr"], own(row))).collect::<Vec<_>>().join(", ")
    }),
    ("this end of a server's connection", |subject| {
        let shown = subject.console().show("SERVERS");
        let known = |row: &BTreeMap<String, String>| row["local_port"].parse::<u16>().is_ok_and(|port| port > 0);
        shown.iter().map(|row| format!("{} {}", row["local_addr"], known(row))).collect::<Vec<_>>().join(", ")
    }),
    ("client", |subject| {
        rows(subject, "CLIENTS", &["type", "user", "replication", "state", "addr"], |row| row["database"] == "shop")
    }),
    ("console's client", |subject| {
        rows(subject, "CLIENTS", &["user", "database", "addr"], |row| row["database"] != "shop")
    }),
    ("server", |subject| {
        let columns = ["type", "user", "database", "replication", "state", "addr", "close_needed", "tls"];
        rows(subject, "SERVERS", &columns, |_| true)
    }),
    ("active sockets", |subject| {
        let columns = ["type", "user", "state", "recv_pos", "send_avail"];
        rows(subject, "ACTIVE_SOCKETS", &columns, |row| row["database"] == "shop")
    }),
    ("state", |subject| {
        rows(subject, "STATE", &["key", "value"], |row| row["key"] == "active" || row["key"] == "paused")
    }),
];

/// These columns of the rows that are wanted, in the order of their texts: that of the rows is not told.
fn rows(subject: &Subject, table: &str, columns: &[&str], is_wanted: fn(&BTreeMap<String, String>) -> bool) -> String {
    let shown = subject.console().show(table);
    let text = |row: &BTreeMap<String, String>| {
        columns.iter().map(|column| row[*column].as_str()).collect::<Vec<_>>().join("|")
    };
    let mut texts: Vec<_> = shown.iter().filter(|row| is_wanted(row)).map(text).collect();
    texts.sort();
    texts.join(", ")
}

fn words(text: &'static str) -> Vec<&'static str> {
    text.split_whitespace().collect()
}

/// Names and types of a table's columns.
fn columns(subject: &Subject, table: &str) -> Vec<(String, u32)> {
    let mut console = subject.console();
    let outcome = console.query(&format!("SHOW {table}"));
    let description = outcome.messages.iter().find(|message| message.tag == b'T');
    description.map(Message::column_types).unwrap_or_default()
}

#[test]
fn nothing_differs_from_pgbouncer_but_what_is_told() {
    let Some(program) = program() else { return };
    let mut findings = Findings::default();
    tables(&program, &mut findings);
    logins(&program, &mut findings);
    absent(&program, &mut findings);
    strangers(&program, &mut findings);
    limits(&program, &mut findings);
    timeouts(&program, &mut findings);
    let told = || TOLD.iter().chain(COMMANDS);
    let untold: Vec<_> = findings.0.iter().filter(|(case, ..)| !told().any(|told| told == case)).collect();
    for (case, theirs, ours) in &untold {
        println!("DIFFERS: {case}\n    PgBouncer: {theirs}\n    Tidegate:  {ours}");
    }
    let gone: Vec<_> = told().filter(|told| findings.0.iter().all(|(case, ..)| case != **told)).collect();
    println!("{} differences, {} of them not told; told but not seen: {gone:?}", findings.0.len(), untold.len());
    assert!(untold.is_empty(), "differences that docs/src/migration/pgbouncer.md does not tell of");
}

fn tables(program: &str, findings: &mut Findings) {
    let subjects = both(program, "");
    let clients = subjects.each_ref().map(|subject| {
        let mut client = subject.login("shop").connect();
        client.ok("begin");
        client
    });
    // Counts of logins came with 1.25.
    let older = version(program) < (1, 25);
    for table in TABLES.iter().filter(|table| !(older && table.starts_with("STATS"))) {
        findings.compare_table(table, &subjects);
    }
    let [theirs, ours] = subjects.each_ref().map(|subject| {
        subject.console().show("CONFIG").into_iter().map(|row| row["key"].clone()).collect::<BTreeSet<_>>()
    });
    let missing: Vec<_> = theirs.difference(&ours).cloned().collect();
    if !missing.is_empty() {
        findings.0.push(("keys of SHOW CONFIG".to_owned(), missing.join(", "), "are not there".to_owned()));
    }
    for (case, ask) in ROWS {
        // The two newest counters of TOTALS came with 1.25, and so did the state of those who ask for nothing.
        if !(older && case.contains("TOTALS")) {
            findings.compare(case, &subjects, ask);
        }
    }
    for command in COMMANDS {
        findings.compare(command, &subjects, |subject| asked(&mut subject.console(), command));
    }
    drop(clients);
}

fn logins(program: &str, findings: &mut Findings) {
    let subjects = both(program, "");
    findings.compare("wrong password", &subjects, |subject| login(&subject.login("shop").password("wrong")));
    findings.compare("no such user", &subjects, |subject| login(&subject.login("shop").user("nobody")));
    findings.compare("no such database", &subjects, |subject| login(&subject.login("nowhere")));
    findings.compare("console without being admin", &subjects, |subject| {
        login(&subject.login("pgbouncer").user("other").password("word"))
    });
    findings
        .compare("unknown parameter", &subjects, |subject| login(&subject.login("shop").parameter("nonsense", "1")));
    findings.compare("a PAUSE and what it leaves", &subjects, |subject| {
        let mut console = subject.console();
        let said =
            ["PAUSE shop", "RESUME shop", "RECONNECT shop", "RELOAD", "DISABLE shop", "ENABLE shop", "WAIT_CLOSE shop"];
        said.map(|command| asked(&mut console, command)).join(", ")
    });
    let paused = |command: &str, subject: &Subject| {
        let mut console = subject.console();
        console.ok(command);
        let shown = rows(subject, "DATABASES", &["name", "paused", "disabled"], |_| true);
        console.ok(&command.replace("PAUSE", "RESUME"));
        shown
    };
    findings.compare("databases while one is paused", &subjects, |subject| paused("PAUSE shop", subject));
    findings.compare("databases while all are paused", &subjects, |subject| paused("PAUSE", subject));
    findings.compare("disabled database", &subjects, |subject| {
        subject.console().ok("DISABLE shop");
        let refused = login(&subject.login("shop"));
        subject.console().ok("ENABLE shop");
        refused
    });
    findings.compare("KILL", &subjects, |subject| {
        let mut client = subject.login("shop").connect();
        client.ok("begin");
        subject.console().ok("KILL shop");
        let answer = answered(&mut client);
        subject.console().ok("RESUME shop");
        answer
    });
    findings.compare("SHUTDOWN WAIT_FOR_SERVERS", &subjects, |subject| {
        let mut client = subject.login("shop").connect();
        let mut busy = subject.login("shop").connect();
        busy.ok("begin");
        let mut console = subject.console();
        console.send(&Frames::new().query("SHUTDOWN WAIT_FOR_SERVERS"));
        answered(&mut client)
    });
}

/// Servers that do not let anybody in, or are not there.
fn absent(program: &str, findings: &mut Findings) {
    let server = server();
    server.sql("create role differ_login login password 'right' in role scram_login");
    let subjects = both(program, "query_wait_timeout = 3");
    for database in ["closed", "lost", "mistaken"] {
        for time in ["at first", "once more"] {
            let case = format!("a login to {database}, {time}");
            findings.compare(&case, &subjects, |subject| login(&subject.login(database)));
        }
    }
}

fn strangers(program: &str, findings: &mut Findings) {
    let subjects = both(program, "auth_type = any");
    findings.compare("any name is let in", &subjects, |subject| login(&subject.login("shop").user("whoever")));
    findings.compare("a stranger in the console with auth_type = any", &subjects, |subject| {
        login(&subject.login("pgbouncer").user("whoever"))
    });
    let subjects = both(program, "auth_type = trust");
    findings.compare("trust and a stranger", &subjects, |subject| login(&subject.login("shop").user("whoever")));
    let subjects = both(program, "auth_type = plain");
    findings.compare("plain and a wrong password", &subjects, |subject| {
        // The words of the one are those of the other with the user's name behind them.
        login(&subject.login("shop").password("wrong")).contains("password authentication failed").to_string()
    });
}

fn limits(program: &str, findings: &mut Findings) {
    for limit in ["max_client_conn = 1", "max_db_client_connections = 1", "max_user_client_connections = 1"] {
        let subjects = both(program, limit);
        findings.compare(limit, &subjects, |subject| {
            // Whoever looked whether it listens may not have left yet.
            let mut first = None;
            eventually("one is let in", || {
                first = subject.login("shop").try_connect().ok();
                first.is_some()
            });
            login(&subject.login("shop"))
        });
    }
    let subjects = both(program, "max_packet_size = 1000");
    findings.compare("a message that is too long", &subjects, |subject| {
        asked(&mut subject.login("shop").connect(), &format!("select length('{}')", "x".repeat(2000)))
    });
    findings.compare("SET conffile", &subjects, |subject| asked(&mut subject.console(), "SET conffile = '/nowhere'"));
    let subjects = both(program, "pool_mode = statement");
    findings
        .compare("BEGIN in statement mode", &subjects, |subject| asked(&mut subject.login("shop").connect(), "begin"));
    let subjects = both(program, "disable_pqexec = 1");
    findings.compare("disable_pqexec", &subjects, |subject| asked(&mut subject.login("shop").connect(), "select 1"));
}

fn timeouts(program: &str, findings: &mut Findings) {
    for (limit, sql) in [("query_timeout = 1", "select pg_sleep(60)"), ("idle_transaction_timeout = 1", "begin")] {
        let subjects = both(program, limit);
        findings.compare(limit, &subjects, |subject| {
            let mut client = subject.login("shop").connect();
            let first = asked(&mut client, sql);
            if sql == "begin" { answered(&mut client) } else { first }
        });
    }
    for (limit, begins) in [("transaction_timeout = 1", true), ("client_idle_timeout = 1", false)] {
        if begins && version(program) < (1, 25) {
            continue;
        }
        let subjects = both(program, limit);
        findings.compare(limit, &subjects, |subject| {
            let mut client = subject.login("shop").connect();
            asked(&mut client, if begins { "begin" } else { "select 1" });
            answered(&mut client)
        });
    }
    let subjects = both(program, "query_wait_timeout = 1\ndefault_pool_size = 1");
    findings.compare("query_wait_timeout = 1", &subjects, |subject| {
        let mut holder = subject.login("shop").connect();
        holder.ok("begin");
        asked(&mut subject.login("shop").connect(), "select 1")
    });
    let subjects = both(program, "client_login_timeout = 1");
    findings.compare("client_login_timeout = 1", &subjects, |subject| answered(&mut subject.login("shop").open()));
}
