//! Two servers of one database behind nginx with a cache: the configuration of the guide.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tidegate_sandbox::{Major, Postgres};

use crate::process::{LIMIT, ShapesProcess};

const GUIDE: &str = include_str!("../../../../docs/src/guide/live-queries.md");

/// A running nginx. Killed on drop.
struct Nginx {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        let line =
            self.head.lines().find_map(|line| line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name)));
        line.map_or("", |(_, value)| value.trim())
    }

    fn rows(&self) -> Vec<String> {
        let messages: Value =
            serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("{}\n{}", self.head, self.body));
        let messages = messages.as_array().cloned().unwrap_or_default();
        messages.iter().filter_map(|message| message["value"]["name"].as_str().map(str::to_owned)).collect()
    }
}

/// The nginx configuration of the guide with other addresses and folders.
fn configuration(folder: &Path, listen: SocketAddr, servers: &[SocketAddr]) -> String {
    let start = GUIDE.find("```nginx\n").expect("the guide has a configuration of nginx") + "```nginx\n".len();
    let text = &GUIDE[start..];
    let mut text = text[..text.find("```").unwrap()].to_owned();
    for (written, used) in [("10.0.0.1:3000", servers[0]), ("10.0.0.2:3000", servers[1])] {
        assert!(text.contains(written), "the guide names {written}");
        text = text.replace(written, &used.to_string());
    }
    text = text.replace("/var/cache/nginx", &folder.join("cache").display().to_string());
    // nginx stores no answer after a 503 of the server that waits; it asks that server once in this time.
    text = text.replace("fail_timeout=5s", "fail_timeout=20s");
    text = text.replace("listen 80;", &format!("listen {listen};"));
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|name| format!("{name}_temp_path {};\n", folder.join(name).display()))
        .collect();
    let user =
        if Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n") { "user root;\n" } else { "" };
    format!(
        "{user}daemon off;\nworker_processes 1;\npid {folder}/pid;\nerror_log {folder}/error.log warn;\n\
         events {{ worker_connections 1000; }}\nhttp {{\naccess_log off;\n{paths}{text}\n}}\n",
        folder = folder.display(),
    )
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Nginx {
    fn start(postgres: &Postgres, servers: &[SocketAddr]) -> Self {
        let folder = postgres.socket_dir().join("nginx");
        std::fs::create_dir_all(folder.join("cache")).unwrap();
        let address = free_address();
        let file = folder.join("nginx.conf");
        std::fs::write(&file, configuration(&folder, address, servers)).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-e").arg(folder.join("error.log")).arg("-p").arg(&folder).arg("-c").arg(&file);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        postgres.register_process(child.id()).unwrap();
        let started = Self { child, address, folder };
        let deadline = Instant::now() + LIMIT;
        while TcpStream::connect(started.address).is_err() {
            let log = || std::fs::read_to_string(started.folder.join("error.log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "nginx does not listen:\n{}", log());
            std::thread::sleep(Duration::from_millis(10));
        }
        started
    }

    fn get(&self, query: &str, headers: &str) -> Answer {
        get(self.address, query, headers)
    }

    /// Repeats a request until a server answers it.
    fn eventually(&self, query: &str, accept: impl Fn(&Answer) -> bool) -> Answer {
        let deadline = Instant::now() + LIMIT;
        loop {
            let answer = self.get(query, "");
            if accept(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{} to {query}: {}", answer.status, answer.body);
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The workers end with the master.
        let _ = Command::new("kill").arg("-QUIT").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

fn get(address: SocketAddr, query: &str, headers: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let head = format!("GET /v1/shape?{query} HTTP/1.0\r\nhost: shapes.example\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
    let status = head.get(9..12).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// SH-31, SH-32, SH-36: equal requests get equal bytes, live requests collapse, and a server that ends is replaced by the other.
#[test]
fn servers_behind_nginx_with_a_cache() {
    if Command::new("nginx").arg("-v").output().is_err() {
        eprintln!("nginx is not installed: the configuration of the guide is not tested");
        return;
    }
    let postgres = Postgres::builder().version(Major(18)).setting("wal_level", "logical").start().unwrap();
    let sql = |text: &str| postgres.simple_query(text).unwrap();
    sql("CREATE TABLE items (id int8 PRIMARY KEY, name text); INSERT INTO items VALUES (1, 'one')");
    let mut first = ShapesProcess::start(&postgres);
    let second = ShapesProcess::start(&postgres);
    let nginx = Nginx::start(&postgres, &[first.address, second.address]);
    let start = "table=items&offset=-1";
    let loaded = nginx.eventually(start, |answer| answer.status == 200);
    let (handle, etag) = (loaded.header("electric-handle").to_owned(), loaded.header("etag").to_owned());
    let again = nginx.eventually(start, |answer| answer.header("x-cache-status") == "HIT");
    assert_eq!(again.status, 200, "{}", again.head);
    assert_eq!((again.header("etag"), &again.body), (etag.as_str(), &loaded.body));
    assert_eq!(nginx.get(start, &format!("if-none-match: {etag}\r\n")).status, 304);
    assert_eq!(loaded.rows(), ["one"]);
    let next = nginx.get(&format!("table=items&handle={handle}&offset=0_0"), "");
    let offset = next.header("electric-offset").to_owned();
    collapsed(&nginx, &sql, &format!("table=items&handle={handle}&offset={offset}&live=true"));
    // The server that follows the slot ends; the other takes over.
    let is_first_active = get(first.address, start, "").status == 200;
    let survivor = if is_first_active { &second } else { &first }.address;
    let mut second = second;
    if is_first_active {
        first.kill();
    } else {
        second.kill();
    };
    sql("INSERT INTO items VALUES (3, 'three')");
    let moved = nginx.eventually(&format!("table=items&handle={handle}&offset={offset}"), |answer| {
        answer.status == 409 && !answer.header("electric-handle").is_empty()
    });
    let new = moved.header("electric-handle").to_owned();
    assert_ne!(new, handle, "{}", moved.head);
    // The start of the old log may still be in the cache: clients add a parameter that no earlier request had.
    let fresh =
        nginx.eventually(&format!("{start}&cache-buster=1&expired_handle={handle}"), |answer| answer.status == 200);
    assert_eq!(fresh.header("electric-handle"), new, "{}", fresh.head);
    let mut rows = fresh.rows();
    rows.sort();
    assert_eq!(rows, ["one", "three", "two"]);
    let direct = get(survivor, start, "");
    assert_eq!((&direct.body, direct.header("etag")), (&fresh.body, fresh.header("etag")));
}

/// Ten clients wait for one change with one request to a server.
fn collapsed(nginx: &Nginx, sql: &impl Fn(&str) -> Vec<Vec<Option<String>>>, live: &str) {
    const CLIENTS: usize = 10;
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| nginx.get(live, ""))).collect();
        // Whether the write comes before or after the requests: all have the same answer.
        sql("INSERT INTO items VALUES (2, 'two')");
        waiting.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let status = |expected: &str| answers.iter().filter(|answer| answer.header("x-cache-status") == expected).count();
    assert_eq!((status("MISS"), status("HIT")), (1, CLIENTS - 1), "{}", answers[0].head);
    for answer in &answers {
        assert_eq!((answer.status, answer.rows()), (200, vec!["two".to_owned()]), "{}", answer.head);
        assert_eq!(answer.body, answers[0].body);
    }
}
