//! PgBouncer and the gateway with the same files, compared by the observations of clients, operators and exporters.
//!
//! `TIDEGATE_PGBOUNCER` is the path of PgBouncer, which `cargo xtask differ` sets; otherwise an installed one is used.
//! The test is skipped without a version that is new enough. Every difference must be documented in
//! docs/src/migration/pgbouncer.md.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::geteuid;
use tidegate_testkit::{ClientError, Frames, Message, Process, RawClient, Startup, eventually};

use crate::ini_gateway::{IniGateway, Setup, expand, free_port, server};

/// The variable with the path of PgBouncer.
const VARIABLE: &str = "TIDEGATE_PGBOUNCER";

/// The paths that are searched without the variable.
const PATHS: &[&str] = &["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];

/// Older versions do not have the compared keys.
const OLDEST: (u32, u32) = (1, 24);

/// Documented differences by the name of the case, besides the [`COMMANDS`].
const DOCUMENTED: &[&str] = &[
    // Types and columns of tables; PgBouncer 1.26 has further columns of statistics.
    "SHOW FDS",
    "SHOW MEM",
    "SHOW STATS",
    "SHOW STATS_AVERAGES",
    "SHOW STATS_TOTALS",
    "names of TOTALS",
    "size of a user's pools",
    "databases while all are paused",
    "active sockets",
    // Drivers can read the tag of Tidegate.
    "SET conffile",
    // Logins.
    "an unknown user of the console with auth_type = any",
    "wrong password",
    "no such user",
    "unknown parameter",
    // Clients are disconnected by an operator.
    "KILL",
    "a message that is too long",
    // Statement mode.
    "BEGIN in statement mode",
];

/// All tables of SHOW.
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

/// Rejected commands of the console: the gateway has longer texts, with a hint.
const COMMANDS: &[&str] = &[
    "SHOW nonsense",
    "nonsense",
    "PAUSE missing",
    "RESUME missing",
    "KILL missing",
    "DISABLE missing",
    "ENABLE missing",
    "RECONNECT missing",
    "WAIT_CLOSE missing",
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

/// PgBouncer or the gateway.
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

/// Starts both with this file; PgBouncer is the first.
fn both(program: &str, ini: &str) -> [Subject; 2] {
    let common = format!(
        "[databases]\nshop = $PG dbname=postgres user=postgres\nclosed = host=127.0.0.1 port=1\n\
         lost = $PG dbname=differ_lost user=postgres\nmistaken = $PG dbname=postgres user=differ_login password=wrong\n\
         [users]\nother = pool_mode=session max_user_connections=7\n[pgbouncer]\n\
         auth_type = md5\nauth_file = $DIR/users.txt\nadmin_users = app\nserver_login_retry = 1\npool_mode = transaction\n{ini}"
    );
    let tidegate = IniGateway::with(&Setup { ini: &common, files: FILES, ..Setup::default() });
    let address = tidegate.address();
    [pgbouncer(program, &common), Subject { _process: tidegate.into_process(), address }]
}

fn pgbouncer(program: &str, ini: &str) -> Subject {
    use std::os::unix::fs::PermissionsExt as _;
    for _ in 0..5 {
        let folder = tempfile::tempdir().expect("a folder");
        // PgBouncer refuses to run as root, and another user must be able to read its files.
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755))
            .expect("the test owns the folder");
        let port = free_port();
        for (name, text) in FILES {
            std::fs::write(folder.path().join(name), text).expect("the folder can be written");
        }
        let file: PathBuf = folder.path().join("pgbouncer.ini");
        // PgBouncer does not allow a section twice, so that the lines go to the end of the last one.
        let pgbouncer_ini = format!("{ini}\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n");
        std::fs::write(&file, expand(&pgbouncer_ini, folder.path())).expect("the folder can be written");
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

/// The path of PgBouncer; prints the reason if none is found.
fn program() -> Option<String> {
    if let Ok(named) = std::env::var(VARIABLE) {
        return Some(named);
    }
    let installed: Vec<&str> = PATHS.iter().copied().filter(|place| Path::new(place).exists()).collect();
    if let Some(place) = installed.iter().find(|place| version(place) >= OLDEST) {
        return Some((*place).to_owned());
    }
    let (major, minor) = OLDEST;
    eprintln!(
        "nothing is compared with PgBouncer: of {PATHS:?} there are {installed:?}, none of version {major}.{minor} or newer; \
         {VARIABLE} may name one"
    );
    None
}

/// The major and the minor version. PgBouncer does not start with unknown keys.
fn version(program: &str) -> (u32, u32) {
    let output = Command::new(program).arg("--version").output().expect("PgBouncer can be started").stdout;
    let output = String::from_utf8_lossy(&output).into_owned();
    let mut numbers = output.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// The text of an error or of a closed connection.
fn describe(error: &ClientError) -> String {
    match error {
        ClientError::Refused(fields) => format!("{} {}: {}", fields.severity, fields.code, fields.message),
        ClientError::Closed => "closed".to_owned(),
        other => format!("{other}"),
    }
}

fn login(startup: &Startup) -> String {
    startup.try_connect().map_or_else(|error| describe(&error), |_| "accepted".to_owned())
}

/// The replies up to the end of the query or of the connection.
fn replies(client: &mut RawClient) -> String {
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
            Err(error) => {
                all.push(describe(&error));
                return all.join(", ");
            }
        }
    }
}

fn query(client: &mut RawClient, sql: &str) -> String {
    client.send(&Frames::new().query(sql));
    replies(client)
}

/// The differences found so far.
#[derive(Default)]
struct Differences(Vec<(String, String, String)>);

impl Differences {
    fn compare(&mut self, case: &str, subjects: &[Subject; 2], observe: impl Fn(&Subject) -> String) {
        let [pgbouncer, tidegate] = [observe(&subjects[0]), observe(&subjects[1])];
        println!("{case}\n    PgBouncer: {pgbouncer}\n    Tidegate:  {tidegate}");
        if pgbouncer != tidegate {
            self.0.push((case.to_owned(), pgbouncer, tidegate));
        }
    }

    /// Compares the columns of a table. The gateway has those of PgBouncer 1.25; later versions may have further ones.
    fn compare_table(&mut self, table: &str, subjects: &[Subject; 2]) {
        let [pgbouncer, tidegate] = [columns(&subjects[0], table), columns(&subjects[1], table)];
        println!("SHOW {table}\n    PgBouncer: {pgbouncer:?}\n    Tidegate:  {tidegate:?}");
        if pgbouncer != tidegate {
            self.0.push((format!("SHOW {table}"), format!("{pgbouncer:?}"), format!("{tidegate:?}")));
        }
    }
}

/// A compared observation: its name, and a function that makes it.
type Row = (&'static str, fn(&Subject) -> String);

/// Rows of tables while a client is in a transaction of `shop`.
const ROWS: &[Row] = &[
    ("names of TOTALS", |subject| rows(subject, "TOTALS", &["name"], |_| true)),
    ("names of LISTS", |subject| rows(subject, "LISTS", &["list"], |_| true)),
    ("databases", |subject| {
        let columns = "name host database force_user pool_size min_pool_size reserve_pool_size server_lifetime pool_mode \
                       load_balance_hosts max_connections current_connections max_client_connections \
                       current_client_connections paused disabled";
        rows(subject, "DATABASES", &split(columns), |_| true)
    }),
    ("the console's port", |subject| {
        let shown = subject.console().show("DATABASES");
        let port = shown.iter().find(|row| row["name"] == "pgbouncer").map(|row| row["port"].clone());
        (port == Some(subject.address.port().to_string())).to_string()
    }),
    ("users", |subject| {
        let columns = "name pool_mode max_user_connections current_connections max_user_client_connections \
                       current_client_connections";
        rows(subject, "USERS", &split(columns), |_| true)
    }),
    ("size of a user's pools", |subject| {
        rows(subject, "USERS", &["name", "pool_size", "reserve_pool_size"], |row| row["name"] == "other")
    }),
    ("pools", |subject| {
        let columns = "database user cl_active cl_waiting cl_active_cancel_req cl_waiting_cancel_req sv_active \
                       sv_active_cancel sv_being_canceled sv_idle sv_used sv_tested sv_login maxwait pool_mode \
                       load_balance_hosts";
        rows(subject, "POOLS", &split(columns), |_| true)
    }),
    ("statistics of the console", |subject| {
        let columns = "database server_assignment_count xact_count query_count bytes_received bytes_sent xact_time \
                       query_time wait_time";
        rows(subject, "STATS_TOTALS", &split(columns), |row| row["database"] == "pgbouncer")
    }),
    ("items of LISTS", |subject| {
        let is_kept = |row: &BTreeMap<String, String>| !row["list"].starts_with("free_");
        rows(subject, "LISTS", &["list", "items"], is_kept)
    }),
    ("this end of a client's connection", |subject| {
        let shown = subject.console().show("CLIENTS");
        let pgbouncer_ini = |row: &BTreeMap<String, String>| row["local_port"] == subject.address.port().to_string();
        shown.iter().map(|row| format!("{} {}", row["local_addr"], pgbouncer_ini(row))).collect::<Vec<_>>().join(", ")
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

/// The columns of the selected rows as text, sorted, because the order of rows is not defined.
fn rows(
    subject: &Subject,
    table: &str,
    columns: &[&str],
    is_selected: fn(&BTreeMap<String, String>) -> bool,
) -> String {
    let shown = subject.console().show(table);
    let text = |row: &BTreeMap<String, String>| {
        columns.iter().map(|column| row[*column].as_str()).collect::<Vec<_>>().join("|")
    };
    let mut texts: Vec<_> = shown.iter().filter(|row| is_selected(row)).map(text).collect();
    texts.sort();
    texts.join(", ")
}

fn split(text: &'static str) -> Vec<&'static str> {
    text.split_whitespace().collect()
}

/// The names and types of the columns of a table.
fn columns(subject: &Subject, table: &str) -> Vec<(String, u32)> {
    let mut console = subject.console();
    let outcome = console.query(&format!("SHOW {table}"));
    let description = outcome.messages.iter().find(|message| message.tag == b'T');
    description.map(Message::column_types).unwrap_or_default()
}

#[test]
fn all_differences_from_pgbouncer_are_documented() {
    let Some(program) = program() else { return };
    let mut differences = Differences::default();
    tables(&program, &mut differences);
    logins(&program, &mut differences);
    unreachable(&program, &mut differences);
    unknown_users(&program, &mut differences);
    limits(&program, &mut differences);
    timeouts(&program, &mut differences);
    let documented = || DOCUMENTED.iter().chain(COMMANDS);
    let undocumented: Vec<_> =
        differences.0.iter().filter(|(case, ..)| !documented().any(|name| name == case)).collect();
    for (case, pgbouncer, tidegate) in &undocumented {
        println!("DIFFERS: {case}\n    PgBouncer: {pgbouncer}\n    Tidegate:  {tidegate}");
    }
    let missing_cases: Vec<_> =
        documented().filter(|name| differences.0.iter().all(|(case, ..)| case != **name)).collect();
    println!(
        "{} differences, {} of them undocumented; documented but not found: {missing_cases:?}",
        differences.0.len(),
        undocumented.len()
    );
    assert!(undocumented.is_empty(), "differences are missing in docs/src/migration/pgbouncer.md");
}

fn tables(program: &str, differences: &mut Differences) {
    let subjects = both(program, "");
    let clients = subjects.each_ref().map(|subject| {
        let mut client = subject.login("shop").connect();
        client.ok("begin");
        client
    });
    for table in TABLES {
        differences.compare_table(table, &subjects);
    }
    let [pgbouncer, tidegate] = subjects.each_ref().map(|subject| {
        subject.console().show("CONFIG").into_iter().map(|row| row["key"].clone()).collect::<BTreeSet<_>>()
    });
    let missing: Vec<_> = pgbouncer.difference(&tidegate).cloned().collect();
    if !missing.is_empty() {
        differences.0.push(("keys of SHOW CONFIG".to_owned(), missing.join(", "), "are missing".to_owned()));
    }
    for (case, ask) in ROWS {
        differences.compare(case, &subjects, ask);
    }
    for command in COMMANDS {
        differences.compare(command, &subjects, |subject| query(&mut subject.console(), command));
    }
    drop(clients);
}

fn logins(program: &str, differences: &mut Differences) {
    let subjects = both(program, "");
    differences.compare("wrong password", &subjects, |subject| login(&subject.login("shop").password("wrong")));
    differences.compare("no such user", &subjects, |subject| login(&subject.login("shop").user("unknown")));
    differences.compare("no such database", &subjects, |subject| login(&subject.login("missing")));
    differences.compare("console without being admin", &subjects, |subject| {
        login(&subject.login("pgbouncer").user("other").password("word"))
    });
    differences
        .compare("unknown parameter", &subjects, |subject| login(&subject.login("shop").parameter("nonsense", "1")));
    differences.compare("a PAUSE and what it leaves", &subjects, |subject| {
        let mut console = subject.console();
        let output =
            ["PAUSE shop", "RESUME shop", "RECONNECT shop", "RELOAD", "DISABLE shop", "ENABLE shop", "WAIT_CLOSE shop"];
        output.map(|command| query(&mut console, command)).join(", ")
    });
    let paused = |command: &str, subject: &Subject| {
        let mut console = subject.console();
        console.ok(command);
        let shown = rows(subject, "DATABASES", &["name", "paused", "disabled"], |_| true);
        console.ok(&command.replace("PAUSE", "RESUME"));
        shown
    };
    differences.compare("databases while one is paused", &subjects, |subject| paused("PAUSE shop", subject));
    differences.compare("databases while all are paused", &subjects, |subject| paused("PAUSE", subject));
    differences.compare("disabled database", &subjects, |subject| {
        subject.console().ok("DISABLE shop");
        let refused = login(&subject.login("shop"));
        subject.console().ok("ENABLE shop");
        refused
    });
    differences.compare("KILL", &subjects, |subject| {
        let mut client = subject.login("shop").connect();
        client.ok("begin");
        subject.console().ok("KILL shop");
        let observe = replies(&mut client);
        subject.console().ok("RESUME shop");
        observe
    });
    differences.compare("SHUTDOWN WAIT_FOR_SERVERS", &subjects, |subject| {
        let mut client = subject.login("shop").connect();
        let mut busy = subject.login("shop").connect();
        busy.ok("begin");
        let mut console = subject.console();
        console.send(&Frames::new().query("SHUTDOWN WAIT_FOR_SERVERS"));
        replies(&mut console);
        query(&mut client, "select 1")
    });
}

/// Servers that reject the login or are unreachable.
fn unreachable(program: &str, differences: &mut Differences) {
    let server = server();
    server.sql("create role differ_login login password 'right' in role scram_login");
    let subjects = both(program, "query_wait_timeout = 3");
    for database in ["closed", "lost", "mistaken"] {
        for time in ["at first", "once more"] {
            let case = format!("a login to {database}, {time}");
            differences.compare(&case, &subjects, |subject| login(&subject.login(database)));
        }
    }
}

fn unknown_users(program: &str, differences: &mut Differences) {
    let subjects = both(program, "auth_type = any");
    differences.compare("any name is accepted", &subjects, |subject| login(&subject.login("shop").user("unknown")));
    differences.compare("an unknown user of the console with auth_type = any", &subjects, |subject| {
        login(&subject.login("pgbouncer").user("unknown"))
    });
    let subjects = both(program, "auth_type = trust");
    differences
        .compare("trust and an unknown user", &subjects, |subject| login(&subject.login("shop").user("unknown")));
    let subjects = both(program, "auth_type = plain");
    differences.compare("plain and a wrong password", &subjects, |subject| {
        // The text of one contains that of the other and the name of the user.
        login(&subject.login("shop").password("wrong")).contains("password authentication failed").to_string()
    });
}

fn limits(program: &str, differences: &mut Differences) {
    for limit in ["max_client_conn = 1", "max_db_client_connections = 1", "max_user_client_connections = 1"] {
        let subjects = both(program, limit);
        differences.compare(limit, &subjects, |subject| {
            // The probe connection of the start may still be open.
            let mut first = None;
            eventually("a client is accepted", || {
                first = subject.login("shop").try_connect().ok();
                first.is_some()
            });
            login(&subject.login("shop"))
        });
    }
    let subjects = both(program, "max_packet_size = 1000");
    differences.compare("a message that is too long", &subjects, |subject| {
        query(&mut subject.login("shop").connect(), &format!("select length('{}')", "x".repeat(2000)))
    });
    differences
        .compare("SET conffile", &subjects, |subject| query(&mut subject.console(), "SET conffile = '/missing'"));
    let subjects = both(program, "pool_mode = statement");
    differences
        .compare("BEGIN in statement mode", &subjects, |subject| query(&mut subject.login("shop").connect(), "begin"));
    let subjects = both(program, "disable_pqexec = 1");
    differences.compare("disable_pqexec", &subjects, |subject| query(&mut subject.login("shop").connect(), "select 1"));
}

fn timeouts(program: &str, differences: &mut Differences) {
    for (limit, sql) in [("query_timeout = 1", "select pg_sleep(60)"), ("idle_transaction_timeout = 1", "begin")] {
        let subjects = both(program, limit);
        differences.compare(limit, &subjects, |subject| {
            let mut client = subject.login("shop").connect();
            let first = query(&mut client, sql);
            if sql == "begin" { replies(&mut client) } else { first }
        });
    }
    for (limit, begins) in [("transaction_timeout = 1", true), ("client_idle_timeout = 1", false)] {
        if begins && version(program) < (1, 25) {
            continue;
        }
        let subjects = both(program, limit);
        differences.compare(limit, &subjects, |subject| {
            let mut client = subject.login("shop").connect();
            query(&mut client, if begins { "begin" } else { "select 1" });
            replies(&mut client)
        });
    }
    let subjects = both(program, "query_wait_timeout = 1\ndefault_pool_size = 1");
    differences.compare("query_wait_timeout = 1", &subjects, |subject| {
        let mut holder = subject.login("shop").connect();
        holder.ok("begin");
        query(&mut subject.login("shop").connect(), "select 1")
    });
    let subjects = both(program, "client_login_timeout = 1");
    differences.compare("client_login_timeout = 1", &subjects, |subject| replies(&mut subject.login("shop").open()));
}
