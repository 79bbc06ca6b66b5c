//! The web console: login, rights, protection against other sites, events and changes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use serde_json::{Value, json};
use tidegate_testkit::{Gateway, TIMEOUT, eventually, free_address, on_each_postgres};

/// A browser without a page: it keeps the cookie.
struct Browser {
    address: SocketAddr,
    cookie: Option<String>,
}

/// Status, head and JSON of a response.
struct Answer {
    status: u16,
    head: String,
    body: Value,
}

impl Browser {
    fn new(address: SocketAddr) -> Self {
        Self { address, cookie: None }
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).expect("the web console accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let cookie = self.cookie.as_ref().map(|cookie| format!("cookie: {cookie}\r\n")).unwrap_or_default();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{cookie}{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        stream
            .write_all(head.as_bytes())
            .and_then(|()| stream.write_all(body.as_bytes()))
            .expect("the request is sent");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        let status = head.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
        Answer { status, head: head.to_owned(), body: serde_json::from_str(body).unwrap_or_default() }
    }

    fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &format!("host: {}\r\n", self.address), "")
    }

    /// As the page sends it.
    fn post(&self, path: &str, body: &Value) -> Answer {
        let address = self.address;
        let headers = format!("host: {address}\r\norigin: http://{address}\r\ncontent-type: application/json\r\n");
        self.send("POST", path, &headers, &body.to_string())
    }

    fn log_in(&mut self, user: &str, password: &str) -> u16 {
        let answer = self.post("/api/login", &json!({ "user": user, "password": password }));
        let cookie = answer.head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
        if let Some(cookie) = cookie {
            assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
            self.cookie = cookie.split(';').next().map(str::to_owned);
        }
        answer.status
    }

    /// The next events of a topic.
    fn events(&self, topic: &str, count: usize) -> Vec<Value> {
        let mut found = Vec::new();
        self.event(topic, |event| {
            found.push(event.clone());
            found.len() == count
        });
        found
    }

    /// The next event of a topic that `accept` accepts.
    fn event(&self, topic: &str, mut accept: impl FnMut(&Value) -> bool) -> Value {
        let mut stream = TcpStream::connect(self.address).expect("the web console accepts");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket");
        let cookie = self.cookie.as_deref().unwrap_or_default();
        let head =
            format!("GET /api/events?topic={topic} HTTP/1.1\r\nhost: {}\r\ncookie: {cookie}\r\n\r\n", self.address);
        stream.write_all(head.as_bytes()).expect("the request is sent");
        for line in BufReader::new(stream).lines() {
            let line = line.expect("an event");
            let event = line.strip_prefix("data: ").and_then(|data| serde_json::from_str(data).ok());
            if let Some(event) = event.filter(&mut accept) {
                return event;
            }
        }
        panic!("no event of {topic}");
    }
}

/// The rows of a table as objects.
fn rows(table: &Value) -> Vec<Value> {
    let columns: Vec<&str> = table["columns"].as_array().expect("columns").iter().filter_map(Value::as_str).collect();
    let row = |row: &Value| {
        let values = row.as_array().expect("a row").iter().cloned();
        Value::Object(columns.iter().map(|name| (*name).to_owned()).zip(values).collect())
    };
    table["rows"].as_array().expect("rows").iter().map(row).collect()
}

fn config(http: SocketAddr, more: &str) -> String {
    format!(
        "size = 2\n[admin]\nusers = [\"ann\", \"postgres\"]\nstats_users = [\"bob\"]\n[users.ann]\npassword = \"secret-a\"\n\
         [users.bob]\npassword = \"secret-b\"\n[users.eve]\npassword = \"secret-e\"\n\
         [admin.http]\naddresses = [\"{http}\"]\n{more}"
    )
}

fn endpoint() -> SocketAddr {
    free_address(16_000..17_000)
}

on_each_postgres! {
    /// OP-41.
    fn users_have_the_rights_of_the_console(fixture) {
        let http = endpoint();
        let gateway = fixture.gateway(&config(http, ""));
        let mut browser = Browser::new(http);
        assert!(browser.get("/api/session").body["user"].is_null());
        for path in ["/api/events?topic=pools", "/api/history", "/api/queries", "/api/records", "/api/config"] {
            assert_eq!(browser.get(path).status, 401, "{path}");
        }
        assert_eq!(browser.post("/api/action", &json!({ "action": "pause" })).status, 401);
        for (user, password) in [("ann", "secret-b"), ("ann", ""), ("nobody", "x")] {
            assert_eq!(browser.log_in(user, password), 401, "{user}");
        }
        assert_eq!(browser.log_in("eve", "secret-e"), 403, "the console does not know this user");
        assert_eq!(browser.log_in("bob", "secret-b"), 200);
        assert_eq!(browser.get("/api/session").body["may_change"], false);
        assert_eq!(browser.post("/api/action", &json!({ "action": "pause" })).status, 403);
        assert_eq!(browser.log_in("ann", "secret-a"), 200);
        assert_eq!(browser.get("/api/session").body["may_change"], true);
        assert_eq!(browser.post("/api/logout", &json!({})).status, 200);
        assert!(browser.get("/api/session").body["user"].is_null());
        assert_eq!(browser.get("/api/config").status, 401);
        let log = gateway.log();
        assert!(log.contains("web console: login refused") && log.contains("web console: command refused"), "{log}");
        assert!(!log.contains("secret-"), "{log}");
    }

    /// OP-39, OP-40.
    fn requests_of_other_sites_are_refused(fixture) {
        let http = endpoint();
        let gateway = fixture.gateway(&config(http, "hosts = [\"pool.example\"]\n"));
        let mut browser = Browser::new(http);
        assert_eq!(browser.log_in("ann", "secret-a"), 200);
        let json = "content-type: application/json\r\n";
        let action = "{\"action\":\"pause\"}";
        for (method, headers, status) in [
            ("POST", format!("host: {http}\r\n{json}"), 403),
            ("POST", format!("host: {http}\r\norigin: http://evil.example\r\n{json}"), 403),
            ("POST", format!("host: {http}\r\norigin: http://{http}\r\ncontent-type: text/plain\r\n"), 403),
            ("POST", format!("host: evil.example\r\norigin: http://evil.example\r\n{json}"), 421),
            ("GET", format!("host: {http}\r\norigin: http://{http}\r\n{json}"), 405),
        ] {
            assert_eq!(browser.send(method, "/api/action", &headers, action).status, status, "{method} {headers}");
        }
        assert!(gateway.show("STATE").iter().any(|row| row["key"] == "active" && row["value"] == "yes"));
        for host in ["pool.example:80", "localhost", "127.0.0.1"] {
            assert_eq!(browser.send("GET", "/api/session", &format!("host: {host}\r\n"), "").status, 200, "{host}");
        }
        let page = browser.get("/");
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(page.head.contains(header), "{header}: {}", page.head);
        }
        assert_eq!((page.status, browser.get("/app.js").status, browser.get("/../etc/passwd").status), (200, 200, 404));
    }

    /// OP-42.
    fn page_pauses_resumes_and_kills(fixture) {
        let http = endpoint();
        let gateway = fixture.gateway(&config(http, ""));
        let mut browser = Browser::new(http);
        assert_eq!(browser.log_in("ann", "secret-a"), 200);
        let act = |body: Value| browser.post("/api/action", &body);
        assert_eq!(act(json!({ "action": "pause", "name": "postgres" })).body["done"], true);
        assert!(gateway.show("DATABASES").iter().any(|row| row["name"] == "postgres" && row["paused"] == "1"));
        assert_eq!(act(json!({ "action": "resume", "name": "postgres" })).status, 200);
        let mut client = gateway.client("postgres");
        client.ok("begin");
        let seen = browser.event("clients", |table| {
            rows(table).iter().any(|row| row["database"] == "postgres" && row["state"] == "active")
        });
        let id = rows(&seen).iter().find(|row| row["database"] == "postgres").map(|row| row["id"].clone());
        assert_eq!(act(json!({ "action": "kill_client", "id": id })).status, 200);
        client.expect_fatal("57P01");
        let missing = act(json!({ "action": "kill", "name": "no such database" }));
        assert!(missing.status == 409 && missing.body["error"].as_str().is_some_and(|text| text.contains("does not exist")));
        assert_eq!(act(json!({ "action": "reload" })).status, 200);
        eventually("changes are logged", || {
            let log = gateway.log();
            ["PAUSE postgres", "KILL_CLIENT", "RELOAD"].iter().all(|command| {
                let parts = ["web console: command", "user=ann", command];
                log.lines().any(|line| parts.iter().all(|part| line.contains(part)))
            })
        });
    }

    fn events_show_waiting_clients(fixture) {
        let http = endpoint();
        let gateway = fixture.gateway(&config(http, "[pool]\nsize = 1\n").replacen("size = 2", "size = 1", 1));
        let mut browser = Browser::new(http);
        assert_eq!(browser.log_in("bob", "secret-b"), 200);
        let mut holder = gateway.client("postgres");
        holder.ok("begin; create temp table t()");
        let mut waiter = gateway.client("postgres");
        waiter.send(&tidegate_testkit::Frames::new().query("select 1"));
        let clients = browser.event("clients", |table| rows(table).iter().any(|row| row["state"] == "waiting"));
        assert_eq!(rows(&clients)[0]["state"], "waiting", "those that wait come first: {clients}");
        let overview = browser.event("overview", |event| event["point"]["waiting"] == 1);
        assert_eq!(overview["phase"], "active");
        let pools = rows(&overview["pools"]);
        let pool = pools.iter().find(|row| row["database"] == "postgres").expect("a pool");
        assert_eq!((&pool["cl_waiting"], &pool["pool_size"]), (&json!(1), &json!(1)), "{pool}");
        for topic in ["servers", "hosts", "journal", "streams", "shapes"] {
            browser.event(topic, |event| event["columns"].is_array() || event["table"]["columns"].is_array());
        }
        holder.ok("commit");
    }

    /// OP-44: Ten open pages cost what one costs: the event of a tick is made once.
    fn pages_share_the_events_of_a_tick(fixture) {
        let http = endpoint();
        let gateway = fixture.gateway(&config(http, ""));
        let mut browser = Browser::new(http);
        assert_eq!(browser.log_in("bob", "secret-b"), 200);
        let first = browser.event("overview", |event| event["at"].is_number())["at"].as_u64().expect("a time");
        let pages: Vec<Value> = std::thread::scope(|scope| {
            let pages: Vec<_> = (0..10)
                .map(|_| scope.spawn(|| browser.events("overview", 3)))
                .collect();
            pages.into_iter().flat_map(|page| page.join().expect("no panic")).collect()
        });
        let times: std::collections::BTreeSet<u64> = pages.iter().filter_map(|event| event["at"].as_u64()).collect();
        assert_eq!(pages.len(), 30);
        // Pages that begin to follow cause an event between two ticks, at most five per second.
        let seconds = (times.last().expect("an event") - first) / 1000 + 1;
        assert!(times.len() as u64 <= 5 * seconds + 1, "{times:?}");
        drop(gateway);
    }

    fn configuration_shows_what_a_reload_would_change(fixture) {
        let http = endpoint();
        let mut gateway = fixture.gateway(&config(http, ""));
        let mut browser = Browser::new(http);
        assert_eq!(browser.log_in("ann", "secret-a"), 200);
        assert_eq!(browser.get("/api/config").body["diff"], json!([]));
        gateway.set_config("timeouts.checkout", "7s");
        let answer = browser.get("/api/config").body;
        assert_eq!(answer["diff"], json!([["timeouts.checkout", "120s", "7s", "reload"]]), "{answer}");
        assert!(!answer.to_string().contains("secret-"), "{answer}");
        gateway.set_config("timeouts.checkout", "often");
        assert!(browser.get("/api/config").body["error"].is_string());
    }

    /// OP-36: Users who only look see no texts of statements.
    fn slow_queries_come_from_the_query_log(fixture) {
        let (http, folder) = (endpoint(), tempfile::tempdir().expect("a folder"));
        let journal = format!("[journal]\nfolder = \"{}\"\n", folder.path().display());
        let gateway = fixture.gateway(&config(http, &journal));
        gateway.client("postgres").ok("select 'canary', pg_sleep(0.05)");
        let mut browser = Browser::new(http);
        assert_eq!(browser.log_in("ann", "secret-a"), 200);
        let found = |browser: &Browser| browser.get("/api/queries?minutes=5").body;
        eventually("the query is in the log", || found(&browser)["statements"][0]["calls"] == 1);
        let first = found(&browser)["statements"][0].clone();
        assert_eq!(first["statement"], "select ?, pg_sleep(?)");
        assert!(first["p99_us"].as_u64().is_some_and(|took| took >= 50_000) && first["share"] == 1.0, "{first}");
        assert_eq!(browser.log_in("bob", "secret-b"), 200);
        assert!(found(&browser)["statements"][0]["statement"].is_null());
    }

    /// OP-36: As for slow queries.
    fn latest_records_come_from_the_query_log(fixture) {
        let (http, folder) = (endpoint(), tempfile::tempdir().expect("a folder"));
        let journal = format!("[journal]\nfolder = \"{}\"\n", folder.path().display());
        let gateway = fixture.gateway(&config(http, &journal));
        let mut client = gateway.client("postgres");
        client.ok("select 'canary', pg_sleep(0.05)");
        client.query("select no_such_column");
        let mut browser = Browser::new(http);
        assert_eq!(browser.log_in("ann", "secret-a"), 200);
        let found = |browser: &Browser, only: &str| browser.get(&format!("/api/records?minutes=5&only={only}")).body;
        eventually("the error is in the log", || found(&browser, "errors")["matches"] == 1);
        let failed = found(&browser, "errors")["records"][0].clone();
        assert_eq!((&failed["sqlstate"], &failed["kind"]), (&json!("42703"), &json!("query")), "{failed}");
        let slow = found(&browser, "50")["records"].clone();
        assert_eq!((slow[0]["statement"].as_str(), slow[1].as_object()), (Some("select ?, pg_sleep(?)"), None), "{slow}");
        let all = found(&browser, "all");
        assert_eq!(all["records"][0]["statement"], failed["statement"], "the latest comes first: {all}");
        assert!(all["records"].as_array().is_some_and(|records| records.iter().any(|record| record["kind"] == "login")));
        let state = browser.event("journal", |table| rows(table).iter().any(|row| row["key"] == "state"));
        assert!(rows(&state).iter().any(|row| row["value"] == "healthy"), "{state}");
        assert_eq!(browser.log_in("bob", "secret-b"), 200);
        for record in found(&browser, "all")["records"].as_array().expect("records") {
            assert!(record["statement"].is_null() && record["message"].is_null(), "{record}");
        }
    }
}

/// OP-41: Guesses are delayed, and counted with those of Postgres clients.
#[test]
fn guesses_are_counted_with_failed_logins() {
    let server = tidegate_testkit::FaultyServer::answering();
    let http = endpoint();
    let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), server.address(), &config(http, ""));
    let mut browser = Browser::new(http);
    for _ in 0..3 {
        assert_eq!(browser.log_in("ann", "guess"), 401);
    }
    let failures = gateway.show("LOGINS");
    assert!(failures.iter().any(|row| row.values().any(|value| value == "ann")), "{failures:?}");
}

/// OP-38, OP-39, OP-43: All screens in headless Chromium, at two widths, light and dark. The test needs Chromium and node.
#[test]
fn page_works_in_a_browser() {
    let has =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !has("chromium") || !has("node") {
        eprintln!("chromium or node is not installed: the page is not tested in a browser");
        return;
    }
    let server = tidegate_testkit::FaultyServer::answering();
    let (http, folder) = (endpoint(), tempfile::tempdir().expect("a folder"));
    let journal = format!("[journal]\nfolder = \"{}\"\n", folder.path().display());
    let gateway = Gateway::for_server(env!("CARGO_BIN_EXE_tidegate"), server.address(), &config(http, &journal));
    let hostile = "<img src=x onerror=window.injected=1>";
    let mut client = gateway.startup("postgres").user(hostile).connect();
    client.ok("select 1");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/operations/browser.mjs");
    // Another folder writes screenshots: those of the guide come from here.
    let shots = std::env::var("TIDEGATE_SCREENSHOTS").unwrap_or_else(|_| "-".to_owned());
    let output = Command::new("node")
        .args(["--experimental-websocket", script, &format!("http://{http}/"), &shots, "ann", "secret-a", hostile])
        .output()
        .expect("node runs");
    let text = String::from_utf8_lossy(&output.stdout);
    let found: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr));
    });
    assert!(found["failure"].is_null(), "{found}");
    assert_eq!(found["errors"], json!([]), "{found}");
    assert_eq!(found["problems"], json!([]), "{found}");
    assert_eq!(found["violations"], json!([]), "{found}");
    if found["axe"] == false {
        eprintln!("axe-core is not installed: npm ci in testkit/chromium installs it");
    }
    assert_eq!(found["origins"], json!([format!("http://{http}")]), "the page loads from elsewhere");
    assert_eq!(found["screens"].as_array().map(Vec::len), Some(10), "{found}");
    assert_eq!(found["controls"], found["reached"], "not every control is reached by Tab: {found}");
    assert_eq!((&found["asks"], &found["injected"]), (&json!(true), &json!(false)), "{found}");
    assert_eq!((&found["sorts"], &found["returns"]), (&json!("ascending"), &json!("Kill")), "{found}");
}
