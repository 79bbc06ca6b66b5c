//! A full disk, a killed process, a folder in use, metrics and rotation.

use std::process::Command;

use tidegate_journal::AtEnd;
use tidegate_testkit::{Signal, on_each_postgres};

use crate::logging_gateway::{LoggingGateway, queries, read};

/// A small file system, unmounted on drop; `None` where the test may not mount.
struct SmallFilesystem(tempfile::TempDir);

impl SmallFilesystem {
    fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let options = format!("size={bytes}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path()).status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallFilesystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

on_each_postgres! {
    fn full_disk_harms_no_client(fixture) {
        // The records in memory fit on the disk when the ballast is removed.
        let Some(filesystem) = SmallFilesystem::mount(20 << 20) else {
            eprintln!("skipped: mounting a tmpfs needs privileges");
            return;
        };
        let folder = filesystem.0.path().join("journal");
        std::fs::write(filesystem.0.path().join("ballast"), vec![1; 19 << 20]).expect("the ballast fits");
        let section = format!("size = 1\n[journal]\nfolder = \"{}\"\n", folder.display());
        let gateway = fixture.gateway(&section);
        let status = |key: &str| {
            let rows = gateway.show("JOURNAL");
            rows.iter().find(|row| row["key"] == key).map(|row| row["value"].clone()).unwrap_or_default()
        };
        let mut client = gateway.client("postgres");
        let text = format!("select '{}'", "x".repeat(12_000));
        let mut queries = 0;
        while status("queries.lost.newest") == "0" {
            for _ in 0..200 {
                client.ok(&text);
                queries += 1;
            }
            assert!(queries < 20_000, "the disk never became full");
        }
        assert_eq!(status("state"), "disk full");
        std::fs::remove_file(filesystem.0.path().join("ballast")).expect("the ballast exists");
        tidegate_testkit::eventually("records are rewritten", || status("state") == "healthy");
        client.ok("select 'still served'");
    }

    fn killed_gateway_leaves_no_damaged_record(fixture) {
        for round in 0..3 {
            let mut logged = LoggingGateway::new(fixture, "size = 2\n", "");
            let mut client = logged.gateway.client("postgres");
            for number in 0..200 {
                client.ok(&format!("select {number} as number_of_round_{round}"));
            }
            let before = logged.wait_for("some records are written", |entries| queries(entries).len() >= 100);
            logged.gateway.signal(Signal::KILL);
            logged.gateway.wait();
            // Recovery cuts the partial record at the end, and keeps everything before it.
            let (journal, recovery) = tidegate_journal::Journal::open(tidegate_journal::JournalConfig {
                name: "queries".to_owned(),
                ..tidegate_journal::JournalConfig::new(logged.path())
            })
            .expect("the log opens again");
            assert!(recovery.damage.is_empty(), "{recovery:?}");
            drop(journal);
            let after = read(&logged.path(), AtEnd::Stop);
            assert!(after.len() >= before.len() && after[..before.len()] == before[..]);
        }
    }

    /// Otherwise a gateway that crashes again and again would displace its history with small files.
    fn crash_loop_continues_the_newest_file(fixture) {
        for format in ["framed", "json"] {
            let keys = format!("format = \"{format}\"\nretain_segments = 2\nack = \"written\"");
            let mut logged = LoggingGateway::new(fixture, "size = 1\n", &keys);
            let folder = logged.path();
            let files = || -> Vec<std::path::PathBuf> {
                let files = std::fs::read_dir(&folder).expect("the folder exists").flatten();
                files.map(|file| file.path()).filter(|path| path.extension().is_none_or(|kind| kind != "lock")).collect()
            };
            let has = |round: u32| {
                let text = format!("number_{round}_");
                files().iter().any(|file| String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).contains(&text))
            };
            let mut again: Option<std::process::Child> = None;
            for round in 0..5 {
                tidegate_testkit::eventually("the gateway accepts", || {
                    logged.gateway.startup("postgres").try_connect().is_ok_and(|mut client| {
                        client.try_query(&format!("select 1 as number_{round}_")).is_ok()
                    })
                });
                tidegate_testkit::eventually("the record is written", || has(round));
                match &mut again {
                    None => {
                        logged.gateway.signal(Signal::KILL);
                        logged.gateway.wait();
                    }
                    Some(child) => {
                        child.kill().expect("the process runs");
                        child.wait().expect("the process has ended");
                    }
                }
                let binary = tidegate_testkit::Gateway::binary(env!("CARGO_BIN_EXE_tidegate"));
                let mut command = Command::new(binary);
                command.args(["run", "-c"]).arg(logged.gateway.config_file());
                again = Some(command.stderr(std::process::Stdio::null()).spawn().expect("the binary starts"));
            }
            if let Some(mut child) = again {
                child.kill().expect("the process runs");
                child.wait().expect("the process has ended");
            }
            assert_eq!(files().len(), 1, "{format}: {:?}", files());
            assert!((0..5).all(has), "{format}");
        }
    }

    fn folder_in_use_is_an_error_with_a_remedy(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        // The gateway has opened the folder once it serves clients.
        logged.gateway.client("postgres").ok("select 1");
        let config = std::fs::read_to_string(logged.gateway.config_file()).expect("the file exists");
        let address = logged.gateway.address().to_string();
        let other = tempfile::tempdir().expect("a temporary folder can be made");
        let file = other.path().join("tidegate.toml");
        std::fs::write(&file, config.replace(&address, "127.0.0.1:0")).expect("the folder can be written");
        let binary = tidegate_testkit::Gateway::binary(env!("CARGO_BIN_EXE_tidegate"));
        let output = Command::new(binary).args(["run", "-c"]).arg(&file).output().expect("the binary starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains("journal.folder"), "{stderr}");
    }

    fn metrics_include_the_query_log(fixture) {
        use std::io::{Read as _, Write as _};
        let address = tidegate_testkit::free_address(10_000..11_000);
        let logged = LoggingGateway::new(fixture, "size = 1\n", &format!("[metrics]\naddresses = [\"{address}\"]"));
        logged.gateway.client("postgres").ok("select 1");
        tidegate_testkit::eventually("records are written", || logged.status("written") != "0");
        let mut socket = std::net::TcpStream::connect(address).expect("the endpoint accepts");
        write!(socket, "GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("the request is sent");
        let mut page = String::new();
        socket.read_to_string(&mut page).expect("the endpoint answers");
        let metric = |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        assert_eq!(metric("tidegate_journal_state{state=\"healthy\"}"), Some(1.0), "{page}");
        assert!(metric("tidegate_journal_written_total").is_some_and(|written| written > 0.0), "{page}");
        assert_eq!(metric("tidegate_journal_poisoned_total"), Some(0.0), "{page}");
        assert!(page.contains("tidegate_journal_lost_total{class="), "{page}");
    }

    fn renamed_files_are_reopened_on_reload(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "format = \"json\"");
        let mut client = logged.gateway.client("postgres");
        client.ok("select 'before'");
        let lines = |folder: &std::path::Path| -> Vec<String> {
            let files = std::fs::read_dir(folder).expect("the folder exists").flatten();
            let texts = files.filter(|file| file.path().extension().is_some_and(|kind| kind == "jsonl" || kind == "old"));
            let text = |file: std::fs::DirEntry| std::fs::read_to_string(file.path()).unwrap_or_default();
            texts.map(text).flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
        };
        let has = |text: &str| lines(&logged.path()).iter().any(|line| line.contains(text));
        tidegate_testkit::eventually("the record is written", || has("before"));
        for file in std::fs::read_dir(logged.path()).expect("the folder exists").flatten() {
            if file.path().extension().is_some_and(|kind| kind == "jsonl") {
                std::fs::rename(file.path(), file.path().with_extension("old")).expect("the file can be renamed");
            }
        }
        logged.gateway.signal(Signal::HUP);
        tidegate_testkit::eventually("the reload is done", || logged.gateway.log().contains("configuration reloaded"));
        client.ok("select 'behind'");
        tidegate_testkit::eventually("the record is written to a new file", || has("behind"));
        let live = std::fs::read_dir(logged.path()).expect("the folder exists").flatten();
        assert!(live.into_iter().any(|file| file.path().extension().is_some_and(|kind| kind == "jsonl")));
        assert_eq!(logged.status("state"), "healthy");
    }
}
