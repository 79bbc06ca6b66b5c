//! Authentication of clients: `auth_type`, HBA rules, `auth_query`, and the user of the process.

use tidegate_testkit::{Server, Startup, eventually};

use crate::ini_gateway::{IniGateway, Setup, output, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres user=postgres\n";

fn with_users(lines: &str, users: &str) -> IniGateway {
    let ini = format!("{SHOP}[pgbouncer]\nauth_file = $DIR/userlist.txt\n{lines}");
    IniGateway::with(&Setup { ini: &ini, files: &[("userlist.txt", users)], ..Setup::default() })
}

fn unique(stem: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("pgb_{stem}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn trust_accepts_only_listed_users() {
    let gateway = with_users("auth_type = trust\n", "\"app\" \"\"\n");
    gateway.startup("shop").user("app").connect().ok("select 1");
    let refused = gateway.startup("shop").user("unlisted").refused();
    assert_eq!(refused.message, "\"trust\" authentication failed");
}

#[test]
fn any_accepts_every_user() {
    let gateway = IniGateway::start(&format!("{SHOP}[pgbouncer]\nauth_type = any\n"));
    assert_eq!(gateway.startup("shop").user("unlisted").connect().value("select current_user"), "postgres");
}

#[test]
fn plain_md5_and_scram_passwords_work() {
    let role = unique("verifier");
    server().sql(&format!("create role {role} login password 'secret'"));
    let verifier = server().value(&format!("select rolpassword from pg_authid where rolname = '{role}'"));
    // md5('secret' || 'hashed')
    let md5 = server().value("select 'md5' || md5('secret' || 'hashed')");
    let users = format!("\"plain\" \"secret\"\n\"hashed\" \"{md5}\"\n\"{role}\" \"{verifier}\"\n\"empty\" \"\"\n");
    for method in ["plain", "md5", "scram-sha-256"] {
        let gateway = with_users(&format!("auth_type = {method}\n"), &users);
        let login = |user: &str, password: &str| gateway.startup("shop").user(user).password(password);
        login("plain", "secret").connect().ok("select 1");
        login(&role, "secret").connect().ok("select 1");
        assert_eq!(login("plain", "wrong").refused().severity, "FATAL");
        assert_eq!(login("empty", "").refused().severity, "FATAL", "{method}");
        assert_eq!(login("unlisted", "secret").refused().severity, "FATAL");
        if method != "scram-sha-256" {
            login("hashed", "secret").connect().ok("select 1");
        }
    }
}

#[test]
fn first_matching_hba_rule_applies() {
    let hba = "host shop rejected all reject\nhost shop app 127.0.0.1/32 scram-sha-256\nhost other all all trust\n\
               host pgbouncer all all trust\nlocal all all trust\n";
    let gateway = IniGateway::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres user=postgres\nother = $PG dbname=postgres user=postgres\n\
              [pgbouncer]\nauth_type = hba\nauth_hba_file = $DIR/hba\nauth_file = $DIR/users\n",
        files: &[("hba", hba), ("users", "\"app\" \"secret\"\n\"rejected\" \"secret\"\n\"postgres\" \"\"\n")],
        ..Setup::default()
    });
    let login = |user: &str, database: &str| gateway.startup(database).user(user);
    login("app", "shop").password("secret").connect().ok("select 1");
    assert_eq!(login("app", "shop").password("wrong").refused().code, "28P01");
    assert_eq!(login("rejected", "shop").password("secret").refused().message, "login rejected");
    assert_eq!(login("postgres", "shop").refused().message, "no authentication method is found");
    login("app", "other").connect().ok("select 1");
    // RELOAD reads the rules again.
    std::fs::write(gateway.file("hba"), "host all all all reject\nlocal all all trust\n")
        .expect("the file can be written");
    gateway.unix("postgres", "pgbouncer").connect().ok("RELOAD");
    assert_eq!(login("app", "other").refused().message, "login rejected");
    std::fs::write(gateway.file("hba"), "host all all all tust\n").expect("the file can be written");
    let reload = gateway.unix("postgres", "pgbouncer").connect().query("RELOAD");
    assert!(reload.error.expect("an invalid file is rejected").message.contains("hba:1"));
}

/// The console has two names.
#[test]
fn hba_rule_for_the_console_applies_to_both_names() {
    let hba = "host pgbouncer all all reject\nhost all all all trust\nlocal all all trust\n";
    let ini = format!("{SHOP}[pgbouncer]\nauth_type = hba\nauth_hba_file = $DIR/hba\nauth_file = $DIR/users\n");
    let files = [("hba", hba), ("users", "\"postgres\" \"\"\n")];
    let gateway = IniGateway::with(&Setup { ini: &ini, files: &files, ..Setup::default() });
    gateway.client("shop").ok("select 1");
    for name in ["pgbouncer", "tidegate"] {
        assert_eq!(gateway.startup(name).refused().message, "login rejected", "{name}");
    }
}

/// The name of one user is not UTF-8. All other users can log in.
#[test]
fn userlist_may_have_another_encoding() {
    let gateway = with_users("auth_type = scram-sha-256\n", "\"app\" \"secret\"\n");
    let mut users = std::fs::read(gateway.file("userlist.txt")).expect("the file exists");
    users.extend(b"; Gr\xfc\xdfe\n\"m\xfcller\" \"x\"\n\"last\" \"secret\"\n");
    std::fs::write(gateway.file("userlist.txt"), users).expect("the file can be written");
    gateway.unix("pgbouncer", "pgbouncer").connect().ok("RELOAD");
    for user in ["app", "last"] {
        gateway.startup("shop").user(user).password("secret").connect().ok("select 1");
    }
}

#[test]
fn peer_login_uses_the_ident_map() {
    let verified_login = std::process::Command::new("id").arg("-un").output().expect("id is installed").stdout;
    let verified_login = String::from_utf8_lossy(&verified_login).trim().to_owned();
    let ident = format!("machine {verified_login} app\n");
    let gateway = IniGateway::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres user=postgres\n[pgbouncer]\nauth_type = hba\n\
              auth_hba_file = $DIR/hba\nauth_ident_file = $DIR/ident\nauth_file = $DIR/users\n",
        files: &[
            ("hba", "local all all peer map=machine\nhost all all all trust\n"),
            ("ident", &format!("{ident}machine {verified_login} unlisted\n")),
            ("users", "\"app\" \"\"\n\"other\" \"\"\n\"postgres\" \"\"\n"),
        ],
        ..Setup::default()
    });
    gateway.unix("app", "shop").connect().ok("select 1");
    // A mapped user must be listed as well.
    for user in ["other", "unlisted"] {
        assert_eq!(gateway.unix(user, "shop").refused().message, "unix socket login rejected", "{user}");
    }
}

#[test]
fn user_of_the_process_is_admin_on_the_unix_socket() {
    let gateway = with_users("auth_type = scram-sha-256\nadmin_users =\n", "\"app\" \"secret\"\n");
    let mut console = gateway.unix("pgbouncer", "pgbouncer").connect();
    console.ok("SHOW POOLS");
    console.ok("PAUSE");
    console.ok("RESUME");
    assert_eq!(gateway.startup("pgbouncer").user("pgbouncer").password("x").refused().severity, "FATAL");
    assert_eq!(gateway.startup("pgbouncer").user("app").password("secret").refused().code, "08P01");
}

/// A gateway with a database whose `auth_user` is a role of this test.
fn with_auth_query(lines: &str) -> (IniGateway, String) {
    let auth = unique("auth");
    server().sql(&format!("create role {auth} login superuser"));
    let ini = format!(
        "[databases]\nshop = $PG dbname=postgres auth_user={auth}\n[pgbouncer]\nauth_type = scram-sha-256\n\
         auth_file = $DIR/userlist.txt\n{lines}"
    );
    let users = "\"postgres\" \"pw\"\n";
    (IniGateway::with(&Setup { ini: &ini, files: &[("userlist.txt", users)], ..Setup::default() }), auth)
}

#[test]
fn auth_query_finds_users() {
    let (gateway, _) = with_auth_query("");
    let role = unique("looked_up");
    server().sql(&format!("create role {role} login password 'first'"));
    let login = |password: &str| gateway.startup("shop").user(&role).password(password);
    assert_eq!(login("first").connect().value("select current_user"), role);
    assert_eq!(login("wrong").refused().code, "28P01");
    // A changed password is used immediately.
    server().sql(&format!("alter role {role} password 'second'"));
    login("second").connect().ok("select 1");
    assert_eq!(login("first").refused().code, "28P01");
    assert_eq!(gateway.startup("shop").user("pgb_no_such_user").password("x").refused().code, "28P01");
}

/// Roles of the same name have different verifiers on two servers, and may have different passwords.
#[test]
fn auth_query_results_are_kept_per_server() {
    let other = Server::start(18);
    let (auth, role) = (unique("auth"), unique("twin"));
    for (server, password) in [(server(), "first"), (&other, "second")] {
        server.sql(&format!("create role {auth} login superuser"));
        server.sql(&format!("create role {role} login password '{password}' in role scram_login"));
    }
    let gateway = IniGateway::start(&format!(
        "[databases]\nhere = $PG dbname=postgres auth_user={auth}\n\
         there = host=127.0.0.1 port={} dbname=postgres auth_user={auth}\n\
         [pgbouncer]\nauth_type = scram-sha-256\nadmin_users = pgbouncer\n",
        other.port()
    ));
    let login = |database: &str, password: &str| gateway.startup(database).user(&role).password(password).connect();
    let (mut here, mut there) = (login("here", "first"), login("there", "second"));
    for _ in 0..2 {
        // The reconnect of one database must not use the keys of the latest login to the other.
        gateway.unix("pgbouncer", "pgbouncer").connect().ok("RECONNECT");
        for client in [&mut here, &mut there] {
            assert_eq!(client.value("select current_user"), role);
        }
    }
}

/// The forced user may lack the privilege for the query, and must not influence its meaning.
#[test]
fn auth_query_runs_as_auth_user_with_a_forced_user() {
    let (auth, app, role, schema) = (unique("auth"), unique("app"), unique("looked_up"), unique("schema"));
    server().sql(&format!(
        "create role {auth} login; create role {app} login; create role {role} login password 'secret'; \
         create schema {schema} authorization {auth}; \
         create function {schema}.users(text) returns table (name name, secret text) language sql security definer \
         as 'select rolname, rolpassword from pg_authid where rolname = $1'; \
         revoke execute on function {schema}.users from public; grant execute on function {schema}.users to {auth}"
    ));
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = $PG dbname=postgres user={app} auth_user={auth}\n\
         [pgbouncer]\nauth_type = scram-sha-256\nauth_query = select name, secret from {schema}.users($1)\n"
    ));
    let login = |password: &str| gateway.startup("shop").user(&role).password(password);
    assert_eq!(login("secret").connect().value("select current_user"), app);
    assert_eq!(login("wrong").refused().code, "28P01");
}

/// EDGE-48: CVE-2025-2291: an expired password was accepted.
#[test]
fn expired_password_is_rejected() {
    let (gateway, _) = with_auth_query("");
    let role = unique("expired");
    server().sql(&format!("create role {role} login password 'secret' valid until '2001-01-01'"));
    assert_eq!(gateway.startup("shop").user(&role).password("secret").refused().code, "28P01");
    server().sql(&format!("alter role {role} valid until 'infinity'"));
    gateway.startup("shop").user(&role).password("secret").connect().ok("select 1");
}

/// EDGE-48: CVE-2025-12819: the search_path of a client changed the meaning of auth_query.
#[test]
fn auth_query_ignores_the_search_path_of_clients() {
    let schema = unique("hostile");
    let role = unique("victim");
    server().sql(&format!("create role {role} login password 'true'"));
    let verifier = {
        let other = unique("other");
        server().sql(&format!("create role {other} login password 'false'"));
        server().value(&format!("select rolpassword from pg_authid where rolname = '{other}'"))
    };
    server().sql(&format!("create schema {schema}"));
    server().sql(&format!(
        "create table {schema}.pg_authid as select '{role}'::name rolname, '{verifier}'::text rolpassword, \
         true rolcanlogin, null::timestamptz rolvaliduntil"
    ));
    let (gateway, auth) = with_auth_query(
        "auth_query = SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1\ndefault_pool_size = 1\n",
    );
    // A client of the auth user leaves a search_path on its connection.
    std::fs::write(gateway.file("userlist.txt"), format!("\"postgres\" \"pw\"\n\"{auth}\" \"known\"\n"))
        .expect("the file can be written");
    gateway.startup("pgbouncer").password("pw").connect().ok("RELOAD");
    let mut hostile = gateway.startup("shop").user(&auth).password("known").connect();
    hostile.ok(&format!("set search_path = {schema}, pg_catalog"));
    let login = |password: &str| -> Startup { gateway.startup("shop").user(&role).password(password) };
    eventually("the correct password is accepted", || login("true").try_connect().is_ok());
    assert_eq!(login("false").refused().code, "28P01");
}

/// EDGE-73.
#[test]
fn stats_user_can_only_read() {
    let gateway = with_users("auth_type = trust\nstats_users = watcher\n", "\"postgres\" \"\"\n\"watcher\" \"\"\n");
    let mut watcher = gateway.startup("pgbouncer").user("watcher").connect();
    watcher.ok("SHOW STATS");
    for command in ["PAUSE", "SUSPEND", "SET default_pool_size = 3", "KILL_CLIENT 1", "RELOAD", "SHUTDOWN"] {
        assert_eq!(watcher.query(command).code(), "08P01", "{command}");
    }
}

/// `[users]` contains settings only. The users of PgBouncer are those of `auth_file` and `auth_query`.
#[test]
fn user_settings_admit_no_login() {
    let role = unique("settings");
    server().sql(&format!("create role {role} login password 'secret'"));
    let users = format!("[users]\n{role} = max_user_connections=5\nempty =\nunset = client_idle_timeout=0\n");
    let hba = ("hba", "host all all all trust\nlocal all all trust\n");
    let ini = |method: &str| {
        format!(
            "{SHOP}open = $PG dbname=postgres\n{users}listed = pool_mode=session\n\
             [pgbouncer]\nauth_type = {method}\nauth_hba_file = $DIR/hba\nauth_file = $DIR/userlist.txt\n"
        )
    };
    let start = |method: &str| {
        let files = [("userlist.txt", "\"listed\" \"secret\"\n"), hba];
        IniGateway::with(&Setup { ini: &ini(method), files: &files, ..Setup::default() })
    };
    for method in ["trust", "hba"] {
        let gateway = start(method);
        gateway.startup("shop").user("listed").connect().ok("select 1");
        for user in [&role, "empty", "unset", "unlisted"] {
            for database in ["shop", "open", "pgbouncer"] {
                let refused = gateway.startup(database).user(user).refused();
                assert_eq!(refused.message, "\"trust\" authentication failed", "{method} {user} {database}");
            }
        }
    }
    for method in ["plain", "md5", "scram-sha-256"] {
        let gateway = start(method);
        gateway.startup("shop").user("listed").password("secret").connect().ok("select 1");
        assert_eq!(gateway.startup("shop").user(&role).password("secret").refused().code, "28P01", "{method}");
    }
}

#[test]
fn user_settings_are_not_converted_to_a_login() {
    let ini = format!("{SHOP}[users]\nlimited = max_user_connections=5\nempty =\n[pgbouncer]\nauth_type = trust\n");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pgbouncer.ini");
    std::fs::write(&file, crate::ini_gateway::expand(&ini, folder.path())).expect("the folder can be written");
    let converted = output(&["convert", &file.display().to_string()]);
    let text = String::from_utf8_lossy(&converted.stdout).into_owned();
    assert!(text.contains("[users.limited]") && !text.contains("[users.empty]"), "{text}");
    assert!(!text.contains("password ="), "{text}");
}

/// The auth user itself is found by auth_query.
#[test]
fn auth_user_can_log_in() {
    let auth = unique("auth");
    server().sql(&format!("create role {auth} login superuser password 'secret'"));
    for method in ["trust", "md5", "scram-sha-256"] {
        for (line, global) in
            [(format!(" auth_user={auth}"), String::new()), (String::new(), format!("auth_user = {auth}\n"))]
        {
            let gateway = IniGateway::start(&format!(
                "[databases]\nshop = $PG dbname=postgres{line}\n[pgbouncer]\nauth_type = {method}\n{global}"
            ));
            let login = |password: &str| gateway.startup("shop").user(&auth).password(password);
            assert_eq!(login("secret").connect().value("select current_user"), auth, "{method}");
            if method != "trust" {
                assert_eq!(login("wrong").refused().code, "28P01", "{method}");
            }
        }
    }
}

/// A user of `auth_file` is not searched by auth_query: an empty password there rejects the login.
#[test]
fn listed_user_without_password_is_rejected() {
    let role = unique("listed");
    server().sql(&format!("create role {role} login password 'secret'"));
    let (gateway, _) = with_auth_query("");
    gateway.startup("shop").user(&role).password("secret").connect().ok("select 1");
    std::fs::write(gateway.file("userlist.txt"), format!("\"postgres\" \"pw\"\n\"{role}\" \"\"\n"))
        .expect("the file can be written");
    gateway.startup("pgbouncer").password("pw").connect().ok("RELOAD");
    assert_eq!(gateway.startup("shop").user(&role).password("secret").refused().code, "28P01");
}

/// A hash or a verifier in `[databases]` must not be sent to the server as a cleartext password.
#[test]
fn database_password_may_be_a_hash_or_a_verifier() {
    let (hashed, verified) = (unique("hashed"), unique("verified"));
    server().sql(&format!(
        "set password_encryption = 'md5'; create role {hashed} login password 'secret' in role md5_login; \
         set password_encryption = 'scram-sha-256'; create role {verified} login password 'secret' in role scram_login"
    ));
    let stored = |role: &str| server().value(&format!("select rolpassword from pg_authid where rolname = '{role}'"));
    let (md5, scram) = (stored(&hashed), stored(&verified));
    let ini = format!(
        "[databases]\nmd5 = $PG dbname=postgres user={hashed} password={md5}\n\
         scram = $PG dbname=postgres user={verified} password='{scram}'\n\
         [pgbouncer]\nauth_type = scram-sha-256\nauth_file = $DIR/userlist.txt\nserver_login_retry = 0.05\n"
    );
    let users = format!("\"app\" \"pw\"\n\"{verified}\" \"{scram}\"\n");
    let gateway = IniGateway::with(&Setup { ini: &ini, files: &[("userlist.txt", &users)], ..Setup::default() });
    let app = |database: &str| gateway.startup(database).user("app").password("pw");
    assert_eq!(app("md5").connect().value("select current_user"), hashed);
    // No client has logged in with the verifier yet.
    let refused = app("scram").refused();
    assert!(refused.message.contains("verifier") && !refused.message.contains("SCRAM-SHA-256$"), "{refused:?}");
    let verified_login = gateway.startup("scram").user(&verified).password("secret");
    eventually("the keys of the client log in to the server", || verified_login.try_connect().is_ok());
    assert_eq!(verified_login.connect().value("select current_user"), verified);
    eventually("other clients use the keys", || app("scram").try_connect().is_ok());
}

/// A disabled database is reported to users of auth_query, like to all others.
#[test]
fn disabled_database_is_reported_with_auth_query() {
    let auth = unique("auth");
    let role = unique("looked_up");
    server().sql(&format!("create role {auth} login superuser; create role {role} login password 'secret'"));
    let gateway = IniGateway::with(&Setup {
        ini: &format!(
            "[databases]\nshop = $PG dbname=postgres auth_user={auth}\nauth = $PG dbname=postgres\n\
             far = $PG dbname=postgres auth_user={auth} auth_dbname=auth\n\
             lost = $PG dbname=postgres auth_user={auth} auth_dbname=missing\n\
             [pgbouncer]\nauth_type = scram-sha-256\nauth_file = $DIR/userlist.txt\n"
        ),
        files: &[("userlist.txt", "\"postgres\" \"pw\"\n")],
        ..Setup::default()
    });
    let mut console = gateway.startup("pgbouncer").password("pw").connect();
    let login = |database: &str| gateway.startup(database).user(&role).password("secret");
    login("shop").connect().ok("select 1");
    login("far").connect().ok("select 1");
    console.ok("DISABLE shop");
    assert_eq!(login("shop").refused().message, "database \"shop\" is disabled");
    let configured = gateway.startup("shop").password("pw").refused();
    assert_eq!(configured.message, "database \"shop\" is disabled");
    console.ok("DISABLE auth");
    assert_eq!(login("far").refused().message, "authentication database \"auth\" is disabled");
    console.ok("ENABLE auth");
    login("far").connect().ok("select 1");
    console.ok("ENABLE shop");
    login("shop").connect().ok("select 1");
    assert_eq!(login("lost").refused().message, "bouncer config error");
    gateway.wait_for_log("authentication database \"missing\" is not configured");
}

/// A looked-up verifier does not log in to a server with another salt; the password of the client does.
#[test]
fn clear_password_logs_in_to_a_scram_server() {
    let other = Server::start(18);
    let (auth, role) = (unique("auth"), unique("clear"));
    other.sql(&format!(
        "create role {auth} login superuser; create role {role} login password 'right' in role scram_login"
    ));
    let port = other.port();
    let gateway = IniGateway::start(&format!(
        "[databases]\nshop = host=127.0.0.1 port={port} dbname=postgres auth_user={auth}\n[pgbouncer]\nauth_type = plain\n\
         server_login_retry = 0.05\n"
    ));
    let login = |password: &str| gateway.startup("shop").user(&role).password(password);
    assert_eq!(login("wrong").refused().code, "28P01");
    assert_eq!(login("right").connect().value("select current_user"), role);
    other.sql(&format!("alter role {role} password 'new'"));
    assert_eq!(login("right").refused().code, "28P01");
    assert_eq!(login("new").connect().value("select current_user"), role);
}

/// A standby sends the database name `replication`, which does not exist on the server.
#[test]
fn standby_is_looked_up_without_an_auth_dbname() {
    let (auth, role) = (unique("auth"), unique("standby"));
    server().sql(&format!("create role {auth} login superuser; create role {role} login replication password 'word'"));
    let gateway = IniGateway::start(&format!(
        "[databases]\nreplication = $PG auth_user={auth}\n[pgbouncer]\nauth_type = scram-sha-256\n"
    ));
    let startup = gateway.startup("replication").user(&role).password("word").parameter("replication", "true");
    startup.connect().ok("IDENTIFY_SYSTEM");
}
