//! Notifications of systemd, received on a socket as systemd has one, and the health check of the command line.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Output};

use tidegate_testkit::{Gateway, Process, Signal, Startup, TIMEOUT, free_address};

fn binary() -> PathBuf {
    Gateway::binary(env!("CARGO_BIN_EXE_tidegate"))
}

/// A gateway without a Postgres, whose notifications are received.
struct Service {
    process: Process,
    notifications: UnixDatagram,
    folder: tempfile::TempDir,
}

impl Service {
    fn start(variables: &[(&str, &str)]) -> Self {
        for _ in 0..5 {
            let folder = tempfile::tempdir().expect("a folder");
            let notifications = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
            notifications.set_read_timeout(Some(TIMEOUT)).expect("a socket");
            let address = free_address(20_000..30_000);
            write_config(&folder, address, "");
            let mut process = spawn(&folder, address, &[], variables);
            if process.accepts() {
                return Self { process, notifications, folder };
            }
        }
        panic!("no free port found");
    }

    /// Starts a second process with the files of this one.
    fn second(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Process {
        spawn(&self.folder, self.process.address(), arguments, variables)
    }

    /// The assignments of the next notification.
    fn next(&self) -> Vec<(String, String)> {
        let mut message = [0; 4096];
        let length = self
            .notifications
            .recv(&mut message)
            .unwrap_or_else(|error| panic!("no notification arrives: {error}\n{}", self.process.log()));
        let text = String::from_utf8_lossy(&message[..length]).into_owned();
        let assignment = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        text.lines().map(|line| assignment(line).unwrap_or_else(|| panic!("not an assignment: {line}"))).collect()
    }

    /// The value of a name in the next notification that has it; others are returned to `skipped`.
    fn wait_for(&self, name: &str, skipped: &mut Vec<(String, String)>) -> String {
        loop {
            let assignments = self.next();
            if let Some((_, value)) = assignments.iter().find(|(known, _)| known == name) {
                return value.clone();
            }
            skipped.extend(assignments);
        }
    }

    fn console(&self) -> Startup {
        Startup::tcp(self.process.address(), "postgres", "tidegate")
    }

    fn healthcheck(&self) -> Output {
        let file = self.folder.path().join("tidegate.toml");
        let mut command = Command::new(binary());
        command.args(["healthcheck", "--config"]).arg(file).output().expect("the binary can be started")
    }
}

fn write_config(folder: &tempfile::TempDir, address: SocketAddr, further: &str) {
    let text = format!(
        "[listen]\naddresses = [\"{address}\"]\nunix_socket_dir = \"{}\"\n[auth]\nmethod = \"trust\"\n[admin]\nusers = \
         [\"postgres\"]\n[databases.shop]\nhost = \"127.0.0.1\"\n{further}",
        folder.path().display()
    );
    fs::write(folder.path().join("tidegate.toml"), text).expect("the folder can be written");
}

fn spawn(folder: &tempfile::TempDir, address: SocketAddr, arguments: &[&str], variables: &[(&str, &str)]) -> Process {
    let mut command = Command::new(binary());
    command.args(["run", "--workers", "2", "-c"]).arg(folder.path().join("tidegate.toml")).args(arguments);
    command.env("NOTIFY_SOCKET", folder.path().join("notify"));
    command.envs(variables.iter().copied());
    let address = (Ipv4Addr::LOCALHOST, address.port()).into();
    Process::spawn(command, address, tempfile::tempdir().expect("a folder"))
}

/// OP-09.
#[test]
fn systemd_learns_of_start_reload_and_stop() {
    let mut service = Service::start(&[]);
    let ready = service.next();
    assert_eq!(ready[0], ("READY".to_owned(), "1".to_owned()), "{ready:?}");
    service.console().connect().show("VERSION");
    service.process.signal(Signal::HUP);
    let reloading = service.next();
    assert_eq!(reloading[0], ("RELOADING".to_owned(), "1".to_owned()), "{reloading:?}");
    let begun = reloading.iter().find(|(name, _)| name == "MONOTONIC_USEC").expect("the time of the reload");
    assert!(begun.1.parse::<u64>().is_ok_and(|usec| usec > 0), "{reloading:?}");
    let ready = service.next();
    assert_eq!(ready[0], ("READY".to_owned(), "1".to_owned()), "{ready:?}");
    assert!(ready[1].1.contains("configuration reloaded"), "{ready:?}");
    service.process.signal(Signal::INT);
    let stopping = service.next();
    assert_eq!(stopping[0], ("STOPPING".to_owned(), "1".to_owned()), "{stopping:?}");
    assert!(service.process.wait().success());
}

/// OP-10.
#[test]
fn failed_reload_is_a_status_and_still_ready() {
    let service = Service::start(&[]);
    service.next();
    write_config(&service.folder, service.process.address(), "[pool]\nsize = \"hunter2\"\n");
    service.process.signal(Signal::HUP);
    service.wait_for("RELOADING", &mut Vec::new());
    let ready = service.next();
    assert_eq!(ready[0], ("READY".to_owned(), "1".to_owned()), "{ready:?}");
    assert!(ready[1].1.contains("reload failed") && ready[1].1.contains("pool.size"), "{ready:?}");
    assert!(!ready[1].1.contains("hunter2"), "{ready:?}");
    service.console().connect().show("VERSION");
    let checked = Command::new(binary()).arg("check").arg(service.folder.path().join("tidegate.toml")).output();
    assert_eq!(checked.expect("the binary can be started").status.code(), Some(1));
}

/// OP-11.
#[test]
fn watchdog_is_notified_while_threads_answer() {
    let service = Service::start(&[("WATCHDOG_USEC", "600000")]);
    for _ in 0..3 {
        assert_eq!(service.wait_for("WATCHDOG", &mut Vec::new()), "1");
    }
    // The watchdog of another process is none of this one's.
    let service = Service::start(&[("WATCHDOG_USEC", "1000"), ("WATCHDOG_PID", "1")]);
    service.process.signal(Signal::INT);
    let mut skipped = Vec::new();
    service.wait_for("STOPPING", &mut skipped);
    assert!(skipped.iter().all(|(name, _)| name != "WATCHDOG"), "{skipped:?}");
}

/// OP-60.
#[test]
fn process_that_takes_over_becomes_the_main_process() {
    let mut service = Service::start(&[]);
    let mut skipped = service.next();
    let second = service.second(&["--take-over"], &[]);
    let main = second.id().to_string();
    // The old process names its successor, which also names itself: systemd accepts the former.
    assert_eq!(service.wait_for("MAINPID", &mut skipped), main);
    assert_eq!(service.wait_for("MAINPID", &mut skipped), main);
    // The old process has no client and ends.
    assert!(service.process.wait().success());
    service.console().connect().show("VERSION");
    second.signal(Signal::INT);
    service.wait_for("STOPPING", &mut skipped);
    assert!(skipped.iter().all(|(name, _)| name != "STOPPING"), "the old process ends the service: {skipped:?}");
}

#[test]
fn health_check_fails_when_the_gateway_is_gone() {
    let mut service = Service::start(&[]);
    let healthy = service.healthcheck();
    assert!(healthy.status.success() && healthy.stdout.is_empty() && healthy.stderr.is_empty(), "{healthy:?}");
    assert!(!service.process.log().contains("WARN"), "the check is logged:\n{}", service.process.log());
    service.process.signal(Signal::INT);
    service.process.wait();
    let gone = service.healthcheck();
    assert!(!gone.status.success() && String::from_utf8_lossy(&gone.stderr).contains("no reply from"), "{gone:?}");
}

/// Whether this machine has a file that `tidegate container` would use instead of variables.
fn has_file_of_container() -> bool {
    let files =
        ["/etc/tidegate/tidegate.toml", "/etc/pgbouncer/pgbouncer.ini", "/bitnami/pgbouncer/conf/pgbouncer.ini"];
    let found = files.iter().find(|file| std::path::Path::new(file).exists());
    if let Some(found) = found {
        eprintln!("{found} exists: `tidegate container` is not tested without a file");
    }
    found.is_some()
}

/// OP-17. Nothing but variables: one of the packages' containers.
#[test]
fn container_runs_from_variables_alone() {
    if has_file_of_container() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let address = free_address(20_000..30_000);
    let port = address.port().to_string();
    let mut command = Command::new(binary());
    command.arg("container").env_clear().current_dir(folder.path());
    command.envs([("DATABASE_URL", "postgres://app:hunter2@127.0.0.1:1/shop"), ("LISTEN_PORT", &port)]);
    command.envs([("ADMIN_USERS", "ops"), ("ADMIN_PASSWORDS", "secret"), ("AUTH_TYPE", "scram-sha-256")]);
    let mut container = Process::spawn(command, (Ipv4Addr::LOCALHOST, address.port()).into(), folder);
    if !container.accepts() {
        // Another process has taken the port.
        return;
    }
    let console = Startup::tcp(container.address(), "ops", "pgbouncer").password("secret");
    let databases = console.connect().show("DATABASES");
    assert!(databases.iter().any(|row| row["name"] == "shop" && row["port"] == "1"), "{databases:?}");
    // The file in memory is read again by a reload.
    console.connect().ok("RELOAD");
    let arguments = fs::read_to_string(format!("/proc/{}/cmdline", container.id())).expect("the process runs");
    assert!(!arguments.contains("hunter2") && !container.log().contains("hunter2"), "{}", container.log());
    container.signal(Signal::TERM);
    assert!(container.wait().success());
}

#[test]
fn container_without_a_configuration_lists_variables() {
    if has_file_of_container() {
        return;
    }
    let output = Command::new(binary()).arg("container").env_clear().current_dir("/").output();
    let output = output.expect("the binary can be started");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("TIDEGATE_DATABASE") && text.contains("DATABASE_URL"), "{text}");
}
