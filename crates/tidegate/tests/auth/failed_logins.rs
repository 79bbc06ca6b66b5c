//! Failed logins: nothing in the reply shows whether a user exists, repeated failures are delayed, and addresses are limited.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use tidegate_testkit::{Fixture, Frames, Gateway, Startup, eventually, on_each_postgres};

/// The authentication request: the method, and for SCRAM the salt and the iteration count.
#[derive(Debug, Clone, PartialEq, Eq)]
enum AuthRequest {
    Cleartext,
    Md5,
    Scram { salt: String, iterations: String },
}

impl AuthRequest {
    fn has_iterations(&self, count: &str) -> bool {
        matches!(self, Self::Scram { iterations, .. } if iterations == count)
    }
}

/// Begins a login and returns the authentication request.
#[track_caller]
fn auth_request(startup: &Startup) -> AuthRequest {
    let mut client = startup.open();
    client.send_bytes(&startup.packet());
    let method = client.recv();
    match method.body.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes)) {
        Some(3) => return AuthRequest::Cleartext,
        Some(5) => return AuthRequest::Md5,
        Some(10) => {}
        other => panic!("authentication method {other:?}"),
    }
    client.send(&Frames::new().message(b'p', b"SCRAM-SHA-256\0\0\0\0\x0bn,,n=,r=abc"));
    let challenge = client.recv();
    let text = String::from_utf8_lossy(&challenge.body[4..]).into_owned();
    let part = |name: &str| {
        let found = text.split(',').find_map(|part| part.strip_prefix(name));
        found.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
    };
    AuthRequest::Scram { salt: part("s="), iterations: part("i=") }
}

/// A SCRAM verifier with this iteration count that no password matches.
fn verifier(iterations: u32) -> String {
    format!("SCRAM-SHA-256${iterations}:c2FsdHNhbHRzYWx0c2E=${0}:{0}", "A".repeat(43) + "=")
}

fn with_users(fixture: &Fixture, auth: &str, users: &[(&str, &str)]) -> Gateway {
    let section = fixture.database_section("postgres", "postgres");
    let users: String = users.iter().map(|(name, text)| format!("[users.{name}]\npassword = \"{text}\"\n")).collect();
    fixture.start(&format!("[auth]\n{auth}{section}user = \"postgres\"\nsize = 2\n{users}"))
}

on_each_postgres! {
    fn salt_of_unknown_users_survives_a_restart(fixture) {
        let auth = "method = \"scram-sha-256\"\nsalt_secret = \"x\"\n";
        let start = |auth: &str| with_users(fixture, auth, &[("plain", "secret")]);
        let first = start(auth);
        let request_of = |gateway: &Gateway, user: &str| auth_request(&gateway.startup("postgres").user(user));
        let known: Vec<_> = ["plain", "unknown", "other"].iter().map(|user| request_of(&first, user)).collect();
        assert!(known.iter().all(|request| request.has_iterations("4096")));
        assert_ne!(known[1], known[2]);
        // A restart changes neither the salts of unknown users nor those of users with a password in clear text.
        let second = start(auth);
        let again: Vec<_> = ["plain", "unknown", "other"].iter().map(|user| request_of(&second, user)).collect();
        assert_eq!(known, again);
        first.startup("postgres").user("plain").password("secret").connect().ok("select 1");
        assert_eq!(request_of(&first, "plain"), known[0]);
        let other = start(&auth.replace('x', "y"));
        assert_ne!(request_of(&other, "unknown"), known[1]);
        assert_eq!(first.startup("postgres").user("unknown").password("secret").refused().code, "28P01");
    }

    fn unknown_users_get_the_iterations_of_known_users(fixture) {
        let (few, many) = (verifier(1234), verifier(5678));
        for (method, users, expected) in [
            ("scram-sha-256", &[("a", few.as_str()), ("b", &few)][..], &["1234"][..]),
            ("scram-sha-256", &[("a", &few), ("b", &many)], &["1234", "5678"]),
            ("md5", &[("a", &few)], &["1234"]),
            ("md5", &[("a", "secret")], &["md5"]),
        ] {
            let gateway = with_users(fixture, &format!("method = \"{method}\"\n"), users);
            let seen: std::collections::BTreeSet<_> = (0..20)
                .map(|number| match auth_request(&gateway.startup("postgres").user(&format!("unknown{number}"))) {
                    AuthRequest::Scram { iterations, .. } => iterations,
                    AuthRequest::Md5 => "md5".to_owned(),
                    AuthRequest::Cleartext => panic!("a cleartext password was requested"),
                })
                .collect();
            assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{method}");
        }
    }

    fn unknown_users_look_like_users_of_auth_query(fixture) {
        let (auth, role) = (fixture.create_role("x", ""), fixture.create_role("secret", ""));
        fixture.server.sql(&format!("alter role {auth} superuser"));
        let stored = verifier(2345);
        fixture.server.sql(&format!("update pg_authid set rolpassword = '{stored}' where rolname = '{role}'"));
        // The function that PgBouncer's documentation proposes: a row of NULLs for an unknown user.
        let function = format!("lookup_by_{auth}");
        fixture.server.sql(&format!(
            "create function {function}(in i_name text, out name text, out hash text) returns record language plpgsql \
             security definer as $$ begin select rolname, rolpassword from pg_authid where rolname = i_name \
             into name, hash; end $$"
        ));
        for query in [String::new(), format!("lookup_query = \"select * from {function}($1)\"\n")] {
            let gateway = with_users(fixture, &format!("lookup_user = \"{auth}\"\n{query}"), &[]);
            let known = auth_request(&gateway.startup("postgres").user(&role));
            let unknown = auth_request(&gateway.startup("postgres").user("unknown"));
            assert!(known.has_iterations("2345") && unknown.has_iterations("2345"), "{known:?} {unknown:?}");
            let [known, unknown] = [role.as_str(), "unknown"]
                .map(|user| gateway.startup("postgres").user(user).password("wrong").refused());
            assert_eq!(known.code, unknown.code);
            assert_eq!(known.message.replace(&role, "unknown"), unknown.message);
        }
    }

    fn failed_logins_are_counted_and_delayed(fixture) {
        for method in ["scram-sha-256", "password", "md5"] {
            let auth = format!("method = \"{method}\"\nfailed_login_delay = \"1ms\"\nfailed_login_delay_max = \"4ms\"\n");
            let gateway = with_users(fixture, &auth, &[("app", "secret"), ("postgres", "admin")]);
            let login = |user: &str, password: &str| gateway.startup("postgres").user(user).password(password);
            for number in 0..15 {
                let user = if number < 5 { "unknown" } else { "app" };
                assert_eq!(login(user, "wrong").refused().code, "28P01", "{method}");
            }
            login("app", "secret").connect().ok("select 1");
            let mut console = gateway.startup("tidegate").password("admin").connect();
            let rows = console.show("LOGINS");
            let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("{rows:?}"));
            assert_eq!((row("127.0.0.1")["kind"].as_str(), row("127.0.0.1")["failures"].as_str()), ("address", "15"));
            assert_eq!((row("app")["kind"].as_str(), row("app")["failures"].as_str()), ("user", "10"));
            assert_eq!((row("127.0.0.1")["delay_ms"].as_str(), row("unknown")["delay_ms"].as_str()), ("4", "1"));
        }
    }

    fn only_failed_logins_are_delayed(fixture) {
        let auth = "failed_login_delay = \"1h\"\n";
        let gateway = with_users(fixture, auth, &[("app", "secret"), ("postgres", "admin")]);
        let wrong = gateway.startup("postgres").user("app").password("wrong");
        let waiting = std::thread::spawn(move || wrong.try_connect().is_ok());
        let mut console = gateway.startup("tidegate").password("admin").connect();
        eventually("the failure is counted", || console.show("LOGINS").iter().any(|row| row["name"] == "app"));
        gateway.startup("postgres").user("app").password("secret").connect().ok("select 1");
        assert!(!waiting.is_finished(), "the failed login was answered without a delay");
        drop((console, gateway));
        assert!(!waiting.join().expect("the connection ends with the gateway"));
    }

    fn clients_per_address_are_limited(fixture) {
        let section = fixture.database_section("postgres", "postgres");
        let gateway = fixture.start(&format!(
            "[listen]\nmax_clients_per_address = 2\n[auth]\nmethod = \"trust\"\n{section}size = 2\n"
        ));
        let mut clients = Vec::new();
        eventually("two clients are connected", || {
            clients.extend(gateway.startup("postgres").try_connect().ok());
            clients.len() == 2
        });
        let refused = gateway.startup("postgres").refused();
        assert_eq!((refused.code.as_str(), refused.severity.as_str()), ("53300", "FATAL"));
        assert!(refused.message.contains("this address"), "{refused:?}");
        // Another address has a count of its own, and the console is not limited.
        let startup = gateway.startup("postgres");
        let other_address: Vec<_> = (0..2).map(|_| first_reply("127.0.0.2", gateway.address(), &startup)).collect();
        assert!(other_address.iter().all(|(_, reply)| *reply == b'R'));
        assert_eq!(first_reply("127.0.0.2", gateway.address(), &startup).1, b'E');
        gateway.console().ok("SHOW LOGINS");
        clients.pop();
        eventually("a new client is accepted", || gateway.startup("postgres").try_connect().is_ok());
    }
}

/// Logs in from an address of this machine. Returns the connection and the first byte of the reply.
fn first_reply(from: &str, to: SocketAddr, startup: &Startup) -> (TcpStream, u8) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    let from: SocketAddr = format!("{from}:0").parse().expect("an address");
    socket.bind(&from.into()).expect("an address of this machine");
    socket.connect(&to.into()).expect("the gateway accepts");
    let mut stream = TcpStream::from(socket);
    stream.write_all(&startup.packet()).expect("the packet is sent");
    let mut first = [0];
    stream.read_exact(&mut first).expect("a reply");
    (stream, first[0])
}
