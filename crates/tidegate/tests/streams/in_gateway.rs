//! Streams in a gateway: they use its pool, appear on its console, and end with it.

use std::collections::BTreeMap;

use tidegate_testkit::{Fixture, Gateway, Signal};

use crate::process::{Stream, TempFolder, eventually, numbers};

fn fixture() -> Fixture {
    Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 18)
}

fn stream(gateway: &Gateway, name: &str) -> BTreeMap<String, String> {
    let streams = gateway.show("STREAMS");
    streams.into_iter().find(|stream| stream["name"] == name).unwrap_or_else(|| panic!("no stream {name}"))
}

/// A section `[[streams]]` from a file into a table, through the gateway.
fn section(name: &str, file: &str, table: &str, more: &str) -> String {
    format!(
        "[[streams]]\nname = \"{name}\"\nfrom = \"{file}\"\nto = \"gateway://postgres@postgres\"\nkey = \"/k\"\n\
         sql = \"insert into {table} values ($1, $2)\"\nparams = [\"/k\", \"/n\"]\n{more}"
    )
}

#[test]
fn stream_uses_the_pool_of_the_gateway() {
    let (folder, fixture) = (TempFolder::new(), fixture());
    let table = fixture.create_table("k text, n int");
    let file = folder.write("in.ndjson", &numbers(0..500, 10));
    let more = "follow = true\nconnections = 3\nretry_wait = \"1ms\"\nattempts = 0\n";
    let mut gateway = fixture.gateway(&format!("size = 2\n{}", section("orders", &file, &table, more)));
    let count = || fixture.server.value(&format!("select count(*) from {table}"));
    eventually("the rows arrive", || count() == "500");
    eventually("the console shows the count", || stream(&gateway, "orders")["done"] == "500");
    let row = stream(&gateway, "orders");
    assert_eq!((row["state"].as_str(), row["sink"].as_str()), ("running", "gateway://postgres@postgres"));
    assert_eq!((row["pending"].as_str(), row["restarts"].as_str()), ("0", "0"));
    eventually("the lag is zero", || stream(&gateway, "orders")["lag"] == "0");
    let clients = gateway.show("CLIENTS");
    let own_clients: Vec<_> =
        clients.iter().filter(|row| row["application_name"] == "tidegate stream orders").collect();
    assert!(!own_clients.is_empty() && own_clients.iter().all(|row| row["addr"] == "unix"), "{clients:?}");
    // Connections of the stream do not delay the shutdown.
    folder.append("in.ndjson", &numbers(500..600, 10));
    eventually("more rows arrive", || count() == "600");
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success(), "{}", gateway.log());
    assert_eq!(count(), "600");
}

#[test]
fn stream_logs_in_with_the_password_of_its_user() {
    let (folder, fixture) = (TempFolder::new(), fixture());
    let table = fixture.create_table("k text, n int");
    let file = folder.write("in.ndjson", &numbers(0..10, 2));
    let database = fixture.database_section("postgres", "postgres");
    let config = |password: &str, to: &str| {
        let stream = section("orders", &file, &table, "").replace("gateway://postgres@postgres", to);
        format!("{database}[users.postgres]\npassword = \"{password}\"\n{stream}")
    };
    let gateway = fixture.start(&config("postgres", "gateway://postgres@postgres"));
    eventually("the rows arrive", || fixture.server.value(&format!("select count(*) from {table}")) == "10");
    drop(gateway);
    let gateway = fixture.start(&config("postgres", "gateway://postgres:wrong@postgres"));
    eventually("the reason is logged", || gateway.log().contains("cannot open the sink"));
}

#[test]
fn failing_stream_is_restarted() {
    let (folder, fixture) = (TempFolder::new(), fixture());
    let table = fixture.name("later");
    let file = folder.write("in.ndjson", &numbers(0..10, 2));
    let gateway = fixture.gateway(&section("orders", &file, &table, ""));
    eventually("the console lists the stream", || !gateway.show("STREAMS").is_empty());
    eventually("the error is shown", || stream(&gateway, "orders")["last_error"].contains("42P01"));
    assert_eq!(gateway.client("postgres").ok("select 1").value(), "1");
    fixture.server.sql(&format!("create table {table} (k text, n int)"));
    eventually("the stream ends", || stream(&gateway, "orders")["state"] == "ended");
    assert_eq!(fixture.server.value(&format!("select count(*) from {table}")), "10");
    assert_ne!(stream(&gateway, "orders")["restarts"], "0");
    assert_eq!(stream(&gateway, "orders")["lag"], "0", "an ended stream has no lag");
    let tasks = gateway.show("TASKS");
    let row = tasks.iter().find(|row| row["path"] == "tidegate/streams").unwrap();
    assert_eq!(row["live"], "1", "the stream waits for commands");
    assert_eq!(row["restarts"], stream(&gateway, "orders")["restarts"]);
    assert_eq!(row["failed"], row["restarts"]);
}

#[test]
fn stream_command_uses_a_running_gateway() {
    let (folder, fixture) = (TempFolder::new(), fixture());
    let table = fixture.create_table("k text, n int");
    let file = folder.write("in.ndjson", &numbers(0..10, 2));
    let gateway = fixture.gateway("");
    let text = std::fs::read_to_string(gateway.config_file()).unwrap();
    let config = folder.write("tidegate.toml", &format!("{text}\n{}", section("orders", &file, &table, "")));
    Stream::run(["-c", &config, "orders"]).expect(0);
    assert_eq!(fixture.server.value(&format!("select count(*) from {table}")), "10");
}

#[test]
fn standard_input_is_rejected_in_a_gateway() {
    let fixture = fixture();
    let folder = TempFolder::new();
    let text = format!(
        "[listen]\naddresses = [\"127.0.0.1:0\"]\n{}[[streams]]\nname = \"a\"\nfrom = \"-\"\nto = \"-\"\n",
        fixture.database_section("postgres", "postgres")
    );
    let config = folder.write("tidegate.toml", &text);
    let output = std::process::Command::new(crate::process::binary()).args(["run", "-c", &config]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && errors.contains("`tidegate stream -c FILE a`"), "{errors}");
}
