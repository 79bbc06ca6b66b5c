//! Log lines that operators and programs rely on: the start, disconnects, refusals, and fatal errors.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use serde_json::Value;
use tidegate_testkit::{Frames, Gateway, eventually, free_address, on_each_postgres, write_private};

fn scrape(address: SocketAddr) -> String {
    let mut socket = TcpStream::connect(address).expect("the endpoint accepts");
    write!(socket, "GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").expect("the request is sent");
    let mut page = String::new();
    socket.read_to_string(&mut page).expect("the endpoint answers");
    page
}

/// The first line of the log with this message, once it is there.
#[track_caller]
fn line_of(gateway: &Gateway, message: &str) -> Value {
    let mut found = Value::Null;
    eventually(message, || {
        let log = gateway.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        found = lines.into_iter().find(|line| line["message"] == message).unwrap_or_default();
        !found.is_null()
    });
    found
}

on_each_postgres! {
    fn start_line_names_version_and_addresses(fixture) {
        let gateway = fixture.gateway("size = 1\n[log]\nformat = \"json\"\n");
        let line = line_of(&gateway, "tidegate started");
        assert_eq!((&line["level"], &line["version"]), (&"INFO".into(), &env!("CARGO_PKG_VERSION").into()));
        assert_eq!(line["pid"], gateway.id());
        assert_eq!(line["config"], gateway.config_file().display().to_string());
        assert_eq!((&line["workers"], &line["databases"]), (&2.into(), &1.into()));
        assert_eq!(line["addresses"], gateway.address().to_string());
        assert!(line["io"] == "io_uring" || line["io"] == "epoll", "{line}");
        assert!(line["io_reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{line}");
    }

    /// A checkout timeout is one line with everything that a search needs, and it is counted.
    fn checkout_timeout_is_logged_and_counted(fixture) {
        let http = free_address(15_000..16_000);
        let gateway = fixture.gateway(&format!(
            "size = 1\n[timeouts]\ncheckout = \"200ms\"\n[log]\nformat = \"json\"\n[metrics]\naddresses = [\"{http}\"]\n"
        ));
        let mut holder = gateway.client("postgres");
        holder.ok("begin");
        let mut waiter = gateway.client("postgres");
        assert!(waiter.try_query("select 1").is_err());
        let line = line_of(&gateway, "client disconnected");
        for (field, value) in [
            ("level", "WARN"),
            ("database", "postgres"),
            ("user", "postgres"),
            ("reason", "checkout timeout"),
            ("sqlstate", "53300"),
        ] {
            assert_eq!(line[field], value, "{line}");
        }
        assert!(line["peer"].as_str().is_some_and(|peer| peer.starts_with("127.0.0.1:")), "{line}");
        assert!(line["error"].as_str().is_some_and(|error| error.starts_with("no server became free")), "{line}");
        let millis = |field: &str| line[field].as_u64().unwrap_or_else(|| panic!("{field}: {line}"));
        assert!(millis("wait_ms") >= 200 && millis("duration_ms") >= millis("wait_ms"), "{line}");
        let page = scrape(http);
        for line in [
            "tidegate_checkout_timeouts_total{database=\"postgres\"} 1",
            "tidegate_client_disconnects_total{reason=\"checkout timeout\"} 1",
        ] {
            assert!(page.lines().any(|known| known == line), "no {line}:\n{page}");
        }
    }

    fn checkout_timeout_names_a_pause(fixture) {
        let gateway = fixture.gateway("size = 1\n[timeouts]\ncheckout = \"200ms\"\n");
        let mut client = gateway.client("postgres");
        gateway.console().ok("PAUSE postgres");
        client.send(&Frames::new().query("select 1"));
        let refusal = client.expect_fatal("53300");
        assert!(refusal.hint.contains("RESUME") && !refusal.hint.contains("pool.size"), "{refusal:?}");
    }

    /// `/dev/full` fails as a full disk does.
    fn lines_of_a_full_disk_are_counted(fixture) {
        let http = free_address(15_000..16_000);
        let mut gateway = fixture.gateway(&format!(
            "size = 1\n[log]\nformat = \"json\"\nstderr = false\nfile = \"/dev/full\"\n[metrics]\naddresses = [\"{http}\"]\n"
        ));
        // Standard error has the lines instead.
        line_of(&gateway, "tidegate started");
        line_of(&gateway, "the log file cannot be written; lines are lost until it can");
        let count = |page: &str| {
            let line = page.lines().find_map(|line| line.strip_prefix("tidegate_log_lost_lines_total "));
            line.and_then(|value| value.parse::<u64>().ok()).expect("a count")
        };
        assert!(count(&scrape(http)) > 1);
        let file = gateway.config_file().with_file_name("later.log");
        gateway.set_config("log.file", file.display().to_string());
        gateway.console().ok("RELOAD");
        drop(gateway.client("postgres"));
        eventually("the file has the number of lost lines", || {
            let log = std::fs::read_to_string(&file).unwrap_or_default();
            let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
            lines.iter().any(|line| line["lost"].as_u64() > Some(1))
        });
    }

    /// Prometheus sees no increase of a series that begins at 1.
    fn reasons_of_alerts_begin_at_zero(fixture) {
        let http = free_address(15_000..16_000);
        let gateway = fixture.gateway(&format!("size = 1\n[metrics]\naddresses = [\"{http}\"]\n"));
        let page = scrape(http);
        for reason in ["max_clients", "max_clients_per_database", "max_clients_per_user", "max_clients_per_address"] {
            let line = format!("tidegate_client_refusals_total{{reason=\"{reason}\"}} 0");
            assert!(page.lines().any(|known| known == line), "no {line}:\n{page}");
        }
        assert!(page.contains("tidegate_client_disconnects_total{reason=\"server lost\"} 0\n"), "{page}");
        drop(gateway);
    }

    fn disconnect_has_user_and_duration(fixture) {
        let gateway = fixture.gateway("size = 1\n[log]\nformat = \"json\"\n");
        drop(gateway.client("postgres"));
        let line = line_of(&gateway, "client disconnected");
        assert_eq!((&line["level"], &line["database"]), (&"INFO".into(), &"postgres".into()), "{line}");
        assert!(line["duration_ms"].is_u64() && line["reason"].is_string() && line["wait_ms"].is_null(), "{line}");
    }

    fn refused_login_is_logged_and_counted(fixture) {
        let http = free_address(15_000..16_000);
        let gateway = fixture.gateway(&format!(
            "size = 1\n[listen]\nmax_clients = 1\n[log]\nformat = \"json\"\n[metrics]\naddresses = [\"{http}\"]\n"
        ));
        let mut only = None;
        // The connection that saw the gateway start may still be counted.
        eventually("a client is connected", || {
            only = gateway.startup("postgres").try_connect().ok();
            only.is_some()
        });
        assert!(gateway.startup("postgres").try_connect().is_err());
        let line = line_of(&gateway, "login refused");
        for (field, value) in [
            ("level", "WARN"),
            ("database", "postgres"),
            ("user", "postgres"),
            ("reason", "max_clients"),
            ("sqlstate", "53300"),
            ("error", "sorry, too many clients already"),
        ] {
            assert_eq!(line[field], value, "{line}");
        }
        assert!(line["peer"].is_string() && line["duration_ms"].is_u64(), "{line}");
        let page = scrape(http);
        let counted = "tidegate_client_refusals_total{reason=\"max_clients\"} ";
        let count = page.lines().find_map(|line| line.strip_prefix(counted)).and_then(|count| count.parse::<u64>().ok());
        assert!(count.is_some_and(|count| count >= 1), "{page}");
    }
}

/// Runs a gateway that cannot start. Returns its standard error.
fn failed_start(config: &str, options: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tidegate.toml");
    write_private(&file, config);
    let mut command = Command::new(Gateway::binary(env!("CARGO_BIN_EXE_tidegate")));
    let output = command.args(["run", "-c"]).arg(&file).args(options).output().expect("the binary starts");
    assert!(!output.status.success());
    String::from_utf8(output.stderr).expect("standard error is text")
}

/// OP-37.
#[test]
fn fatal_errors_are_json_lines_if_asked_for() {
    let holder = TcpListener::bind("127.0.0.1:0").expect("a port");
    let in_use = holder.local_addr().expect("an address");
    let valid = format!(
        "[listen]\naddresses = [\"{in_use}\"]\n[auth]\nmethod = \"trust\"\n[databases.shop]\nhost = \"127.0.0.1\"\n"
    );
    for (config, expected) in
        [(valid.as_str(), "cannot listen on"), ("[listen]\nadresses = []\n", "invalid configuration")]
    {
        let log = failed_start(config, &["--log-format", "json"]);
        let lines: Vec<Value> = log
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
            .collect();
        let last = lines.last().expect("a line");
        assert_eq!((&last["level"], &last["message"]), (&"ERROR".into(), &"fatal error".into()), "{log}");
        assert!(last["error"].as_str().is_some_and(|error| error.contains(expected)), "{log}");
        let text = failed_start(config, &[]);
        assert!(text.contains(&format!("tidegate: {expected}")), "{text}");
    }
}
