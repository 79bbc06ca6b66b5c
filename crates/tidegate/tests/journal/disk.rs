//! A disk that is full, a process that is killed, a folder that is taken.

use std::process::Command;

use tidegate_journal::AtEnd;
use tidegate_testkit::Signal;

use crate::kept::{Kept, queries, read};

/// A small file system, unmounted at the end; `None` where the test may not mount.
struct Small(tempfile::TempDir);

impl Small {
    fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let options = format!("size={bytes}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder.path()).status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(folder))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

on_each_postgres! {
    fn a_full_disk_harms_no_client_and_is_left_again(fixture) {
        // What waits in memory has room when the ballast is gone.
        let Some(small) = Small::mount(20 << 20) else {
            eprintln!("not run: this test needs leave to mount a tmpfs");
            return;
        };
        let folder = small.0.path().join("journal");
        std::fs::write(small.0.path().join("ballast"), vec![1; 19 << 20]).expect("it fits");
        let section = format!("size = 1\n[journal]\nfolder = \"{}\"\n", folder.display());
        let gateway = fixture.gateway(&section);
        let shown = |key: &str| {
            let rows = gateway.show("JOURNAL");
            rows.iter().find(|row| row["key"] == key).map(|row| row["value"].clone()).unwrap_or_default()
        };
        let mut client = gateway.client("postgres");
        let text = format!("select '{}'", "x".repeat(12_000));
        let mut asked = 0;
        while shown("queries.lost.newest") == "0" {
            for _ in 0..200 {
                client.ok(&text);
                asked += 1;
            }
            assert!(asked < 20_000, "the journal never became full");
        }
        assert_eq!(shown("state"), "disk full");
        std::fs::remove_file(small.0.path().join("ballast")).expect("it is there");
        tidegate_testkit::eventually("it is written again", || shown("state") == "healthy");
        client.ok("select 'still served'");
    }

    fn a_killed_gateway_leaves_no_damaged_record(fixture) {
        for round in 0..3 {
            let mut kept = Kept::new(fixture, "size = 2\n", "");
            let mut client = kept.gateway.client("postgres");
            for number in 0..200 {
                client.ok(&format!("select {number} as number_of_round_{round}"));
            }
            let before = kept.when("some are written", |entries| queries(entries).len() >= 100);
            kept.gateway.signal(Signal::KILL);
            kept.gateway.wait();
            // What the next gateway finds: the torn tail is cut, everything before it is whole.
            let (journal, recovery) = tidegate_journal::Journal::open(tidegate_journal::Config {
                name: "queries".to_owned(),
                ..tidegate_journal::Config::new(kept.path())
            })
            .expect("the journal opens again");
            assert!(recovery.damage.is_empty(), "{recovery:?}");
            drop(journal);
            let after = read(&kept.path(), AtEnd::Stop);
            assert!(after.len() >= before.len() && after[..before.len()] == before[..]);
        }
    }

    fn a_folder_that_is_taken_is_an_error_that_says_what_to_do(fixture) {
        let kept = Kept::new(fixture, "size = 1\n", "");
        // It has the folder once it serves clients.
        kept.gateway.client("postgres").ok("select 1");
        let config = std::fs::read_to_string(kept.gateway.config_file()).expect("the file is there");
        let address = kept.gateway.address().to_string();
        let other = tempfile::tempdir().expect("a temporary folder can be made");
        let file = other.path().join("tidegate.toml");
        std::fs::write(&file, config.replace(&address, "127.0.0.1:0")).expect("the folder can be written");
        let binary = tidegate_testkit::Gateway::binary(env!("CARGO_BIN_EXE_tidegate"));
        let output = Command::new(binary).args(["run", "-c"]).arg(&file).output().expect("it starts");
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && words.contains("journal.folder"), "{words}");
    }

    fn its_figures_are_among_the_metrics(fixture) {
        use std::io::{Read as _, Write as _};
        let address = tidegate_testkit::free_address(10_000..11_000);
        let kept = Kept::new(fixture, "size = 1\n", &format!("[metrics]\naddresses = [\"{address}\"]"));
        kept.gateway.client("postgres").ok("select 1");
        tidegate_testkit::eventually("it is written", || kept.shown("written") != "0");
        let mut socket = std::net::TcpStream::connect(address).expect("it answers");
        write!(socket, "GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("it hears");
        let mut page = String::new();
        socket.read_to_string(&mut page).expect("it answers");
        let figure = |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        assert_eq!(figure("tidegate_journal_state{state=\"healthy\"}"), Some(1.0), "{page}");
        assert!(figure("tidegate_journal_written_total").is_some_and(|written| written > 0.0), "{page}");
        assert_eq!(figure("tidegate_journal_poisoned_total"), Some(0.0), "{page}");
        assert!(page.contains("tidegate_journal_lost_total{class="), "{page}");
    }

    fn a_rotation_that_renames_the_files_is_followed(fixture) {
        let kept = Kept::new(fixture, "size = 1\n", "format = \"json\"");
        let mut client = kept.gateway.client("postgres");
        client.ok("select 'before'");
        let lines = |folder: &std::path::Path| -> Vec<String> {
            let files = std::fs::read_dir(folder).expect("the folder is there").flatten();
            let texts = files.filter(|file| file.path().extension().is_some_and(|kind| kind == "jsonl" || kind == "old"));
            let text = |file: std::fs::DirEntry| std::fs::read_to_string(file.path()).unwrap_or_default();
            texts.map(text).flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect()
        };
        let has = |word: &str| lines(&kept.path()).iter().any(|line| line.contains(word));
        tidegate_testkit::eventually("it is written", || has("before"));
        for file in std::fs::read_dir(kept.path()).expect("the folder is there").flatten() {
            if file.path().extension().is_some_and(|kind| kind == "jsonl") {
                std::fs::rename(file.path(), file.path().with_extension("old")).expect("it can be renamed");
            }
        }
        kept.gateway.signal(Signal::HUP);
        tidegate_testkit::eventually("the reload is done", || kept.gateway.log().contains("configuration reloaded"));
        client.ok("select 'behind'");
        tidegate_testkit::eventually("it is written to a new file", || has("behind"));
        let live = std::fs::read_dir(kept.path()).expect("the folder is there").flatten();
        assert!(live.into_iter().any(|file| file.path().extension().is_some_and(|kind| kind == "jsonl")));
        assert_eq!(kept.shown("state"), "healthy");
    }
}
