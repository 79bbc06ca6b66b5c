//! Postgres as the sink.

use rustix::process::Signal;
use tidegate_sandbox::{Cluster, Postgres, ShutdownMode};
use tidegate_testkit::{Authority, Fixture, Gateway};

use crate::delivery_table::DeliveryTable;
use crate::process::{Stream, TempFolder, eventually, numbers};

fn fixture() -> Fixture {
    Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 18)
}

fn url(fixture: &Fixture) -> String {
    format!("postgres://postgres@127.0.0.1:{}/postgres", fixture.server.port())
}

#[test]
fn records_become_rows_in_order_per_key() {
    let (folder, deliveries) = (TempFolder::new(), DeliveryTable::new());
    let file = folder.write("in.ndjson", &numbers(0..2_000, 40));
    let arguments = ["--from", &file, "--key", "/k", "--to", &deliveries.url(), "--sql", &deliveries.sql()];
    Stream::run(arguments.iter().chain(&["--param", "/k", "--param", "/n"])).expect(0);
    deliveries.check(0..2_000);
    assert_eq!(deliveries.count(), 2_000);
}

#[test]
fn values_are_converted_to_the_column_types() {
    let (folder, fixture) = (TempFolder::new(), fixture());
    let table = fixture.create_table("a int, b numeric, c timestamptz, d jsonb, e int[], f text, g bool, h text");
    let line = r#"{"a":7,"b":1.25,"c":"2026-01-31T12:00:00Z","d":{"x":[1,null]},"e":"{1,2}","f":null,"g":true}"#;
    let file = folder.write("in.ndjson", &format!("{line}\n"));
    let sql = format!("insert into {table} values ($1,$2,$3,$4,$5,$6,$7,$8)");
    let url = url(&fixture);
    let params = ["/a", "/b", "/c", "/d", "/e", "/f", "/g", "value"].into_iter().flat_map(|part| ["--param", part]);
    Stream::run(["--from", &file, "--to", &url, "--sql", &sql].into_iter().chain(params)).expect(0);
    let sql_check = format!("select a, b, c at time zone 'UTC', d, e[2], f is null, g, h = '{line}' from {table}");
    let rows = fixture.server.client().ok(&sql_check).rows;
    assert_eq!(rows, [["7", "1.25", "2026-01-31 12:00:00", "{\"x\": [1, null]}", "2", "t", "t", "t"]]);
}

#[test]
fn value_of_the_wrong_type_is_not_retried() {
    let (folder, fixture) = (TempFolder::new(), fixture());
    let table = fixture.create_table("n int");
    let file = folder.write("in.ndjson", "{\"n\":1}\n{\"n\":\"two\"}\n{\"n\":3}\n");
    let (sql, url, dead) = (format!("insert into {table} values ($1)"), url(&fixture), folder.path("dead"));
    let arguments = ["--from", &file, "--to", &url, "--sql", &sql, "--param", "/n", "--dead-letter", &dead];
    Stream::run(arguments).expect(3);
    assert_eq!(fixture.server.value(&format!("select sum(n) from {table}")), "4");
    let letter: serde_json::Value = serde_json::from_str(folder.read("dead").trim()).unwrap();
    assert_eq!(letter["attempts"], 1);
    assert!(letter["error"].as_str().unwrap().starts_with("22P02: invalid input syntax"), "{letter}");
}

#[test]
fn invalid_statement_is_an_error_at_start() {
    let (folder, fixture) = (TempFolder::new(), fixture());
    let (file, url) = (folder.write("in.ndjson", "{}\n"), url(&fixture));
    for (sql, text) in
        [("insert into no_such_table values ($1)", "42P01"), ("select $1::int, $2::int", "has 2 parameters")]
    {
        let ended = Stream::run(["--from", &file, "--to", &url, "--sql", sql, "--param", "/n"]).expect(1);
        assert!(ended.errors.contains(text) && ended.errors.contains("cannot open the sink"), "{}", ended.errors);
    }
    let unknown = format!("{}no_such_database", url.trim_end_matches("postgres"));
    let ended = Stream::run(["--from", &file, "--to", &unknown, "--sql", "select 1"]).expect(1);
    assert!(ended.errors.contains("cannot open the sink: cannot connect") && ended.errors.contains("no_such_database"));
}

/// A sink that is away at the start is tried again.
#[test]
fn sink_that_is_away_at_the_start_is_awaited() {
    let folder = TempFolder::new();
    // The table survives the kills.
    let builder = tidegate_sandbox::Postgres::builder().version(tidegate_sandbox::Major(18));
    let mut server = builder.setting("synchronous_commit", "on").start().unwrap();
    server.simple_query("create table t (n int)").unwrap();
    let (file, url) = (folder.write("in.ndjson", &numbers(0..20, 2)), server.url());
    server.kill9().unwrap();
    let stream = Stream::start(["--from", &file, "--to", &url, "--sql", "insert into t values ($1)", "--param", "/n"]);
    eventually("the attempt is logged", || stream.errors().matches("the sink cannot be used yet").count() >= 2);
    assert!(stream.errors().contains("cannot open the sink: cannot connect: 127.0.0.1"), "{}", stream.errors());
    server.restart().unwrap();
    stream.wait().expect(0);
    assert_eq!(server.simple_query("select count(*) from t").unwrap()[0][0].as_deref(), Some("20"));
    // A stop ends the wait.
    server.kill9().unwrap();
    let stream = Stream::start(["--from", &file, "--to", &url, "--sql", "insert into t values ($1)", "--param", "/n"]);
    eventually("the attempt is logged", || stream.errors().contains("the sink cannot be used yet"));
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
}

/// A failing statement does not fail the other records of its batch, which are retried one by one.
#[test]
fn batch_is_a_transaction() {
    let (folder, fixture) = (TempFolder::new(), fixture());
    let table = fixture.create_table("n int check (n <> 70)");
    let file = folder.write("in.ndjson", &numbers(0..200, 2));
    let (sql, url, dead) = (format!("insert into {table} values ($1)"), url(&fixture), folder.path("dead"));
    let arguments = ["--from", &file, "--key", "/k", "--to", &url, "--sql", &sql, "--param", "/n", "--batch", "100"];
    let more = ["--connections", "1", "--attempts", "2", "--retry-wait", "1ms", "--dead-letter", &dead];
    Stream::run(arguments.iter().chain(&more)).expect(3);
    let sql_check = format!("select count(*) || ' ' || count(distinct n) from {table}");
    assert_eq!(fixture.server.value(&sql_check), "199 199");
    assert_eq!(folder.read("dead").lines().count(), 1);
}

#[test]
fn terminated_connections_lose_no_record() {
    let (folder, deliveries) = (TempFolder::new(), DeliveryTable::new());
    let file = folder.write("in.ndjson", &numbers(0..200, 20));
    let (url, sql, name) = (deliveries.url(), deliveries.sql(), deliveries.fixture.name("cut"));
    let arguments = ["--from", &file, "--follow", "--key", "/k", "--to", &url, "--sql", &sql, "--param", "/k"];
    let more = ["--param", "/n", "--name", &name, "--attempts", "0", "--retry-wait", "1ms"];
    let stream = Stream::start(arguments.iter().chain(&more));
    for round in 1..=3 {
        eventually("the existing records arrive", || deliveries.distinct() == round * 200);
        let of_stream = format!("application_name = 'tidegate stream {name}'");
        deliveries
            .fixture
            .server
            .sql(&format!("select pg_terminate_backend(pid) from pg_stat_activity where {of_stream}"));
        folder.append("in.ndjson", &numbers(round * 200..(round + 1) * 200, 20));
    }
    eventually("the last records arrive", || deliveries.distinct() == 800);
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
    deliveries.check(0..800);
}

/// A primary and a replica with a table.
fn primary_and_replica() -> Cluster {
    let builder = Postgres::builder().setting("wal_retrieve_retry_interval", "50ms").setting("shared_buffers", "16MB");
    let builder = builder.setting("synchronous_commit", "on");
    let cluster = Cluster::start(&builder.hba("local all all trust\nhost all all 127.0.0.0/8 trust"), 1).unwrap();
    cluster
        .primary()
        .simple_query("create table t (id bigint generated always as identity, k text, n bigint)")
        .unwrap();
    cluster.catch_up(1).unwrap();
    cluster
}

fn distinct(server: &Postgres) -> String {
    server.simple_query("select count(distinct n) from t").unwrap()[0][0].clone().unwrap()
}

/// Records in flight at a failover are repeated; the first deliveries of each key are in order.
fn check_order(server: &Postgres) {
    let order = "select count(*) from (select n, lag(n) over (partition by k order by first) before from \
                 (select k, n, min(id) first from t group by k, n) firsts) pairs where before > n";
    assert_eq!(server.simple_query(order).unwrap()[0][0].as_deref(), Some("0"));
}

#[test]
fn sink_follows_the_primary() {
    let mut cluster = primary_and_replica();
    let folder = TempFolder::new();
    let file = folder.write("in.ndjson", &numbers(0..200, 20));
    let [one, other] = [0, 1].map(|index| cluster.server(index).port());
    let url = format!("postgres://postgres@127.0.0.1:{one},127.0.0.1:{other}/postgres");
    let sql = "insert into t (k, n) values ($1, $2::bigint)";
    let arguments = ["--from", &file, "--follow", "--key", "/k", "--to", &url, "--sql", sql, "--name", "moves"];
    let more = ["--param", "/k", "--param", "/n", "--attempts", "0", "--retry-wait", "1ms"];
    let stream = Stream::start(arguments.iter().chain(&more));
    eventually("the existing records arrive", || distinct(cluster.primary()) == "200");
    // The primary shuts down while it works, and its confirmed rows reach the replica.
    folder.append("in.ndjson", &numbers(200..2_000, 20));
    cluster.server(0).begin_shutdown(ShutdownMode::Fast);
    cluster.server_mut(0).wait_for_shutdown().unwrap();
    cluster.promote(1).unwrap();
    folder.append("in.ndjson", &numbers(2_000..2_100, 20));
    eventually("the remaining records reach the new primary", || distinct(cluster.server(1)) == "2100");
    check_order(cluster.server(1));
    stream.signal(Signal::TERM);
    stream.wait().expect(0);
}

/// The gateway follows the primary, so that the stream does not have to.
#[test]
fn stream_in_a_gateway_follows_the_primary() {
    let mut cluster = primary_and_replica();
    let folder = TempFolder::new();
    let file = folder.write("in.ndjson", &numbers(0..200, 20));
    let hosts = [0, 1].map(|index| format!("127.0.0.1:{}", cluster.server(index).port()));
    let gateway = Gateway::start(
        env!("CARGO_BIN_EXE_tidegate"),
        &format!(
            "[auth]\nmethod = \"trust\"\n[databases.app]\nhosts = {hosts:?}\ndbname = \"postgres\"\n\
             probe_interval = \"50ms\"\nprobe_timeout = \"15s\"\nfailover_wait = \"120s\"\nconnect_retry = \"50ms\"\n\
             sslmode = \"disable\"\n[[streams]]\nname = \"moves\"\nfrom = \"{file}\"\nfollow = true\nkey = \"/k\"\n\
             to = \"gateway://postgres@app\"\nsql = \"insert into t (k, n) values ($1, $2::bigint)\"\n\
             params = [\"/k\", \"/n\"]\nattempts = 0\nretry_wait = \"1ms\"\n"
        ),
    );
    eventually("the existing records arrive", || distinct(cluster.primary()) == "200");
    // The primary is killed while it works. The replica must have the rows that it confirmed to the stream.
    cluster.primary().simple_query("alter system set synchronous_standby_names = '*'").unwrap();
    cluster.primary().simple_query("select pg_reload_conf()").unwrap();
    folder.append("in.ndjson", &numbers(200..2_000, 20));
    eventually("the stream is working", || distinct(cluster.primary()) != "200");
    cluster.server_mut(0).kill9().unwrap();
    cluster.promote(1).unwrap();
    folder.append("in.ndjson", &numbers(2_000..2_100, 20));
    eventually("the remaining records reach the new primary", || distinct(cluster.server(1)) == "2100");
    check_order(cluster.server(1));
    let streams = gateway.show("STREAMS");
    assert_eq!((streams[0]["state"].as_str(), streams[0]["dead_lettered"].as_str()), ("running", "0"), "{streams:?}");
}

/// The first host accepts connections and does not answer, like a machine whose Postgres hangs.
#[test]
fn silent_host_uses_only_its_own_connect_timeout() {
    let (folder, fixture) = (TempFolder::new(), fixture());
    let table = fixture.create_table("n int");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (file, sql) = (folder.write("in.ndjson", &numbers(0..10, 2)), format!("insert into {table} values ($1)"));
    let (silent, port) = (silent.local_addr().unwrap(), fixture.server.port());
    let url = format!("postgres://postgres@{silent},127.0.0.1:{port}/postgres?connect_timeout=1");
    Stream::run(["--from", &file, "--to", &url, "--sql", &sql, "--param", "/n", "--connections", "1"]).expect(0);
    assert_eq!(fixture.server.value(&format!("select count(*) from {table}")), "10");
    let url = format!("postgres://postgres@{silent},127.0.0.1:1/postgres?connect_timeout=1");
    let stream = Stream::start(["--from", &file, "--to", &url, "--sql", &sql, "--param", "/n"]);
    let reasons = format!("{silent}: no answer within 1s; 127.0.0.1:1: ");
    eventually("the reasons of both hosts are logged", || stream.errors().contains(&reasons));
}

#[test]
fn writable_host_is_chosen_of_several() {
    let (folder, fixture) = (TempFolder::new(), fixture());
    let table = fixture.create_table("n int");
    // This role sees the server as a standby.
    let reader = fixture.create_role("secret", "scram_login");
    fixture.server.sql(&format!("grant insert on {table} to {reader}"));
    fixture.server.sql(&format!("alter role {reader} set default_transaction_read_only = on"));
    let (file, sql) = (folder.write("in.ndjson", &numbers(0..4, 2)), format!("insert into {table} values ($1)"));
    let port = fixture.server.port();
    let start = |hosts: &str, more: &str| {
        let url = format!("postgres://{reader}:secret@{hosts}/postgres?{more}");
        Stream::start(["--from", &file, "--to", &url, "--sql", &sql, "--param", "/n", "--attempts", "1"])
    };
    let (one, both) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{port},localhost:{port}"));
    // The name may have other addresses, where no server listens.
    let (first, second) =
        (format!("127.0.0.1:{port}: it takes no writes; "), format!("localhost:{port} (127.0.0.1): "));
    // A failover may be under way, so the hosts are tried again.
    let awaits = |stream: Stream, parts: &[&str]| {
        eventually("the reason is logged", || parts.iter().all(|part| stream.errors().contains(part)));
    };
    awaits(start(&both, ""), &[&first, &format!("{second}it takes no writes")]);
    awaits(start(&one, "target_session_attrs=read-write"), &["it takes no writes"]);
    // The server is a primary, and any server is accepted: the error of the statement is reported.
    for more in ["target_session_attrs=any", "target_session_attrs=primary"] {
        let errors = start(&both, more).wait().expect(1).errors;
        assert!(errors.contains("25006"), "{more}: {errors}");
    }
}

#[test]
fn server_certificate_is_checked() {
    let (folder, fixture) = (TempFolder::new(), fixture());
    let table = fixture.create_table("n int");
    // The server accepts this role only over TLS.
    let role = fixture.create_role("secret", "tls_only");
    fixture.server.sql(&format!("grant insert on {table} to {role}"));
    let (file, sql) = (folder.write("in.ndjson", &numbers(0..10, 2)), format!("insert into {table} values ($1)"));
    let run = |host: &str, ssl: &str| {
        let url = format!("postgres://{role}:secret@{host}:{}/postgres?{ssl}", fixture.server.port());
        Stream::run(["--from", &file, "--key", "/k", "--to", &url, "--sql", &sql, "--param", "/n"])
    };
    let count = || fixture.server.value(&format!("select count(*) from {table}"));
    let trusted = format!("sslrootcert={}", fixture.server.authority().ca().display());
    let other_authority = Authority::new();
    let untrusted = format!("sslrootcert={}", other_authority.ca().display());
    run("127.0.0.1", "sslmode=require").expect(0);
    assert_eq!(count(), "10");
    run("localhost", &format!("sslmode=verify-full&{trusted}")).expect(0);
    assert_eq!(count(), "20");
    for (ssl, text) in [
        ("sslmode=disable".to_owned(), "no encryption"),
        (format!("sslmode=verify-ca&{untrusted}"), "invalid peer certificate"),
    ] {
        let ended = run("127.0.0.1", &ssl).expect(1);
        assert!(ended.errors.contains("cannot open the sink") && ended.errors.contains(text), "{}", ended.errors);
    }
    assert_eq!(count(), "20");
}
