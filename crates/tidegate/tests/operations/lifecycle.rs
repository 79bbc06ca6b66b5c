//! Start and shutdown of the process: signals, deadlines and the final report.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::process::Command;

use tidegate_testkit::{
    ClientError, FaultyServer, Frames, Gateway, Process, Signal, Startup, eventually, gateway_for, on_each_postgres,
};

on_each_postgres! {
    /// EDGE-68.
    fn second_sigterm_does_not_wait_for_clients(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        gateway.signal(Signal::TERM);
        eventually("new clients are rejected", || gateway.startup("postgres").try_connect().is_err());
        client.ok("select 1");
        client.ok("commit");
        client.ok("select 'after the signal'");
        assert!(gateway.is_running());
        gateway.signal(Signal::TERM);
        gateway.wait();
        assert!(client.try_query("select 1").is_err());
    }

    /// EDGE-68.
    fn sigterm_ends_when_the_last_client_leaves(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("select 1");
        gateway.signal(Signal::TERM);
        eventually("new clients are rejected", || gateway.startup("postgres").try_connect().is_err());
        client.ok("select 1");
        client.send(&Frames::new().terminate());
        assert!(gateway.wait().success());
    }

    /// EDGE-68.
    fn sigint_waits_for_transactions(fixture) {
        let mut gateway = fixture.gateway("size = 2\n");
        let mut idle = gateway.client("postgres");
        idle.ok("select 1");
        let mut busy = gateway.client("postgres");
        busy.ok("begin");
        gateway.signal(Signal::INT);
        match idle.try_recv() {
            Ok(message) if message.tag == b'E' => idle.expect_eof(),
            Err(ClientError::Closed) => {}
            other => panic!("an idle client gets an error and is closed: {other:?}"),
        }
        assert_eq!(busy.ok("select 1").status, 'T');
        busy.ok("commit");
        assert!(gateway.wait().success());
    }

    /// EDGE-68.
    fn sighup_during_shutdown_is_ignored(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        gateway.signal(Signal::TERM);
        gateway.signal(Signal::HUP);
        client.ok("select 1");
        client.ok("commit");
        client.send(&Frames::new().terminate());
        assert!(gateway.wait().success());
    }

    /// EDGE-68.
    fn shutdown_timeout_ends_the_process(fixture) {
        let mut gateway = fixture.gateway("size = 1\n[timeouts]\nshutdown = \"300ms\"\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        gateway.signal(Signal::TERM);
        gateway.wait();
        assert!(client.try_query("select 1").is_err());
    }

    /// EDGE-68: A reload or another signal during the shutdown does not restart its timeout.
    fn reload_does_not_extend_the_shutdown_timeout(fixture) {
        let mut gateway = fixture.gateway("size = 1\n[timeouts]\nshutdown = \"1s\"\n");
        let mut client = gateway.client("postgres");
        client.ok("begin");
        gateway.signal(Signal::TERM);
        eventually("the process ends", || {
            if gateway.is_running() {
                gateway.signal(Signal::HUP);
            }
            !gateway.is_running()
        });
    }

    /// EDGE-68: The databases stay paused, which the console shows and RESUME or SIGUSR2 ends.
    fn pause_survives_sigterm_until_resume(fixture) {
        for by_signal in [false, true] {
            let mut gateway = fixture.gateway("size = 1\n[admin]\nusers = [\"postgres\"]\n");
            let mut console = gateway.console();
            let mut client = gateway.client("postgres");
            client.ok("select 1");
            console.ok("PAUSE");
            client.send(&Frames::new().query("select 'resumed'"));
            gateway.wait_for_pool("postgres", "cl_waiting", 1);
            gateway.signal(Signal::TERM);
            eventually("new clients are rejected", || gateway.startup("postgres").try_connect().is_err());
            let state = console.show("STATE");
            let value_of = |key: &str| state.iter().find(|row| row["key"] == key).map(|row| row["value"].clone());
            assert_eq!(value_of("paused").as_deref(), Some("yes"), "{state:?}");
            assert_eq!(value_of("stopping").as_deref(), Some("waits for clients"), "{state:?}");
            assert!(console.show("DATABASES").iter().any(|row| row["name"] == "postgres" && row["paused"] == "1"));
            if by_signal {
                gateway.signal(Signal::USR2);
            } else {
                console.ok("RESUME");
            }
            client.expect("T D:resumed C:SELECT_1 Z:I");
            client.send(&Frames::new().terminate());
            assert!(gateway.wait().success());
        }
    }

    /// EDGE-73.
    fn shutdown_logs_how_all_tasks_ended(fixture) {
        let mut gateway = crate::console::gateway_with_stats_user(fixture);
        let mut idle = gateway.client("postgres");
        // Leaves an idle server in the pool, which has to end as well.
        idle.ok("select 1");
        gateway.console().send(&Frames::new().query("SHUTDOWN"));
        gateway.wait();
        drop(idle);
        let log = gateway.log();
        let report = log.lines().find(|line| line.contains("tasks ended")).expect("the shutdown is reported");
        for part in ["clean=", "aborted=0", "panicked=0", "stuck=0"] {
            assert!(report.contains(part), "{report}");
        }
    }

    /// EDGE-73: Clients are disconnected before the other tasks are stopped.
    fn clients_ended_by_a_signal_are_in_the_report(fixture) {
        let mut gateway = fixture.gateway("size = 1\n");
        let clients: Vec<_> = (0..40).map(|_| gateway.client("postgres")).collect();
        gateway.signal(Signal::INT);
        gateway.wait();
        drop(clients);
        let log = gateway.log();
        let report = log.lines().find(|line| line.contains("tasks ended")).expect("the shutdown is reported");
        let clean = report.split("clean=").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
        assert!(clean.is_some_and(|clean| clean >= 40), "{report}");
    }

    /// EDGE-73: Reading a file may block, for example on a network file system, and the thread cannot be
    /// cancelled.
    fn shutdown_names_a_blocked_task(fixture) {
        let mut gateway = fixture.gateway("size = 2\n[admin]\nusers = [\"postgres\"]\nset_files = true\n");
        let pipe = gateway.config_file().with_file_name("hba.fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR).expect("a pipe");
        let mut console = gateway.console();
        console.ok(&format!("SET auth.hba_file = '{}'", pipe.display()));
        console.send(&Frames::new().query("SET auth.method = 'hba'"));
        let is_blocked = || {
            let rows = gateway.show("TASKS");
            rows.iter().any(|row| row["path"] == "tidegate/look-ups" && row["live"] == "1")
        };
        eventually("the task reads the pipe", is_blocked);
        gateway.console().send(&Frames::new().query("SHUTDOWN"));
        gateway.wait();
        let log = gateway.log();
        assert!(log.lines().any(|line| line.contains("tasks ended") && line.contains("stuck=1")), "{log}");
        let named = |line: &str| line.contains("a task did not end: look-ups") && line.contains("the files of a setting");
        assert!(log.lines().any(named), "{log}");
    }

    /// EDGE-73.
    fn shutdown_command_ends_the_process(fixture) {
        let mut gateway = crate::console::gateway_with_stats_user(fixture);
        let mut console = gateway.console();
        console.send(&Frames::new().query("SHUTDOWN"));
        gateway.wait();
    }
}

/// EDGE-68: A shutdown opens no more connections for waiting clients.
#[test]
fn shutdown_with_waiting_clients_and_no_retry_delay() {
    let server = FaultyServer::start(tidegate_testkit::FaultyConnection::discard_input);
    let mut gateway = gateway_for!(&server, "size = 2\n[timeouts]\nconnect_retry = \"0s\"\n");
    let mut waiting: Vec<_> = (0..20).map(|_| gateway.startup("postgres").open()).collect();
    for client in &mut waiting {
        client.send_bytes(&gateway.startup("postgres").packet());
    }
    gateway.wait_for_pool("postgres", "cl_waiting", 20);
    gateway.signal(Signal::QUIT);
    assert!(gateway.wait().success(), "{}", gateway.log());
}

/// EDGE-73: The shutdown does not wait for a connect that never completes.
#[test]
fn shutdown_does_not_wait_for_a_silent_server() {
    let server = FaultyServer::start(|connection| connection.discard_input());
    let mut gateway = gateway_for!(&server, "size = 1\n");
    let startup = gateway.startup("postgres");
    // The first client has not sent its startup packet.
    let (mut silent, mut client) = (startup.open(), startup.open());
    client.send_bytes(&startup.packet());
    eventually("the gateway connects", || server.connections() == 1);
    gateway.signal(Signal::INT);
    for client in [&mut silent, &mut client] {
        assert_eq!(client.expect_fatal("57P03").message, "the gateway is shutting down");
    }
    gateway.wait();
    let log = gateway.log();
    let report = log.lines().find(|line| line.contains("tasks ended")).expect("the shutdown is reported");
    assert!(report.contains("aborted=0") && report.contains("stuck=0"), "{report}");
}

/// EDGE-68: With io_uring, the kernel may close the sockets of a killed process after its supervisor has seen it
/// exit.
#[test]
fn start_waits_for_an_address_in_use() {
    let server = FaultyServer::answering();
    let socket = tempfile::tempdir().expect("a folder");
    for unix in [false, true] {
        let address = tidegate_testkit::free_address(10_000..20_000);
        let file = socket.path().join(format!(".s.PGSQL.{}", address.port()));
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("tidegate.toml");
        let (host, port) = (server.address().ip(), server.address().port());
        let text = format!(
            "[listen]\naddresses = [\"{address}\"]\nunix_socket_dir = \"{}\"\n[auth]\nmethod = \"trust\"\n\
             [databases.postgres]\nhost = \"{host}\"\nport = {port}\n",
            socket.path().display()
        );
        std::fs::write(&config, text).expect("the folder can be written");
        let holder: Box<dyn std::any::Any> = match unix {
            true => Box::new(UnixListener::bind(&file).expect("the path is unused")),
            false => Box::new(TcpListener::bind(address).expect("the address is unused")),
        };
        let mut command = Command::new(Gateway::binary(env!("CARGO_BIN_EXE_tidegate")));
        command.args(["run", "-c"]).arg(&config);
        let gateway = Process::spawn(command, address, folder);
        eventually("the conflict is logged", || gateway.log().contains("in use"));
        drop(holder);
        eventually("the gateway accepts", || Startup::tcp(address, "postgres", "postgres").try_connect().is_ok());
    }
}
