//! How clients prove who they are: `auth_type`, rules, look-ups on the server, the process's own user.

use tidegate_testkit::{Server, Startup, eventually};

use crate::bouncer::{Bouncer, Setup, output, server};

const SHOP: &str = "[databases]\nshop = $PG dbname=postgres user=postgres\n";

fn with_users(lines: &str, users: &str) -> Bouncer {
    let ini = format!("{SHOP}[pgbouncer]\nauth_file = $DIR/userlist.txt\n{lines}");
    Bouncer::with(&Setup { ini: &ini, files: &[("userlist.txt", users)], ..Setup::default() })
}

fn unique(stem: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("pgb_{stem}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn trust_knows_its_users() {
    let bouncer = with_users("auth_type = trust\n", "\"app\" \"\"\n");
    bouncer.startup("shop").user("app").connect().ok("select 1");
    let refused = bouncer.startup("shop").user("stranger").refused();
    assert_eq!(refused.message, "\"trust\" authentication failed");
}

#[test]
fn any_lets_in_whoever_comes() {
    let bouncer = Bouncer::start(&format!("{SHOP}[pgbouncer]\nauth_type = any\n"));
    assert_eq!(bouncer.startup("shop").user("whoever").connect().value("select current_user"), "postgres");
}

#[test]
fn every_kind_of_password() {
    let role = unique("verifier");
    server().sql(&format!("create role {role} login password 'secret'"));
    let verifier = server().value(&format!("select rolpassword from pg_authid where rolname = '{role}'"));
    // md5('secret' || 'hashed')
    let md5 = server().value("select 'md5' || md5('secret' || 'hashed')");
    let users = format!("\"plain\" \"secret\"\n\"hashed\" \"{md5}\"\n\"{role}\" \"{verifier}\"\n\"empty\" \"\"\n");
    for method in ["plain", "md5", "scram-sha-256"] {
        let bouncer = with_users(&format!("auth_type = {method}\n"), &users);
        let login = |user: &str, password: &str| bouncer.startup("shop").user(user).password(password);
        login("plain", "secret").connect().ok("select 1");
        login(&role, "secret").connect().ok("select 1");
        assert_eq!(login("plain", "wrong").refused().severity, "FATAL");
        assert_eq!(login("empty", "").refused().severity, "FATAL", "{method}");
        assert_eq!(login("stranger", "secret").refused().severity, "FATAL");
        if method != "scram-sha-256" {
            login("hashed", "secret").connect().ok("select 1");
        }
    }
}

#[test]
fn the_first_rule_of_the_file_that_fits_decides() {
    let hba = "host shop rejected all reject\nhost shop app 127.0.0.1/32 scram-sha-256\nhost other all all trust\n\
               host pgbouncer all all trust\nlocal all all trust\n";
    let bouncer = Bouncer::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres user=postgres\nother = $PG dbname=postgres user=postgres\n\
              [pgbouncer]\nauth_type = hba\nauth_hba_file = $DIR/hba\nauth_file = $DIR/users\n",
        files: &[("hba", hba), ("users", "\"app\" \"secret\"\n\"rejected\" \"secret\"\n\"postgres\" \"\"\n")],
        ..Setup::default()
    });
    let login = |user: &str, database: &str| bouncer.startup(database).user(user);
    login("app", "shop").password("secret").connect().ok("select 1");
    assert_eq!(login("app", "shop").password("wrong").refused().code, "28P01");
    assert_eq!(login("rejected", "shop").password("secret").refused().message, "login rejected");
    assert_eq!(login("postgres", "shop").refused().message, "no authentication method is found");
    login("app", "other").connect().ok("select 1");
    // Rules are read again.
    std::fs::write(bouncer.file("hba"), "host all all all reject\nlocal all all trust\n").expect("it can be written");
    bouncer.unix("postgres", "pgbouncer").connect().ok("RELOAD");
    assert_eq!(login("app", "other").refused().message, "login rejected");
    std::fs::write(bouncer.file("hba"), "host all all all tust\n").expect("it can be written");
    let reload = bouncer.unix("postgres", "pgbouncer").connect().query("RELOAD");
    assert!(reload.error.expect("a bad file is refused").message.contains("hba:1"));
}

/// Under its other name the console is the same.
#[test]
fn a_rule_for_the_console_holds_for_both_its_names() {
    let hba = "host pgbouncer all all reject\nhost all all all trust\nlocal all all trust\n";
    let ini = format!("{SHOP}[pgbouncer]\nauth_type = hba\nauth_hba_file = $DIR/hba\nauth_file = $DIR/users\n");
    let files = [("hba", hba), ("users", "\"postgres\" \"\"\n")];
    let bouncer = Bouncer::with(&Setup { ini: &ini, files: &files, ..Setup::default() });
    bouncer.client("shop").ok("select 1");
    for name in ["pgbouncer", "tidegate"] {
        assert_eq!(bouncer.startup(name).refused().message, "login rejected", "{name}");
    }
}

/// Of one user nobody knows the name; all others are there.
#[test]
fn a_list_of_users_may_be_of_another_encoding() {
    let bouncer = with_users("auth_type = scram-sha-256\n", "\"app\" \"secret\"\n");
    let mut users = std::fs::read(bouncer.file("userlist.txt")).expect("it is there");
    users.extend(b"; Gr\xfc\xdfe\n\"m\xfcller\" \"x\"\n\"last\" \"secret\"\n");
    std::fs::write(bouncer.file("userlist.txt"), users).expect("it can be written");
    bouncer.unix("pgbouncer", "pgbouncer").connect().ok("RELOAD");
    for user in ["app", "last"] {
        bouncer.startup("shop").user(user).password("secret").connect().ok("select 1");
    }
}

#[test]
fn a_process_comes_as_the_user_that_a_map_says() {
    let own = std::process::Command::new("id").arg("-un").output().expect("id is there").stdout;
    let own = String::from_utf8_lossy(&own).trim().to_owned();
    let ident = format!("machine {own} app\n");
    let bouncer = Bouncer::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres user=postgres\n[pgbouncer]\nauth_type = hba\n\
              auth_hba_file = $DIR/hba\nauth_ident_file = $DIR/ident\nauth_file = $DIR/users\n",
        files: &[
            ("hba", "local all all peer map=machine\nhost all all all trust\n"),
            ("ident", &format!("{ident}machine {own} stranger\n")),
            ("users", "\"app\" \"\"\n\"other\" \"\"\n\"postgres\" \"\"\n"),
        ],
        ..Setup::default()
    });
    bouncer.unix("app", "shop").connect().ok("select 1");
    // One whom the map lets in still has to be a user.
    for user in ["other", "stranger"] {
        assert_eq!(bouncer.unix(user, "shop").refused().message, "unix socket login rejected", "{user}");
    }
}

#[test]
fn the_processs_own_user_is_admin_over_the_unix_socket() {
    let bouncer = with_users("auth_type = scram-sha-256\nadmin_users =\n", "\"app\" \"secret\"\n");
    let mut console = bouncer.unix("pgbouncer", "pgbouncer").connect();
    console.ok("SHOW POOLS");
    console.ok("PAUSE");
    console.ok("RESUME");
    assert_eq!(bouncer.startup("pgbouncer").user("pgbouncer").password("x").refused().severity, "FATAL");
    assert_eq!(bouncer.startup("pgbouncer").user("app").password("secret").refused().code, "08P01");
}

/// A database whose users are looked up by a role of its own.
fn with_look_up(lines: &str) -> (Bouncer, String) {
    let auth = unique("auth");
    server().sql(&format!("create role {auth} login superuser"));
    let ini = format!(
        "[databases]\nshop = $PG dbname=postgres auth_user={auth}\n[pgbouncer]\nauth_type = scram-sha-256\n\
         auth_file = $DIR/userlist.txt\n{lines}"
    );
    let users = "\"postgres\" \"pw\"\n";
    (Bouncer::with(&Setup { ini: &ini, files: &[("userlist.txt", users)], ..Setup::default() }), auth)
}

#[test]
fn users_are_looked_up_on_the_server() {
    let (bouncer, _) = with_look_up("");
    let role = unique("looked_up");
    server().sql(&format!("create role {role} login password 'first'"));
    let login = |password: &str| bouncer.startup("shop").user(&role).password(password);
    assert_eq!(login("first").connect().value("select current_user"), role);
    assert_eq!(login("wrong").refused().code, "28P01");
    // A changed password holds at once.
    server().sql(&format!("alter role {role} password 'second'"));
    login("second").connect().ok("select 1");
    assert_eq!(login("first").refused().code, "28P01");
    assert_eq!(bouncer.startup("shop").user("pgb_nobody_at_all").password("x").refused().code, "28P01");
}

/// Roles of one name may have different passwords on two servers, and have different verifiers in any case.
#[test]
fn users_of_two_servers_are_looked_up_apart() {
    let other = Server::start(18);
    let (auth, role) = (unique("auth"), unique("twin"));
    for (server, password) in [(server(), "first"), (&other, "second")] {
        server.sql(&format!("create role {auth} login superuser"));
        server.sql(&format!("create role {role} login password '{password}' in role scram_login"));
    }
    let bouncer = Bouncer::start(&format!(
        "[databases]\nhere = $PG dbname=postgres auth_user={auth}\n\
         there = host=127.0.0.1 port={} dbname=postgres auth_user={auth}\n\
         [pgbouncer]\nauth_type = scram-sha-256\nadmin_users = pgbouncer\n",
        other.port()
    ));
    let login = |database: &str, password: &str| bouncer.startup(database).user(&role).password(password).connect();
    let (mut here, mut there) = (login("here", "first"), login("there", "second"));
    for _ in 0..2 {
        // Both get new connections, though nobody has logged in to this one since.
        bouncer.unix("pgbouncer", "pgbouncer").connect().ok("RECONNECT");
        for client in [&mut here, &mut there] {
            assert_eq!(client.value("select current_user"), role);
        }
    }
}

/// What clients become on the server may neither be allowed to look users up, nor decide what the query means.
#[test]
fn users_are_looked_up_by_the_auth_user_where_clients_become_another() {
    let (auth, app, role, schema) = (unique("auth"), unique("app"), unique("looked_up"), unique("schema"));
    server().sql(&format!(
        "create role {auth} login; create role {app} login; create role {role} login password 'secret'; \
         create schema {schema} authorization {auth}; \
         create function {schema}.users(text) returns table (name name, secret text) language sql security definer \
         as 'select rolname, rolpassword from pg_authid where rolname = $1'; \
         revoke execute on function {schema}.users from public; grant execute on function {schema}.users to {auth}"
    ));
    let bouncer = Bouncer::start(&format!(
        "[databases]\nshop = $PG dbname=postgres user={app} auth_user={auth}\n\
         [pgbouncer]\nauth_type = scram-sha-256\nauth_query = select name, secret from {schema}.users($1)\n"
    ));
    let login = |password: &str| bouncer.startup("shop").user(&role).password(password);
    assert_eq!(login("secret").connect().value("select current_user"), app);
    assert_eq!(login("wrong").refused().code, "28P01");
}

/// CVE-2025-2291: a password that is no longer valid let its user in.
#[test]
fn edge_48_an_expired_password_lets_nobody_in() {
    let (bouncer, _) = with_look_up("");
    let role = unique("expired");
    server().sql(&format!("create role {role} login password 'secret' valid until '2001-01-01'"));
    assert_eq!(bouncer.startup("shop").user(&role).password("secret").refused().code, "28P01");
    server().sql(&format!("alter role {role} valid until 'infinity'"));
    bouncer.startup("shop").user(&role).password("secret").connect().ok("select 1");
}

/// CVE-2025-12819: a client's search_path decided what the look-up meant.
#[test]
fn edge_48_a_hostile_search_path_does_not_reach_the_look_up() {
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
    let (bouncer, auth) = with_look_up(
        "auth_query = SELECT rolname, rolpassword FROM pg_authid WHERE rolname = $1\ndefault_pool_size = 1\n",
    );
    // Somebody who may use the look-up's own connections leaves a search_path behind.
    std::fs::write(bouncer.file("userlist.txt"), format!("\"postgres\" \"pw\"\n\"{auth}\" \"known\"\n"))
        .expect("it can");
    bouncer.startup("pgbouncer").password("pw").connect().ok("RELOAD");
    let mut hostile = bouncer.startup("shop").user(&auth).password("known").connect();
    hostile.ok(&format!("set search_path = {schema}, pg_catalog"));
    let login = |password: &str| -> Startup { bouncer.startup("shop").user(&role).password(password) };
    eventually("the true password serves", || login("true").try_connect().is_ok());
    assert_eq!(login("false").refused().code, "28P01");
}

#[test]
fn edge_73_a_stats_user_reads_and_changes_nothing() {
    let bouncer = with_users("auth_type = trust\nstats_users = watcher\n", "\"postgres\" \"\"\n\"watcher\" \"\"\n");
    let mut watcher = bouncer.startup("pgbouncer").user("watcher").connect();
    watcher.ok("SHOW STATS");
    for command in ["PAUSE", "SUSPEND", "SET default_pool_size = 3", "KILL_CLIENT 1", "RELOAD", "SHUTDOWN"] {
        assert_eq!(watcher.query(command).code(), "42501", "{command}");
    }
}

/// `[users]` holds settings. PgBouncer knows the users of `auth_file` and those that `auth_query` finds.
#[test]
fn settings_of_a_user_let_nobody_in() {
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
        Bouncer::with(&Setup { ini: &ini(method), files: &files, ..Setup::default() })
    };
    for method in ["trust", "hba"] {
        let bouncer = start(method);
        bouncer.startup("shop").user("listed").connect().ok("select 1");
        for user in [&role, "empty", "unset", "stranger"] {
            for database in ["shop", "open", "pgbouncer"] {
                let refused = bouncer.startup(database).user(user).refused();
                assert_eq!(refused.message, "\"trust\" authentication failed", "{method} {user} {database}");
            }
        }
    }
    for method in ["plain", "md5", "scram-sha-256"] {
        let bouncer = start(method);
        bouncer.startup("shop").user("listed").password("secret").connect().ok("select 1");
        assert_eq!(bouncer.startup("shop").user(&role).password("secret").refused().code, "28P01", "{method}");
    }
}

#[test]
fn settings_of_a_user_do_not_convert_to_a_login() {
    let ini = format!("{SHOP}[users]\nlimited = max_user_connections=5\nempty =\n[pgbouncer]\nauth_type = trust\n");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pgbouncer.ini");
    std::fs::write(&file, crate::bouncer::with_places(&ini, folder.path())).expect("the folder can be written");
    let converted = output(&["convert", &file.display().to_string()]);
    let text = String::from_utf8_lossy(&converted.stdout).into_owned();
    assert!(text.contains("[users.limited]") && !text.contains("[users.empty]"), "{text}");
    assert!(!text.contains("password ="), "{text}");
}

/// The user of the look-up is looked up as others are.
#[test]
fn the_auth_user_logs_in_if_the_server_knows_it() {
    let auth = unique("auth");
    server().sql(&format!("create role {auth} login superuser password 'secret'"));
    for method in ["trust", "md5", "scram-sha-256"] {
        for (line, global) in
            [(format!(" auth_user={auth}"), String::new()), (String::new(), format!("auth_user = {auth}\n"))]
        {
            let bouncer = Bouncer::start(&format!(
                "[databases]\nshop = $PG dbname=postgres{line}\n[pgbouncer]\nauth_type = {method}\n{global}"
            ));
            let login = |password: &str| bouncer.startup("shop").user(&auth).password(password);
            assert_eq!(login("secret").connect().value("select current_user"), auth, "{method}");
            if method != "trust" {
                assert_eq!(login("wrong").refused().code, "28P01", "{method}");
            }
        }
    }
}

/// Whoever `auth_file` has is not looked up: an empty password there lets nobody in.
#[test]
fn a_listed_user_without_a_password_is_not_looked_up() {
    let role = unique("listed");
    server().sql(&format!("create role {role} login password 'secret'"));
    let (bouncer, _) = with_look_up("");
    bouncer.startup("shop").user(&role).password("secret").connect().ok("select 1");
    std::fs::write(bouncer.file("userlist.txt"), format!("\"postgres\" \"pw\"\n\"{role}\" \"\"\n")).expect("it can");
    bouncer.startup("pgbouncer").password("pw").connect().ok("RELOAD");
    assert_eq!(bouncer.startup("shop").user(&role).password("secret").refused().code, "28P01");
}

/// A hash or a verifier in `[databases]` is none of the server's passwords in clear text.
#[test]
fn a_database_line_may_hold_a_hash_or_a_verifier() {
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
    let bouncer = Bouncer::with(&Setup { ini: &ini, files: &[("userlist.txt", &users)], ..Setup::default() });
    let app = |database: &str| bouncer.startup(database).user("app").password("pw");
    assert_eq!(app("md5").connect().value("select current_user"), hashed);
    // No client has logged in with the verifier yet.
    let refused = app("scram").refused();
    assert!(refused.message.contains("verifier") && !refused.message.contains("SCRAM-SHA-256$"), "{refused:?}");
    let own = bouncer.startup("scram").user(&verified).password("secret");
    eventually("the client's keys open the server", || own.try_connect().is_ok());
    assert_eq!(own.connect().value("select current_user"), verified);
    eventually("others use the keys as well", || app("scram").try_connect().is_ok());
}

/// Whoever cannot be looked up since the database is closed to newcomers is told that, as all others are.
#[test]
fn a_disabled_database_says_so_to_looked_up_users() {
    let auth = unique("auth");
    let role = unique("looked_up");
    server().sql(&format!("create role {auth} login superuser; create role {role} login password 'secret'"));
    let bouncer = Bouncer::with(&Setup {
        ini: &format!(
            "[databases]\nshop = $PG dbname=postgres auth_user={auth}\nauth = $PG dbname=postgres\n\
             far = $PG dbname=postgres auth_user={auth} auth_dbname=auth\n\
             lost = $PG dbname=postgres auth_user={auth} auth_dbname=nowhere\n\
             [pgbouncer]\nauth_type = scram-sha-256\nauth_file = $DIR/userlist.txt\n"
        ),
        files: &[("userlist.txt", "\"postgres\" \"pw\"\n")],
        ..Setup::default()
    });
    let mut console = bouncer.startup("pgbouncer").password("pw").connect();
    let login = |database: &str| bouncer.startup(database).user(&role).password("secret");
    login("shop").connect().ok("select 1");
    login("far").connect().ok("select 1");
    console.ok("DISABLE shop");
    assert_eq!(login("shop").refused().message, "database \"shop\" is disabled");
    let configured = bouncer.startup("shop").password("pw").refused();
    assert_eq!(configured.message, "database \"shop\" is disabled");
    console.ok("DISABLE auth");
    assert_eq!(login("far").refused().message, "authentication database \"auth\" is disabled");
    console.ok("ENABLE auth");
    login("far").connect().ok("select 1");
    console.ok("ENABLE shop");
    login("shop").connect().ok("select 1");
    let refused = login("lost").refused();
    assert_eq!(refused.message, "authentication database \"nowhere\" is not configured");
}
