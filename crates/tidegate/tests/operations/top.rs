//! `tidegate top` in a pseudo-terminal of 80 columns and 24 lines, and its output for scripts.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::{Pid, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;
use tidegate_testkit::{Fixture, Frames, Gateway, Process, RawClient, Signal, TIMEOUT, eventually, poll};

/// A program in a pseudo-terminal.
struct Terminal {
    child: Child,
    controller: OwnedFd,
    screen: Arc<Mutex<vt100::Parser>>,
    /// Everything that was written.
    written: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(gateway: &Gateway, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("one's own terminal");
        set_size(&controller, 80, 24);
        let name = ptsname(&controller, Vec::new()).expect("a name");
        let open = || {
            let name = name.to_str().expect("a path");
            File::options().read(true).write(true).open(name).expect("the terminal can be opened")
        };
        let mut command = command(gateway, arguments, variables);
        command.env("TERM", "xterm-256color").stdin(open()).stdout(open()).stderr(open());
        let child = command.spawn().expect("the binary starts");
        // The child alone has the other end: its end is the end of the output.
        drop(command);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(size(24), size(80), 0)));
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let mut reader = File::from(controller.try_clone().expect("a descriptor can be duplicated"));
        let (parser, all) = (screen.clone(), written.clone());
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // Reading fails when the program has ended.
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                all.lock().expect("no panic").extend_from_slice(&buffer[..count]);
                parser.lock().expect("no panic").process(&buffer[..count]);
            }
        });
        Self { child, controller, screen, written }
    }

    fn contents(&self) -> String {
        self.screen.lock().expect("no panic").screen().contents()
    }

    #[track_caller]
    fn wait_for(&self, text: &str) -> String {
        let is_shown = poll(TIMEOUT, || self.contents().contains(text));
        assert!(is_shown, "\"{text}\" is not on the screen:\n{}", self.contents());
        self.contents()
    }

    fn press(&self, keys: &str) {
        let mut input = File::from(self.controller.try_clone().expect("a descriptor can be duplicated"));
        input.write_all(keys.as_bytes()).expect("the terminal takes input");
    }

    fn is_raw(&self) -> bool {
        // Both ends have the same settings on Linux.
        !tcgetattr(&self.controller).expect("a terminal").local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Waits for the end of the program. The terminal must be as before.
    #[track_caller]
    fn assert_restored(&mut self) {
        let mut status = None;
        eventually("the program ends", || {
            status = self.child.try_wait().expect("one's own child");
            status.is_some()
        });
        assert!(!self.is_raw(), "lines and echo are on again");
        eventually("the usual screen is shown, with a cursor", || {
            let parser = self.screen.lock().expect("no panic");
            !parser.screen().alternate_screen() && !parser.screen().hide_cursor()
        });
        assert!(status.is_some_and(|status| status.success()), "{status:?}:\n{}", self.contents());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn size(cells: u16) -> NonZeroU16 {
    NonZeroU16::new(cells).expect("a terminal has a size")
}

fn set_size(controller: &OwnedFd, columns: u16, rows: u16) {
    tcsetwinsize(controller, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
        .expect("the terminal has a size");
}

/// `tidegate top` with nothing of this machine's environment.
fn command(gateway: &Gateway, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(Gateway::binary(env!("CARGO_BIN_EXE_tidegate")));
    command.env_clear().args(["top", "--interval", "0.2"]).args(arguments);
    command.envs([("LANG", "C.UTF-8"), ("PGHOST", "127.0.0.1"), ("PGUSER", "postgres")]);
    command.env("PGPORT", gateway.address().port().to_string()).envs(variables.iter().copied());
    command
}

#[track_caller]
fn output(gateway: &Gateway, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = command(gateway, arguments, variables);
    command.stdin(Stdio::null()).output().expect("the binary starts")
}

#[track_caller]
fn json(gateway: &Gateway, arguments: &[&str], variables: &[(&str, &str)]) -> Value {
    let output = output(gateway, &[&["--json"], arguments].concat(), variables);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// The console does not depend on the version of Postgres.
fn fixture() -> Fixture {
    Fixture::new(env!("CARGO_BIN_EXE_tidegate"), 18)
}

/// A gateway with a waiting client, a busy one and an idle one.
fn busy_gateway(fixture: &Fixture, more: &str) -> (Gateway, Vec<RawClient>) {
    let gateway = fixture.gateway(&format!(
        "size = 1\n[timeouts]\ncheckout = \"60s\"\n[admin]\nusers = [\"postgres\"]\nstats_users = [\"watcher\"]\n{more}"
    ));
    let idle = gateway.startup("postgres").parameter("application_name", "evil\u{1b}[2Jname").connect();
    let mut waiting = gateway.startup("postgres").parameter("application_name", "nightly-batch").connect();
    let mut busy = gateway.client("postgres");
    busy.ok("begin");
    waiting.send(&Frames::new().query("select 1"));
    gateway.wait_for_pool("postgres", "cl_waiting", 1);
    (gateway, vec![busy, waiting, idle])
}

/// OP-45.
#[test]
fn screens_are_shown_at_80_by_24() {
    let fixture = fixture();
    let folder = tempfile::tempdir().expect("a folder");
    let journal = format!("[journal]\nfolder = \"{}\"\n", folder.path().join("journal").display());
    let (gateway, mut clients) = busy_gateway(&fixture, &journal);
    clients[0].ok("select 4711 as answer");
    let mut terminal = Terminal::start(&gateway, &[], &[]);
    let overview = terminal.wait_for("Waiting clients");
    assert!(overview.contains(&format!("Tidegate  {}  active  up", gateway.address())), "{overview}");
    terminal.wait_for("Servers           1 busy, 0 idle");
    assert!(terminal.is_raw());
    terminal.press("2");
    let pools = terminal.wait_for("1 of 1 rows");
    assert!(pools.contains("maxwait") && pools.contains("postgres"), "{pools}");
    terminal.press("3");
    let shown = terminal.wait_for("4 of 4 rows").lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(shown[4].contains("waiting"), "the client that waits is on top: {shown:#?}");
    terminal.press("4");
    terminal.wait_for("pid");
    terminal.press("5");
    terminal.wait_for("unwatched");
    terminal.press("6");
    terminal.wait_for("select ? as answer");
    terminal.press("\r");
    terminal.wait_for("fingerprint");
    terminal.press("\u{1b}");
    // Escape with a key behind it is Alt with that key.
    terminal.wait_for("last 15 minutes");
    terminal.press("7");
    terminal.wait_for("no stream is configured");
    terminal.press("?");
    terminal.wait_for("disconnect the selected client");
    terminal.press("xq");
    terminal.assert_restored();
}

/// OP-45.
#[test]
fn filter_pause_and_kill_work_by_key() {
    let fixture = fixture();
    let (gateway, mut clients) = busy_gateway(&fixture, "");
    let mut terminal = Terminal::start(&gateway, &["--screen", "clients"], &[]);
    terminal.wait_for("4 of 4 rows");
    terminal.press("/nightly\r");
    terminal.wait_for("1 of ");
    terminal.press("K");
    terminal.wait_for("disconnect client");
    terminal.press("n");
    terminal.wait_for("filter: nightly");
    terminal.press(" ");
    terminal.wait_for("paused");
    terminal.press(" Ky");
    terminal.wait_for("was disconnected");
    terminal.wait_for("no row contains the filter");
    clients[1].expect_fatal("57P01");
    terminal.press("\u{3}");
    terminal.assert_restored();
}

/// OP-45: The terminal is restored on signals.
#[test]
fn signals_restore_the_terminal() {
    let fixture = fixture();
    let gateway = fixture.gateway("[admin]\nusers = [\"postgres\"]\n");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let mut terminal = Terminal::start(&gateway, &[], &[]);
        terminal.wait_for("Transactions/s");
        kill_process(Pid::from_child(&terminal.child), signal).expect("one's own child");
        terminal.assert_restored();
    }
}

/// OP-45.
#[test]
fn terminal_follows_its_size() {
    let fixture = fixture();
    let gateway = fixture.gateway("[admin]\nusers = [\"postgres\"]\n");
    let mut terminal = Terminal::start(&gateway, &["--screen", "pools"], &[]);
    assert!(!terminal.wait_for("maxwait").contains("mode"));
    terminal.screen.lock().expect("no panic").screen_mut().set_size(size(30), size(132));
    set_size(&terminal.controller, 132, 30);
    kill_process(Pid::from_child(&terminal.child), Signal::WINCH).expect("one's own child");
    terminal.wait_for("paused mode");
    terminal.press("q");
    terminal.assert_restored();
}

#[test]
fn no_color_writes_no_colour() {
    let fixture = fixture();
    let gateway = fixture.gateway("[admin]\nusers = [\"postgres\"]\n");
    let is_coloured = |variables: &[(&str, &str)]| {
        let mut terminal = Terminal::start(&gateway, &[], variables);
        terminal.wait_for("q quit");
        terminal.press("q");
        terminal.assert_restored();
        let written = terminal.written.lock().expect("no panic");
        // Foreground colours of the palette.
        written.windows(5).any(|bytes| bytes == b"\x1b[38;" || bytes.starts_with(b"\x1b[3") && bytes[4] == b'm')
    };
    assert!(is_coloured(&[]));
    assert!(!is_coloured(&[("NO_COLOR", "1")]));
}

/// The screen stays, and continues with the new process.
#[test]
fn restart_of_the_gateway_is_survived() {
    let fixture = fixture();
    let mut gateway = fixture.gateway("[admin]\nusers = [\"postgres\"]\n");
    let mut terminal = Terminal::start(&gateway, &[], &[]);
    terminal.wait_for("Transactions/s");
    gateway.signal(Signal::QUIT);
    gateway.wait();
    terminal.wait_for("reconnecting");
    assert!(terminal.contents().contains("Transactions/s"), "the last values stay");
    let mut command = Command::new(Gateway::binary(env!("CARGO_BIN_EXE_tidegate")));
    command.args(["run", "-c"]).arg(gateway.config_file());
    let mut again = Process::spawn(command, gateway.address(), tempfile::tempdir().expect("a folder"));
    assert!(again.accepts());
    terminal.wait_for("every 0.2 s");
    terminal.press("q");
    terminal.assert_restored();
}

#[test]
fn scripts_get_text_and_json() {
    let fixture = fixture();
    let (gateway, _clients) = busy_gateway(&fixture, "");
    let all = json(&gateway, &[], &[]);
    assert_eq!((&all["state"], &all["waiting"]), (&"active".into(), &1.into()), "{all:#}");
    assert_eq!((&all["pools"][0]["database"], &all["pools"][0]["pool_size"]), (&"postgres".into(), &1.into()));
    assert_eq!(all["clients"][0]["state"], "waiting");
    assert_eq!(all["hosts"][0]["state"], "unwatched");
    assert!(all["load"]["queries"].is_number() && all["errors"][0]["event"] == "checkout timeout", "{all:#}");
    assert!(all["queries_error"].as_str().is_some_and(|error| error.contains("[journal]")), "{all:#}");
    let one = json(&gateway, &["--screen", "clients", "--filter", "nightly"], &[]);
    assert_eq!(one["clients"].as_array().map(Vec::len), Some(1), "{one:#}");
    let text = output(&gateway, &["--once", "--screen", "clients", "--sort", "-id"], &[]);
    let text = String::from_utf8(text.stdout).expect("text");
    assert!(text.starts_with("     id") || text.trim_start().starts_with("id"), "{text}");
    assert!(text.contains("evil\\x1b[2Jname") && !text.contains('\u{1b}'), "{text}");
    let text = output(&gateway, &["--once"], &[]);
    assert!(String::from_utf8_lossy(&text.stdout).contains("Waiting clients   1\n"), "{text:?}");
}

/// Texts of statements may contain personal data.
#[test]
fn stats_users_see_no_statements() {
    let fixture = fixture();
    let folder = tempfile::tempdir().expect("a folder");
    let journal = format!("[journal]\nfolder = \"{}\"\n", folder.path().join("journal").display());
    let (gateway, mut clients) = busy_gateway(&fixture, &journal);
    clients[0].ok("select 4711 as answer");
    let queries = |user| json(&gateway, &["--screen", "queries"], &[("PGUSER", user)])["queries"].clone();
    eventually("the query is in the log", || queries("postgres").to_string().contains("select ? as answer"));
    let hidden = queries("watcher");
    assert!(hidden[0]["calls"].as_u64().is_some_and(|calls| calls > 0), "{hidden:#}");
    assert!(!hidden.to_string().contains("answer"), "{hidden:#}");
}

#[test]
fn errors_name_what_to_do() {
    let fixture = fixture();
    let mut gateway = fixture.gateway("[admin]\nusers = [\"postgres\"]\n");
    let error = |arguments: &[&str], variables: &[(&str, &str)]| {
        let output = output(&gateway, arguments, variables);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).expect("text")
    };
    assert!(error(&[], &[]).contains("--once or --json"), "{}", error(&[], &[]));
    let refused = error(&["--json"], &[("PGUSER", "nobody")]);
    assert!(refused.contains("admin.users"), "{refused}");
    let url = format!("postgres://postgres@{}/postgres", gateway.address());
    let database = error(&["--json", &url], &[]);
    assert!(database.contains("not the admin console") && database.contains("tidegate"), "{database}");
    let column = error(&["--once", "--screen", "pools", "--sort", "x"], &[]);
    assert!(column.contains("maxwait"), "{column}");
    gateway.signal(Signal::QUIT);
    gateway.wait();
    let output = output(&gateway, &["--json"], &[]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot connect"), "{output:?}");
}

#[test]
fn password_comes_from_environment_or_file() {
    let fixture = fixture();
    let config =
        "[auth]\nmethod = \"scram-sha-256\"\n[users.ann]\npassword = \"s3cret word\"\n[admin]\nusers = [\"ann\"]\n";
    let gateway = fixture.start(&format!("{}{config}", fixture.database_section("postgres", "postgres")));
    let by_variable = json(&gateway, &["--screen", "pools"], &[("PGUSER", "ann"), ("PGPASSWORD", "s3cret word")]);
    assert_eq!(by_variable["state"], "active");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pgpass");
    let line = format!("127.0.0.1:{}:tidegate:ann:s3cret word\n", gateway.address().port());
    tidegate_testkit::write_private(&file, &line);
    let file = file.display().to_string();
    let by_file = json(&gateway, &["--screen", "pools"], &[("PGUSER", "ann"), ("PGPASSFILE", &file)]);
    assert_eq!(by_file["state"], "active");
    let wrong = output(&gateway, &["--json"], &[("PGUSER", "ann"), ("PGPASSWORD", "wrong word")]);
    let error = String::from_utf8_lossy(&wrong.stderr);
    assert!(!wrong.status.success() && error.contains("password") && !error.contains("wrong word"), "{error}");
}
