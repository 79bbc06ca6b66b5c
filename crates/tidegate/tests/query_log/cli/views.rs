//! Views of a log: cat, tail, top, stats, export and merge.

use tidegate_journal::{Class, JournalConfig, ProducerRecord};

use super::{run, run_err, run_ok, sample_log::SampleLog};

/// A login of eve, a query of ann, and a failed query of eve.
fn three_records() -> SampleLog {
    let mut log = SampleLog::new();
    log.append_to_class(
        Class::new(1),
        0,
        r#""kind":"login","client":"10.1.2.3:4567","user":"eve","database":"shop","application":"till 4","session":8"#,
    );
    log.append(
        1_000_000,
        concat!(
            r#""kind":"query","client":"10.9.9.9:1","user":"ann","database":"shop","session":7,"transaction":3,"#,
            r#""statement":"select\n  1","fingerprint":"00000000000000aa","server":"db:5432","total_us":1234,"#,
            r#""rows":1,"tag":"SELECT 1""#,
        ),
    );
    log.append(
        2_000_042,
        concat!(
            r#""kind":"query","client":"10.1.2.3:4567","user":"eve","database":"shop","session":8,"transaction":1,"#,
            r#""statement":"delete from Orders","fingerprint":"00000000000000bb","server":"db:5432","#,
            r#""total_us":2500000,"sqlstate":"42501","message":"permission denied""#,
        ),
    );
    log.close();
    log
}

#[test]
fn cat_shows_time_client_result_and_statement() {
    let log = three_records();
    let output = run_ok(["cat".into(), log.path()]);
    let lines = output.lines();
    assert_eq!(lines.len(), 3, "{output:?}");
    assert!(lines[0].starts_with("2026-03-01 17:30:00.000000") && lines[0].contains("login"), "{}", lines[0]);
    assert!(lines[0].contains("10.1.2.3:4567 (till 4)"), "{}", lines[0]);
    for part in ["17:30:01.000000", "1.23 ms", "ann@shop", "7/3", "SELECT 1", "select 1"] {
        assert!(lines[1].contains(part), "{part} is not in {}", lines[1]);
    }
    for part in ["17:30:02.000042", "2.50 s", "eve@shop", "ERROR 42501", "delete from Orders", "permission denied"] {
        assert!(lines[2].contains(part), "{part} is not in {}", lines[2]);
    }
    assert!(!output.stdout.contains('\u{1b}'), "colours only on a terminal");
    let column = |line: &str, text: &str| line.find(text).expect("the text is in the line");
    assert_eq!(column(lines[1], "ann@shop"), column(lines[2], "eve@shop"), "columns are aligned");
}

#[test]
fn cat_options_utc_color_and_long() {
    let log = three_records();
    let path = log.path();
    let path = path.to_str().expect("UTF-8");
    assert!(run_ok(["cat", path, "--utc"]).stdout.starts_with("2026-03-01 12:00:00.000000"));
    assert!(run_ok(["cat", path, "--color", "always"]).stdout.contains('\u{1b}'));
    let long = run_ok(["cat", path, "--long", "--user", "eve", "--errors"]);
    let lines: Vec<&str> = long.stdout.lines().map(str::trim_start).collect();
    assert!(lines.contains(&"sqlstate  42501") && lines.contains(&"statement  delete from Orders"), "{lines:?}");
    assert!(lines.contains(&"time  2026-03-01 17:30:02.000042"), "{lines:?}");
}

#[test]
fn json_and_csv_contain_every_key() {
    let log = three_records();
    let path = log.path();
    let path = path.to_str().expect("UTF-8");
    let json = run_ok(["cat", path, "--json"]).json();
    assert_eq!((json.len(), &json[1]["statement"]), (3, &"select\n  1".into()));
    assert_eq!(json[2]["time"], "2026-03-01T12:00:02.000042Z");
    assert_eq!(run_ok(["export", path]).json(), json);
    let csv = run_ok(["export", path, "--csv", "--user", "ann"]).stdout;
    let (head, row) = csv.split_once("\r\n").expect("two lines");
    assert!(head.starts_with("time,kind,client,user,database,"), "{head}");
    assert!(row.starts_with("2026-03-01T12:00:01.000000Z,query,10.9.9.9:1,ann,shop,,7,3,\"select\n  1\","), "{row}");
    let none = run_ok(["export", path, "--csv", "--user", "unknown"]).stdout;
    assert_eq!(none.lines().count(), 1, "the header is written without records");
}

#[test]
fn filters_select_records() {
    let log = three_records();
    let path = log.path();
    let path = path.to_str().expect("UTF-8");
    let found = |filter: &[&str]| run_ok(["cat", path, "--json"].iter().chain(filter)).lines().len();
    for (filter, count) in [
        (&["--user", "eve"][..], 2),
        (&["--user", "eve", "--user", "ann"], 3),
        (&["--user", "e*", "--errors"], 1),
        (&["--database", "other"], 0),
        (&["--client", "10.1."], 2),
        (&["--application", "till*"], 1),
        (&["--session", "7"], 1),
        (&["--transaction", "1", "--transaction", "3"], 2),
        (&["--kind", "query"], 2),
        (&["--sqlstate", "42"], 1),
        (&["--min-duration", "1ms"], 2),
        (&["--min-duration", "2s"], 1),
        (&["--grep", "^(select|delete)"], 2),
        (&["--grep", "ORDERS"], 0),
        (&["--grep", "ORDERS", "-i"], 1),
        (&["--contains", "from O"], 1),
        (&["--fingerprint", "00000000000000bb"], 1),
        (&["--server", "db:5432"], 2),
        (&["--since", "2026-03-01 17:30:01"], 2),
        (&["--since", "2026-03-01T12:00:02Z"], 1),
        (&["--since", "2026-03-01 12:00:02", "--utc"], 1),
        (&["--until", "2026-03-01 17:30:01"], 2),
        (&["--until", "2026-03-01 17:29"], 0),
        (&["--since", "1h"], 0),
        (&["-n", "2"], 2),
    ] {
        assert_eq!(found(filter), count, "{filter:?}");
    }
}

#[test]
fn log_of_many_segments_is_read_in_order() {
    for (mut log, packs) in [(SampleLog::new(), 0), (SampleLog::packed(), 2), (SampleLog::json(), 0)] {
        log.queries(0..600);
        log.wait_until_packed(packs);
        log.close();
        let path = log.path();
        let path = path.to_str().expect("UTF-8");
        assert!(log.files().len() > 4, "the log has rotated");
        let numbers = |output: super::CommandOutput| -> Vec<u64> {
            output.json().iter().map(|record| record["transaction"].as_u64().expect("a number")).collect()
        };
        assert_eq!(numbers(run_ok(["cat", path, "--json"])), (0..600).collect::<Vec<_>>());
        assert_eq!(numbers(run_ok(["tail", path, "--json", "-n", "3"])), [597, 598, 599]);
        assert_eq!(numbers(run_ok(["tail", path, "--json", "-n", "200"])), (400..600).collect::<Vec<_>>());
        let rare = run_ok(["tail", path, "--json", "-n", "3", "--grep", "select [1-3],"]);
        assert_eq!(numbers(rare), [1, 2, 3], "older segments are read if the newest have too few");
        assert_eq!(numbers(run_ok(["tail", path, "--json", "-n", "5", "--since", "2026-03-01T12:09:58Z"])), [598, 599]);
        let since = run_ok(["cat", path, "--json", "--since", "2026-03-01T12:05:00Z", "-n", "1"]);
        assert_eq!(numbers(since), [300]);
        // A single segment can be read.
        let files = log.files();
        let first = numbers(run_ok(["cat", files[0].to_str().expect("UTF-8"), "--json"]));
        let second = numbers(run_ok(["cat", files[1].to_str().expect("UTF-8"), "--json"]));
        assert_eq!((first[0], second[0]), (0, first[first.len() - 1] + 1));
    }
}

#[test]
fn merge_orders_records_of_several_folders() {
    let (mut one, mut other) = (SampleLog::new(), SampleLog::json());
    for number in 0..50 {
        let log = if number % 3 == 0 { &one } else { &other };
        log.append(number, &format!(r#""kind":"query","transaction":{number}"#));
    }
    one.close();
    other.close();
    let file = one.sibling("merged.jsonl");
    let paths = [one.path(), other.path()];
    let arguments = ["merge".into(), paths[0].clone(), paths[1].clone(), "-o".into(), file.clone()];
    assert_eq!(run_ok(&arguments).stdout, "");
    let text = std::fs::read_to_string(&file).expect("the file was written");
    let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let numbers: Vec<u64> = records.map(|record| record["transaction"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    assert_eq!(run_ok(&arguments[..3]).stdout, text);
    let twice = ["merge".into(), paths[0].clone(), paths[1].clone(), paths[0].clone()];
    assert_eq!(run_ok(&twice).stdout, text, "a folder named twice is read once");
    assert!(!one.sibling("merged.jsonl.part").exists());
}

/// Users write `-o /dev/stdout`. Creating a file there would replace the device or the pipe.
#[test]
fn export_keeps_a_pipe_and_a_link() {
    let log = three_records();
    let (path, pipe, link) = (log.path(), log.sibling("pipe"), log.sibling("link"));
    let all = run_ok(["export".into(), path.clone()]).stdout;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a pipe");
    let read = std::thread::scope(|scope| {
        let reader = scope.spawn(|| std::fs::read_to_string(&pipe).expect("the pipe can be read"));
        assert_eq!(run_ok(["export".into(), path.clone(), "-o".into(), pipe.clone()]).stdout, "");
        assert!(!pipe.metadata().expect("the pipe exists").is_file(), "the pipe was replaced");
        reader.join().expect("the reader ends")
    });
    assert_eq!(read, all);
    std::fs::write(log.sibling("target"), "older").expect("the file can be written");
    std::os::unix::fs::symlink(log.sibling("target"), &link).expect("a link");
    run_ok(["export".into(), path, "-o".into(), link.clone()]);
    assert!(link.is_symlink());
    assert_eq!(std::fs::read_to_string(log.sibling("target")).expect("the target exists"), all);
}

#[test]
fn top_groups_by_fingerprint() {
    let mut log = SampleLog::new();
    log.queries(0..100);
    log.append(
        1,
        concat!(
            r#""kind":"query","user":"eve","statement":"select pg_sleep(5)","fingerprint":"00000000000000bb","#,
            r#""total_us":5000000,"sqlstate":"57014","wait_us":9"#,
        ),
    );
    log.append(2, r#""kind":"login","user":"eve""#);
    log.close();
    let path = log.path();
    let path = path.to_str().expect("UTF-8");
    let by_time = run_ok(["top", path, "--json"]).json();
    assert_eq!((&by_time[0]["fingerprint"], &by_time[0]["errors"]), (&"00000000000000bb".into(), &1.into()));
    assert_eq!((&by_time[1]["calls"], &by_time[1]["rows"]), (&100.into(), &100.into()));
    assert_eq!((&by_time[1]["statement"], &by_time[1]["users"]), (&"select ?".into(), &["ann"].as_slice().into()));
    let (p50, p99) = (by_time[1]["p50_us"].as_u64(), by_time[1]["p99_us"].as_u64());
    assert!(
        p50.is_some_and(|p50| p50.abs_diff(1049) < 11) && p99.is_some_and(|p99| p99.abs_diff(1098) < 11),
        "{by_time:?}"
    );
    assert_eq!((&by_time[2]["all"]["calls"], &by_time[2]["all"]["fingerprints"]), (&101.into(), &2.into()));
    let by_calls = run_ok(["top", path, "--json", "--by", "calls", "-n", "1"]).json();
    assert_eq!((by_calls.len(), &by_calls[0]["fingerprint"]), (2, &"00000000000000aa".into()));
    let table = run_ok(["top", path]).stdout;
    assert!(table.contains("p99") && table.contains("select pg_sleep(?)") && table.contains("101 calls"), "{table}");
    let csv = run_ok(["top", path, "--csv"]).stdout;
    assert_eq!((csv.lines().count(), csv.starts_with("fingerprint,calls,")), (3, true), "{csv}");
}

#[test]
fn stats_counts_records_and_segments() {
    let mut log = SampleLog::packed();
    log.queries(0..300);
    log.wait_until_packed(1);
    log.append_to_class(Class::new(1), 300_000_000, r#""kind":"login_failed","user":"eve","sqlstate":"28P01""#);
    let path = log.path();
    let path = path.to_str().expect("UTF-8");
    let open = run_ok(["stats", path, "--json"]).json();
    assert_eq!(open[0]["journals"][0]["open"], true);
    log.close();
    let stats = &run_ok(["stats", path, "--json"]).json()[0];
    assert_eq!(
        (&stats["records"], &stats["errors"], &stats["journals"][0]["open"]),
        (&301.into(), &1.into(), &false.into())
    );
    assert_eq!(stats["times"][1], "2026-03-01T12:05:00.000000Z");
    let kinds: Vec<_> = stats["kinds"].as_array().into_iter().flatten().map(|kind| &kind["kind"]).collect();
    assert_eq!(kinds, ["login_failed", "query"]);
    assert!(stats["segments"].as_array().is_some_and(|all| all.iter().any(|segment| segment["packed"] == true)));
    let text = run_ok(["stats", path]).stdout;
    for part in ["301 records", "1.0 per second", "packed", "compression", "connections", "2026-03-01 17:30:00 +05:30"]
    {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn log_without_query_records_is_shown_as_text() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (journal, _) = tidegate_journal::Journal::open(JournalConfig::new(folder.path())).expect("the log opens");
    journal
        .producer()
        .append_blocking(ProducerRecord::new(Class::new(0), b"hello \x1b[2J there"))
        .expect("the record is appended");
    assert!(journal.close(super::sample_log::TIMEOUT).is_complete());
    let path = folder.path().to_str().expect("UTF-8");
    let text = run_ok(["cat", path]).stdout;
    assert!(text.ends_with("hello \\u{1b}[2J there\n"), "{text:?}");
    assert_eq!(run_ok(["cat", path, "--json"]).json()[0]["text"], "hello \u{1b}[2J there");
    assert_eq!(run_ok(["cat", path, "--json", "--user", "ann"]).stdout, "");
}

#[test]
fn help_describes_every_command() {
    let all = run_ok(["--help"]).stdout;
    for command in ["cat", "tail", "top", "stats", "verify", "repair", "merge", "export"] {
        assert!(all.contains(&format!("\n  {command}")), "{command} is not in\n{all}");
        let help = run_ok([command, "--help"]).stdout;
        assert!(help.contains("[PATH]...") && !help.starts_with("Logs"), "{help}");
    }
    for command in ["cat", "tail", "top"] {
        let help = run_ok([command, "--help"]).stdout;
        assert!(help.contains("Examples:") && help.contains("Filters ("), "{help}");
    }
}

#[test]
fn errors_contain_a_remedy() {
    let log = three_records();
    let path = log.path();
    let path = path.to_str().expect("UTF-8");
    let empty = tempfile::tempdir().expect("a temporary folder can be made");
    let missing = empty.path().join("missing");
    assert!(run_err(["cat", missing.to_str().expect("UTF-8")]).contains("name the folder of a query log"));
    let other_file = empty.path().join("notes.txt");
    std::fs::write(&other_file, "x").expect("the file can be written");
    assert!(run_err(["cat", other_file.to_str().expect("UTF-8")]).contains("is not a segment"));
    assert!(run_err(["cat", path, "--since", "soon"]).contains("yesterday"));
    assert!(run_err(["cat", path, "--grep", "("]).contains("--contains"));
    assert!(run_err(["cat", path, "--min-duration", "5"]).contains("lacks a unit"));
    let config = empty.path().join("tidegate.toml");
    std::fs::write(&config, "[databases.shop]\nhost = \"db\"\n[users.app]\npassword = \"x\"\n")
        .expect("the file can be written");
    assert!(run_err(["cat", "-c", config.to_str().expect("UTF-8")]).contains("has no folder"));
    let output = run(["cat", empty.path().to_str().expect("UTF-8")]);
    assert!(output.success && output.stdout.is_empty(), "a folder without records: {output:?}");
}
