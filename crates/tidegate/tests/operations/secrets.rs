//! Contents of files and secrets do not appear in the console, its errors or the log.

use std::{fs, process::Command};

use tidegate_testkit::{Frames, Gateway, Process, Startup, free_address, on_each_postgres};

const CANARY: &str = "c4naryKq7w";

/// The rows of all tables that a user of the console can read.
fn tables_of(gateway: &Gateway, user: &str) -> String {
    let mut console = gateway.startup("tidegate").user(user).connect();
    let topics = ["CONFIG", "DATABASES", "USERS", "POOLS", "CLIENTS", "SERVERS", "STREAMS", "HOSTS", "PEERS", "TASKS"];
    topics.iter().map(|topic| format!("{:?}", console.ok(&format!("SHOW {topic}")).rows)).collect()
}

/// The value of a column of SHOW CONFIG.
fn config(gateway: &Gateway, key: &str, column: &str) -> String {
    let rows = gateway.show("CONFIG");
    rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("no {key}"))[column].clone()
}

on_each_postgres! {
    fn set_of_a_file_key_is_rejected(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let target = gateway.folder().join("chosen");
        fs::write(gateway.folder().join("key"), CANARY).expect("the folder can be written");
        let mut console = gateway.console();
        for key in ["log.file", "logfile", "log.syslog", "auth.hba_file", "listen.tls_key", "listen.tls_cert", "conffile"] {
            for file in [&target, &gateway.folder().join("key"), &gateway.folder().join("none/at/all")] {
                let refused = console.query(&format!("SET {key} = '{}'", file.display()));
                assert_eq!(refused.code(), "42501", "{key}");
                let error = refused.error.expect("an error");
                assert!(error.message.contains("names a file") && !error.message.contains("chosen"), "{error:?}");
            }
        }
        assert_eq!(console.query("SET admin.set_files = true").code(), "22023", "SET must not enable it");
        assert!(!target.exists());
        for (key, expected) in [
            ("log.file", "reload"),
            ("auth.hba_file", "reload"),
            ("logfile", "reload"),
            ("conffile", "no"),
            ("databases.postgres.host", "reload"),
            ("pool.size", "yes"),
            ("default_pool_size", "yes"),
            ("admin.set_files", "no"),
            ("listen.addresses", "no"),
        ] {
            assert_eq!(config(&gateway, key, "changeable"), expected, "{key}");
        }
    }

    fn set_files_shows_no_file_contents(fixture) {
        let gateway = fixture.gateway("size = 1\n[admin]\nset_files = true\n");
        let (log, secret) = (gateway.folder().join("other.log"), gateway.folder().join("secret"));
        fs::write(&secret, format!("{CANARY}\n{CANARY} {CANARY} {CANARY}\n")).expect("the folder can be written");
        let mut console = gateway.console();
        console.ok(&format!("SET log.file = '{}'", log.display()));
        assert!(log.exists());
        assert_eq!(config(&gateway, "log.file", "changeable"), "yes");
        console.ok(&format!("SET auth.hba_file = '{}'", secret.display()));
        let refused = console.query("SET auth.method = 'hba'");
        let error = refused.error.expect("the file has no valid rules");
        assert!(error.message.contains("secret:1: invalid rule") && !error.message.contains(CANARY), "{error:?}");
        console.ok(&format!("SET conffile = '{}'", secret.display()));
        let error = console.query("RELOAD").error.expect("the file is no configuration");
        assert!(error.message.contains("secret:1: syntax error") && !error.message.contains(CANARY), "{error:?}");
        let printed = format!("{error:?}");
        assert!(!printed.contains(CANARY), "{printed}");
    }

    fn failed_reload_names_position_and_key(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        for (path, value, expected) in [
            ("pool.size", CANARY, "pool.size: invalid setting"),
            ("pool.sise", CANARY, "unknown key, similar to pool.size"),
            ("auth.hba_file", "/c4naryKq7w", "auth.hba_file: the file cannot be used"),
            // Last, because its section remains.
            ("c4naryKq7w.x", "x", "unknown key or section"),
        ] {
            gateway.set_config(path, value);
            let error = gateway.console().query("RELOAD").error.expect("the file is rejected");
            assert_eq!(error.code, "F0000");
            assert!(error.message.contains(expected) && error.message.contains("tidegate.toml:"), "{path}: {error:?}");
            assert!(!format!("{error:?}").contains("c4nary"), "{path}: {error:?}");
            gateway.remove_config(path);
        }
    }

    /// The log at any level, every table and every error.
    fn secrets_appear_in_no_log_table_or_error(fixture) {
        let (host, port) = (fixture.server.address().ip(), fixture.server.port());
        let canary = |number: u32| format!("{CANARY}{number}");
        let mut gateway = fixture.start(&format!(
            "[auth]\nmethod = \"trust\"\nldap_options = \"ldapserver=h ldapbindpasswd={}\"\n\
             [admin]\nusers = [\"postgres\"]\nstats_users = [\"watcher\"]\n[log]\nlevel = \"trace\"\n\
             [databases.postgres]\nhost = \"{host}\"\nport = {port}\nuser = \"postgres\"\npassword = \"{}\"\n\
             connect_query = \"select set_config('app.key', '{}', false)\"\n\
             startup_parameters = {{ \"app.token\" = \"{}\" }}\n\
             [databases.fails]\nhost = \"{host}\"\nport = {port}\ndbname = \"postgres\"\n\
             connect_query = \"select '{}'::int\"\n\
             [databases.url]\nurl = \"postgres://u:{}@{host}:{port}/postgres?options=-capp.b%3D{}\"\n\
             [users.app]\npassword = \"{}\"\n\
             [[streams]]\nname = \"ship\"\nfrom = \"none\"\nto = \"http://u:{}@127.0.0.1:9/x?t={}\"\n\
             headers = {{ Authorization = \"{}\" }}\n",
            canary(0), canary(1), canary(2), canary(3), canary(4), canary(5), canary(6), canary(7), canary(8), canary(9),
            canary(10),
        ));
        gateway.client("postgres").ok("select 1");
        let refused = gateway.startup("fails").refused();
        assert!(refused.message.contains("connect_query failed"), "{refused:?}");
        assert!(!format!("{refused:?}").contains(CANARY), "{refused:?}");
        let mut console = gateway.console();
        for (key, value) in [
            ("auth.ldap_options", "ldapserver=h ldapbindpasswd="),
            ("users.app.password", ""),
            ("users.app.pasword", ""),
            ("databases.postgres.connect_query", "select "),
            ("databases.postgres.startup_parameters", "a="),
            ("databases.postgres.url", "postgres://u:"),
            ("streams.ship.headers", "a="),
            ("no_such_setting", ""),
            ("auth_ldap_options", "x="),
        ] {
            console.query(&format!("SET {key} = '{value}{CANARY}'"));
        }
        console.ok(&format!("SET listen.login_notice = 'see https://u:{CANARY}@h/'"));
        console.ok("SET listen.login_notice = ''");
        // Values that a reload rejects.
        gateway.set_config("databases.url.url", format!("postgres://u:{CANARY}@h:x/d"));
        gateway.set_config("auth.ldap_options", format!("ldapserver=h ldapbindpasswd=a {CANARY}=x {CANARY}"));
        gateway.set_config("auth.method", "ldap");
        let error = console.query("RELOAD").error.expect("the file is rejected");
        assert!(!format!("{error:?}").contains(CANARY), "{error:?}");
        for user in ["postgres", "watcher"] {
            let tables = tables_of(&gateway, user);
            assert!(!tables.contains(CANARY), "{user}: {tables}");
        }
        let log = gateway.log();
        assert!(log.contains("SET auth.ldap_options = '***'") && log.contains("SET users.app.password = '***'"), "{log}");
        let line = log.lines().find(|line| line.contains(CANARY));
        assert_eq!(line, None);
        let check = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("check")
            .arg(gateway.config_file())
            .output()
            .expect("the binary can be started");
        let output = String::from_utf8_lossy(&check.stdout);
        assert!(!output.contains(CANARY), "{output}");
    }

    /// Text from a client is escaped in the log.
    fn escape_sequences_of_a_client_are_not_logged(fixture) {
        let gateway = fixture.gateway("size = 1\n");
        let name = "a\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}";
        let _ = gateway.startup(name).try_connect();
        let mut client = gateway.startup("postgres").parameter("application_name", name).connect();
        client.send(&Frames::new().query("select 1"));
        client.until_ready();
        let log = gateway.log();
        assert!(!log.contains(['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}']), "{log:?}");
        assert!(log.contains("owned"), "{log}");
    }

    /// Every user of a machine can read the command line of a process.
    fn password_is_read_from_the_environment(fixture) {
        let role = fixture.create_role(CANARY, "");
        let server = fixture.server.address();
        for (url, password) in [
            (format!("postgres://{role}:{CANARY}@{server}/postgres"), None),
            (format!("postgres://{role}@{server}/postgres"), Some(CANARY)),
        ] {
            let address = free_address(10_000..20_000);
            let mut command = Command::new(Gateway::binary(env!("CARGO_BIN_EXE_tidegate")));
            command.args(["run", "--workers", "1", "-l", &address.to_string()]).env("TIDEGATE_DATABASE", &url);
            if let Some(password) = password {
                command.env("PGPASSWORD", password);
            }
            let mut gateway = Process::spawn(command, address, tempfile::tempdir().expect("a folder"));
            assert!(gateway.accepts());
            let login = |password: &str| Startup::tcp(address, &role, "postgres").password(password);
            login(CANARY).connect().ok("select 1");
            assert_eq!(login("wrong").refused().code, "28P01");
            let line = fs::read_to_string(format!("/proc/{}/cmdline", gateway.id())).expect("the gateway runs");
            assert!(!line.contains(CANARY) && !gateway.log().contains(CANARY), "{line}");
        }
    }

    /// Both a reload and `tidegate check` warn.
    fn exposed_configuration_file_logs_a_warning(fixture) {
        use std::os::unix::fs::PermissionsExt as _;

        let mut gateway = fixture.gateway("size = 1\n[users.app]\npassword = \"x\"\n");
        assert_eq!(gateway.warnings(), Vec::<String>::new());
        let file = gateway.config_file();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o606)).expect("the test owns the file");
        gateway.set_config("pool.size", 3);
        gateway.console().ok("RELOAD");
        let warning = format!("every user of this machine can change {}", file.display());
        assert!(gateway.warnings().iter().any(|line| line.contains(&warning)), "{}", gateway.log());
        let check = Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("check").arg(&file).output().expect("the binary starts");
        let output = String::from_utf8_lossy(&check.stdout);
        assert!(output.contains(&warning) && output.contains("help: chmod 6"), "{output}");
    }
}
