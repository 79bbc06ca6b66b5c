//! Dashboards and alert rules: they parse, and each metric that they name is exported.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Resource, getrlimit, setrlimit};
use tidegate_testkit::{FaultyServer, Gateway, eventually, free_address};

fn monitoring() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "..", "packaging", "monitoring"].iter().collect()
}

/// Names of our metrics in a text, without the suffixes of histograms.
fn names(text: &str, found: &mut BTreeSet<String>) {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for word in text.split(|c: char| !is_part(c)) {
        let is_metric = ["pgbouncer_", "tidegate_", "process_"].iter().any(|prefix| word.starts_with(prefix));
        if is_metric {
            let name = word.strip_suffix("_bucket").unwrap_or(word);
            found.insert(name.to_owned());
        }
    }
}

/// The expressions of a dashboard, at any depth.
fn expressions(value: &serde_json::Value, found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                match value.as_str() {
                    Some(text) if name == "expr" || name == "query" => found.push(text.to_owned()),
                    _ => expressions(value, found),
                }
            }
        }
        serde_json::Value::Array(values) => values.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

fn scrape(http: SocketAddr) -> String {
    let mut page = String::new();
    let mut socket = TcpStream::connect(http).expect("the endpoint accepts");
    write!(socket, "GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").expect("the request is sent");
    socket.read_to_string(&mut page).expect("the endpoint answers");
    page
}

/// OP-29: Clients choose their application names: beyond the limit they share a series, and names of clients that have left are
/// forgotten.
#[test]
fn series_stay_bounded_with_10_000_client_names() {
    const CONNECTED: usize = 1100;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("the hard limit is allowed");
    let server = FaultyServer::answering();
    let http = free_address(13_000..14_000);
    let config = format!("size = 1\n[metrics]\naddresses = [\"{http}\"]\n[log]\nlevel = \"warn\"\n");
    let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), server.address(), &config);
    let connect = |number: usize| {
        let name = format!("application {number}");
        gateway.startup("postgres").parameter("application_name", &name).connect()
    };
    let series = |page: &str| page.lines().filter(|line| !line.starts_with('#')).count();
    let of_clients = |page: &str| {
        let lines = page.lines().filter(|line| line.starts_with("pgbouncer_client_connections{"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    // The first client adds the series of its pool.
    let mut clients = vec![connect(0)];
    let few = series(&scrape(http));
    for number in 1..10_000 {
        // The oldest client leaves.
        if clients.len() == CONNECTED {
            drop(std::mem::replace(&mut clients[number % CONNECTED], connect(number)));
        } else {
            clients.push(connect(number));
        }
    }
    let page = scrape(http);
    let found = of_clients(&page);
    assert!((1000..1100).contains(&found.len()), "{} series of clients", found.len());
    assert!(series(&page) < few + 1200, "{} series, {few} with a client", series(&page));
    let value = |line: &String| line.rsplit(' ').next().and_then(|text| text.parse::<f64>().ok()).expect("a number");
    let counted: f64 = found.iter().map(value).sum();
    assert!(counted >= 1100.0 && found.iter().any(|line| line.contains("(others)")), "{counted} clients are counted");
    clients.clear();
    eventually("the names are forgotten", || series(&scrape(http)) < few + 100);
}

/// OP-28, OP-30.
#[test]
fn dashboards_and_alerts_name_exported_metrics() {
    let server = FaultyServer::answering();
    let folder = tempfile::tempdir().expect("a folder");
    let http = free_address(13_000..14_000);
    let records = folder.path().join("records");
    fs::write(&records, "{\"id\": 1}\n").expect("the folder can be written");
    let config = format!(
        "size = 1\n[metrics]\naddresses = [\"{http}\"]\n[journal]\nfolder = \"{}\"\n\
         [[streams]]\nname = \"orders\"\nfrom = \"file:{}\"\nkey = \"/id\"\nto = \"http://{}/\"\n",
        folder.path().join("journal").display(),
        records.display(),
        free_address(14_000..15_000),
    );
    let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), server.address(), &config);
    let mut page = String::new();
    eventually("the stream has started", || {
        page = scrape(http);
        page.contains("tidegate_stream_state")
    });
    let exported: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let mut named = BTreeSet::new();
    names(&fs::read_to_string(monitoring().join("alerts.yaml")).expect("the rules"), &mut named);
    let mut dashboards = 0;
    for entry in fs::read_dir(monitoring().join("grafana")).expect("the dashboards") {
        let text = fs::read_to_string(entry.expect("an entry").path()).expect("a dashboard");
        let dashboard: serde_json::Value = serde_json::from_str(&text).expect("a dashboard is JSON");
        let mut found = Vec::new();
        expressions(&dashboard, &mut found);
        assert!(found.len() > 10 && dashboard["title"].is_string(), "{text}");
        found.iter().for_each(|expression| names(expression, &mut named));
        dashboards += 1;
    }
    let missing: Vec<_> = named.iter().filter(|name| !exported.contains(name.as_str())).collect();
    assert!(dashboards == 3 && named.len() > 40, "{dashboards} dashboards with {} metrics", named.len());
    assert!(missing.is_empty(), "not exported: {missing:?}\n{page}");
    drop(gateway);
}

/// OP-28: promtool is part of Prometheus; without it there is nothing to run.
#[test]
fn alert_rules_pass_their_tests() {
    let Ok(version) = Command::new("promtool").arg("--version").output() else {
        eprintln!("promtool is not installed: the alert rules are not checked");
        return;
    };
    assert!(version.status.success());
    for arguments in [["check", "rules", "alerts.yaml"], ["test", "rules", "alerts_test.yaml"]] {
        let output =
            Command::new("promtool").args(arguments).current_dir(monitoring()).output().expect("promtool runs");
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&text));
    }
    let text = |name: &str| fs::read_to_string(monitoring().join(name)).expect("a file of rules");
    let (rules, tests) = (text("alerts.yaml"), text("alerts_test.yaml"));
    for alert in rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        for case in ["fires", "is silent"] {
            assert!(tests.contains(&format!("name: {alert} {case}\n")), "{alert} {case}: no test");
        }
    }
}
