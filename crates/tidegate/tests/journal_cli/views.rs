//! What is there, shown as it was asked for.

use tidegate_journal::{Class, Config, Note};

use crate::{bad, good, run, written::Written};

/// Ann's query, Eve's that failed, and Eve's login before.
fn three() -> Written {
    let mut written = Written::new();
    written.say_of(
        Class::new(1),
        0,
        r#""kind":"login","client":"10.1.2.3:4567","user":"eve","database":"shop","application":"till 4","session":8"#,
    );
    written.say(
        1_000_000,
        concat!(
            r#""kind":"query","client":"10.9.9.9:1","user":"ann","database":"shop","session":7,"transaction":3,"#,
            r#""statement":"select\n  1","fingerprint":"00000000000000aa","server":"db:5432","total_us":1234,"#,
            r#""rows":1,"tag":"SELECT 1""#,
        ),
    );
    written.say(
        2_000_042,
        concat!(
            r#""kind":"query","client":"10.1.2.3:4567","user":"eve","database":"shop","session":8,"transaction":1,"#,
            r#""statement":"delete from Orders","fingerprint":"00000000000000bb","server":"db:5432","#,
            r#""total_us":2500000,"sqlstate":"42501","message":"permission denied""#,
        ),
    );
    written.close();
    written
}

#[test]
fn cat_shows_time_who_result_and_statement() {
    let written = three();
    let said = good(["cat".into(), written.path()]);
    let lines = said.lines();
    assert_eq!(lines.len(), 3, "{said:?}");
    assert!(lines[0].starts_with("2026-03-01 17:30:00.000000") && lines[0].contains("login"), "{}", lines[0]);
    assert!(lines[0].contains("10.1.2.3:4567 (till 4)"), "{}", lines[0]);
    for part in ["17:30:01.000000", "1.23 ms", "ann@shop", "7/3", "SELECT 1", "select 1"] {
        assert!(lines[1].contains(part), "{part} is not in {}", lines[1]);
    }
    for part in ["17:30:02.000042", "2.50 s", "eve@shop", "ERROR 42501", "delete from Orders", "permission denied"] {
        assert!(lines[2].contains(part), "{part} is not in {}", lines[2]);
    }
    assert!(!said.out.contains('\u{1b}'), "no colours but on a terminal");
    let column = |line: &str, text: &str| line.find(text).expect("it is there");
    assert_eq!(column(lines[1], "ann@shop"), column(lines[2], "eve@shop"), "columns are aligned");
}

#[test]
fn cat_in_utc_in_colour_and_at_length() {
    let written = three();
    let path = written.path();
    let path = path.to_str().expect("UTF-8");
    assert!(good(["cat", path, "--utc"]).out.starts_with("2026-03-01 12:00:00.000000"));
    assert!(good(["cat", path, "--color", "always"]).out.contains('\u{1b}'));
    let long = good(["cat", path, "--long", "--user", "eve", "--errors"]);
    let lines: Vec<&str> = long.out.lines().map(str::trim_start).collect();
    assert!(lines.contains(&"sqlstate  42501") && lines.contains(&"statement  delete from Orders"), "{lines:?}");
    assert!(lines.contains(&"time  2026-03-01 17:30:02.000042"), "{lines:?}");
}

#[test]
fn json_is_what_was_written_and_csv_has_a_column_for_each_key() {
    let written = three();
    let path = written.path();
    let path = path.to_str().expect("UTF-8");
    let json = good(["cat", path, "--json"]).json();
    assert_eq!((json.len(), &json[1]["statement"]), (3, &"select\n  1".into()));
    assert_eq!(json[2]["time"], "2026-03-01T12:00:02.000042Z");
    assert_eq!(good(["export", path]).json(), json);
    let csv = good(["export", path, "--csv", "--user", "ann"]).out;
    let (head, row) = csv.split_once("\r\n").expect("two lines");
    assert!(head.starts_with("time,kind,client,user,database,"), "{head}");
    assert!(row.starts_with("2026-03-01T12:00:01.000000Z,query,10.9.9.9:1,ann,shop,,7,3,\"select\n  1\","), "{row}");
    let none = good(["export", path, "--csv", "--user", "nobody"]).out;
    assert_eq!(none.lines().count(), 1, "a heading, whatever was found");
}

#[test]
fn sieves_choose_and_agree() {
    let written = three();
    let path = written.path();
    let path = path.to_str().expect("UTF-8");
    let found = |sieve: &[&str]| good(["cat", path, "--json"].iter().chain(sieve)).lines().len();
    for (sieve, count) in [
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
        assert_eq!(found(sieve), count, "{sieve:?}");
    }
}

#[test]
fn a_long_journal_is_read_over_its_segments_packed_or_not() {
    for (mut written, packs) in [(Written::new(), 0), (Written::packed(), 2), (Written::json(), 0)] {
        written.queries(0..600);
        written.until_packed(packs);
        written.close();
        let path = written.path();
        let path = path.to_str().expect("UTF-8");
        assert!(written.files().len() > 4, "it has rotated");
        let numbers = |said: crate::Said| -> Vec<u64> {
            said.json().iter().map(|record| record["transaction"].as_u64().expect("a number")).collect()
        };
        assert_eq!(numbers(good(["cat", path, "--json"])), (0..600).collect::<Vec<_>>());
        assert_eq!(numbers(good(["tail", path, "--json", "-n", "3"])), [597, 598, 599]);
        assert_eq!(numbers(good(["tail", path, "--json", "-n", "200"])), (400..600).collect::<Vec<_>>());
        let rare = good(["tail", path, "--json", "-n", "3", "--grep", "select [1-3],"]);
        assert_eq!(numbers(rare), [1, 2, 3], "older segments are read if the newest have too few");
        assert_eq!(numbers(good(["tail", path, "--json", "-n", "5", "--since", "2026-03-01T12:09:58Z"])), [598, 599]);
        let since = good(["cat", path, "--json", "--since", "2026-03-01T12:05:00Z", "-n", "1"]);
        assert_eq!(numbers(since), [300]);
        // One segment of it.
        let files = written.files();
        let first = numbers(good(["cat", files[0].to_str().expect("UTF-8"), "--json"]));
        let second = numbers(good(["cat", files[1].to_str().expect("UTF-8"), "--json"]));
        assert_eq!((first[0], second[0]), (0, first[first.len() - 1] + 1));
    }
}

#[test]
fn merge_puts_folders_in_one_order() {
    let (mut one, mut other) = (Written::new(), Written::json());
    for number in 0..50 {
        let written = if number % 3 == 0 { &one } else { &other };
        written.say(number, &format!(r#""kind":"query","transaction":{number}"#));
    }
    one.close();
    other.close();
    let file = one.beside("merged.jsonl");
    let paths = [one.path(), other.path()];
    let arguments = ["merge".into(), paths[0].clone(), paths[1].clone(), "-o".into(), file.clone()];
    assert_eq!(good(&arguments).out, "");
    let text = std::fs::read_to_string(&file).expect("it was written");
    let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let numbers: Vec<u64> = records.map(|record| record["transaction"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, (0..50).collect::<Vec<_>>());
    assert_eq!(good(&arguments[..3]).out, text);
    let twice = ["merge".into(), paths[0].clone(), paths[1].clone(), paths[0].clone()];
    assert_eq!(good(&twice).out, text, "what is named twice is read once");
    assert!(!one.beside("merged.jsonl.part").exists());
}

/// `-o /dev/stdout` is what people write; the device or the pipe would have been replaced by a file.
#[test]
fn an_export_to_a_pipe_is_written_to_it_and_a_link_stays_one() {
    let written = three();
    let (path, pipe, link) = (written.path(), written.beside("pipe"), written.beside("link"));
    let all = good(["export".into(), path.clone()]).out;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).expect("a pipe");
    let read = std::thread::scope(|scope| {
        let reader = scope.spawn(|| std::fs::read_to_string(&pipe).expect("it can be read"));
        assert_eq!(good(["export".into(), path.clone(), "-o".into(), pipe.clone()]).out, "");
        assert!(!pipe.metadata().expect("it is there").is_file(), "it is a pipe still");
        reader.join().expect("it ends")
    });
    assert_eq!(read, all);
    std::fs::write(written.beside("target"), "older").expect("it can be written");
    std::os::unix::fs::symlink(written.beside("target"), &link).expect("a link");
    good(["export".into(), path, "-o".into(), link.clone()]);
    assert!(link.is_symlink());
    assert_eq!(std::fs::read_to_string(written.beside("target")).expect("it is there"), all);
}

#[test]
fn top_adds_up_what_differs_in_literals_only() {
    let mut written = Written::new();
    written.queries(0..100);
    written.say(
        1,
        concat!(
            r#""kind":"query","user":"eve","statement":"select pg_sleep(5)","fingerprint":"00000000000000bb","#,
            r#""total_us":5000000,"sqlstate":"57014","wait_us":9"#,
        ),
    );
    written.say(2, r#""kind":"login","user":"eve""#);
    written.close();
    let path = written.path();
    let path = path.to_str().expect("UTF-8");
    let by_time = good(["top", path, "--json"]).json();
    assert_eq!((&by_time[0]["fingerprint"], &by_time[0]["errors"]), (&"00000000000000bb".into(), &1.into()));
    assert_eq!((&by_time[1]["calls"], &by_time[1]["rows"]), (&100.into(), &100.into()));
    assert_eq!((&by_time[1]["statement"], &by_time[1]["users"]), (&"select ?".into(), &["ann"].as_slice().into()));
    let (p50, p99) = (by_time[1]["p50_us"].as_u64(), by_time[1]["p99_us"].as_u64());
    assert!(
        p50.is_some_and(|p50| p50.abs_diff(1049) < 11) && p99.is_some_and(|p99| p99.abs_diff(1098) < 11),
        "{by_time:?}"
    );
    assert_eq!((&by_time[2]["all"]["calls"], &by_time[2]["all"]["fingerprints"]), (&101.into(), &2.into()));
    let by_calls = good(["top", path, "--json", "--by", "calls", "-n", "1"]).json();
    assert_eq!((by_calls.len(), &by_calls[0]["fingerprint"]), (2, &"00000000000000aa".into()));
    let table = good(["top", path]).out;
    assert!(table.contains("p99") && table.contains("select pg_sleep(?)") && table.contains("101 calls"), "{table}");
    let csv = good(["top", path, "--csv"]).out;
    assert_eq!((csv.lines().count(), csv.starts_with("fingerprint,calls,")), (3, true), "{csv}");
}

#[test]
fn stats_says_how_much_there_is() {
    let mut written = Written::packed();
    written.queries(0..300);
    written.until_packed(1);
    written.say_of(Class::new(1), 300_000_000, r#""kind":"login_failed","user":"eve","sqlstate":"28P01""#);
    let path = written.path();
    let path = path.to_str().expect("UTF-8");
    let open = good(["stats", path, "--json"]).json();
    assert_eq!(open[0]["journals"][0]["open"], true);
    written.close();
    let stats = &good(["stats", path, "--json"]).json()[0];
    assert_eq!(
        (&stats["records"], &stats["errors"], &stats["journals"][0]["open"]),
        (&301.into(), &1.into(), &false.into())
    );
    assert_eq!(stats["times"][1], "2026-03-01T12:05:00.000000Z");
    let kinds: Vec<_> = stats["kinds"].as_array().into_iter().flatten().map(|kind| &kind["kind"]).collect();
    assert_eq!(kinds, ["login_failed", "query"]);
    assert!(stats["segments"].as_array().is_some_and(|all| all.iter().any(|segment| segment["packed"] == true)));
    let text = good(["stats", path]).out;
    for part in ["301 records", "1.0 a second", "packed", "compression", "connections", "2026-03-01 17:30:00 +05:30"] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn a_journal_of_another_service_is_shown_as_text() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (journal, _) = tidegate_journal::Journal::open(Config::new(folder.path())).expect("it opens");
    journal.producer().append_blocking(Note::new(Class::new(0), b"hello \x1b[2J there")).expect("it is taken");
    assert!(journal.close(crate::written::LONG).is_complete());
    let path = folder.path().to_str().expect("UTF-8");
    let text = good(["cat", path]).out;
    assert!(text.ends_with("hello \\u{1b}[2J there\n"), "{text:?}");
    assert_eq!(good(["cat", path, "--json"]).json()[0]["text"], "hello \u{1b}[2J there");
    assert_eq!(good(["cat", path, "--json", "--user", "ann"]).out, "");
}

#[test]
fn help_teaches_every_command() {
    let all = good(["--help"]).out;
    for command in ["cat", "tail", "top", "stats", "verify", "repair", "merge", "export"] {
        assert!(all.contains(&format!("\n  {command}")), "{command} is not in\n{all}");
        let help = good([command, "--help"]).out;
        assert!(help.contains("[PATH]...") && !help.starts_with("Where"), "{help}");
    }
    for command in ["cat", "tail", "top"] {
        let help = good([command, "--help"]).out;
        assert!(help.contains("Examples:") && help.contains("Which records:"), "{help}");
    }
}

#[test]
fn errors_say_what_to_do() {
    let written = three();
    let path = written.path();
    let path = path.to_str().expect("UTF-8");
    let empty = tempfile::tempdir().expect("a temporary folder can be made");
    let nowhere = empty.path().join("nowhere");
    assert!(bad(["cat", nowhere.to_str().expect("UTF-8")]).contains("[journal] names"));
    let stranger = empty.path().join("notes.txt");
    std::fs::write(&stranger, "x").expect("it can be written");
    assert!(bad(["cat", stranger.to_str().expect("UTF-8")]).contains("is no segment"));
    assert!(bad(["cat", path, "--since", "soon"]).contains("yesterday"));
    assert!(bad(["cat", path, "--grep", "("]).contains("--contains"));
    assert!(bad(["cat", path, "--min-duration", "5"]).contains("lacks a unit"));
    let config = empty.path().join("tidegate.toml");
    std::fs::write(&config, "[databases.shop]\nhost = \"db\"\n[users.app]\npassword = \"x\"\n")
        .expect("it can be written");
    assert!(bad(["cat", "-c", config.to_str().expect("UTF-8")]).contains("names no folder"));
    let said = run(["cat", empty.path().to_str().expect("UTF-8")]);
    assert!(said.good && said.out.is_empty(), "a folder without records: {said:?}");
}
