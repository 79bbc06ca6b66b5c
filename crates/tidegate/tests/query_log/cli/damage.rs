//! Lost, missing and damaged records, and logs in use.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::{run, run_err, run_ok, sample_log::SampleLog};

/// Changes bytes in the middle of a file.
fn damage(path: &Path) {
    let mut file = fs::File::options().read(true).write(true).open(path).expect("the file exists");
    let middle = file.metadata().expect("the file exists").len() / 2;
    let mut bytes = [0; 300];
    file.seek(SeekFrom::Start(middle)).expect("the file can be read");
    file.read_exact(&mut bytes).expect("the file can be read");
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    file.seek(SeekFrom::Start(middle)).expect("the file can be read");
    file.write_all(&bytes).expect("the file can be written");
}

/// A log of several segments, the second of which is damaged.
fn damaged() -> SampleLog {
    let mut log = SampleLog::new();
    log.queries(0..400);
    log.close();
    damage(&log.files()[1]);
    log
}

#[test]
fn folder_without_a_log_fails_verify() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = run(["verify".into(), folder.path().to_path_buf()]);
    assert!(!output.success && output.stdout.contains("no query log was opened in it"), "{output:?}");
    assert!(output.stdout.contains(": damaged or incomplete: 0 records"), "{output:?}");
    let output = run(["verify".into(), folder.path().to_path_buf(), "--json".into()]);
    assert!(output.stdout.contains("\"ok\":false"), "{}", output.stdout);
    // An empty log passes.
    let mut log = SampleLog::new();
    log.close();
    assert!(run_ok(["verify".into(), log.path()]).stdout.contains(": good: 0 records"));
}

/// The header is reconstructed from the records.
#[test]
fn damaged_header_loses_no_record() {
    let mut log = SampleLog::new();
    log.queries(0..400);
    log.close();
    let path = log.files()[1].clone();
    let mut bytes = fs::read(&path).expect("the file can be read");
    bytes[12] ^= 1;
    fs::write(&path, bytes).expect("the file can be written");
    let folder = log.path();
    let output = run(["verify".into(), folder.clone()]);
    assert!(!output.success && output.stdout.contains(": 64 bytes at 0 are not records"), "{output:?}");
    assert!(output.stdout.contains(": damaged or incomplete: 400 records"), "{output:?}");
    assert!(run_ok(["repair".into(), folder.clone(), "--yes".into()]).stdout.contains("rewritten with"));
    assert!(run_ok(["verify".into(), folder]).stdout.contains(": good: 400 records"));
}

#[test]
fn lost_records_are_shown_in_every_view() {
    for mut log in [SampleLog::new(), SampleLog::json()] {
        log.queries(0..2);
        log.lose_record();
        log.queries(2..3);
        log.close();
        let path = log.path();
        let path = path.to_str().expect("UTF-8");
        let lost = "1 record of class queries lost to overload (too_large)";
        for views in
            [&["cat", path][..], &["cat", path, "--user", "unknown"], &["tail", path], &["top", path], &["stats", path]]
        {
            let output = run_ok(views);
            assert!(output.stdout.contains(lost), "{views:?}: {output:?}");
        }
        let json = run_ok(["cat", path, "--json", "--user", "unknown"]).json();
        assert_eq!((json.len(), &json[0]["gap"]["cause"]), (1, &"too_large".into()));
        let csv = run_ok(["export", path, "--csv", "--user", "unknown"]).stdout;
        assert!(csv.lines().nth(1).is_some_and(|row| row.contains(",gap,") && row.contains("1 records")), "{csv}");
        let top = run_ok(["top", path, "--json"]).json();
        assert_eq!(top.last().expect("a sum")["all"]["gaps"]["lost"][0]["records"], 1);
    }
    for mut log in [SampleLog::new(), SampleLog::json()] {
        log.lose_record();
        log.queries(0..2);
        log.close();
        let output = run_ok(["verify".into(), log.path()]);
        assert!(output.stdout.contains("gap: 1 record of class queries lost"), "{output:?}");
        assert!(output.stdout.contains(": good: 2 records"), "{output:?}");
    }
}

#[test]
fn damage_is_found_and_repaired() {
    let log = damaged();
    let (path, file) = (log.path(), log.files()[1].clone());
    let (path, file) = (path.to_str().expect("UTF-8"), file.to_str().expect("UTF-8").to_owned());
    let output = run(["verify", path]);
    assert!(
        !output.success
            && output.stdout.contains(&format!("{file}: "))
            && output.stdout.contains("damaged or incomplete"),
        "{output:?}"
    );
    let verified = run(["verify", path, "--json"]);
    let report = &verified.json()[0];
    assert_eq!((verified.success, &report["ok"]), (false, &false.into()));
    assert_eq!(report["journals"][0]["damage"][0]["file"], file.as_str());
    let missing = report["journals"][0]["missing"].as_u64().expect("a number");
    assert!((1..10).contains(&missing), "{missing}");
    // `cat` shows all readable records, and reports the damage.
    let shown = run_ok(["cat", path]);
    assert!(
        shown.stdout.contains("are not records") && shown.stdout.contains(&format!("{missing} records missing")),
        "{shown:?}"
    );
    assert_eq!(
        run_ok(["cat", path, "--json", "--kind", "query", "--user", "ann"]).json().len() as u64,
        400 - missing + 2
    );
    // A dry run changes nothing.
    let before = fs::read(&file).expect("the file exists");
    let dry_run = run_ok(["repair", path]);
    assert!(dry_run.stdout.contains(&file) && dry_run.stdout.contains("--yes"), "{dry_run:?}");
    assert_eq!(fs::read(&file).expect("the file exists"), before);
    // After the repair the bytes are gone. The records in them stay missing, and `verify` reports them.
    let done = run_ok(["repair", path, "--yes"]);
    assert!(done.stdout.contains("rewritten") && done.stdout.contains(".damaged"), "{done:?}");
    let after = run(["verify", path, "--json"]);
    let report = &after.json()[0]["journals"][0];
    assert_eq!((&report["damage"], &report["missing"]), (&serde_json::json!([]), &missing.into()));
    let saved = format!("{file}.damaged");
    assert_eq!(fs::read(&saved).expect("the damaged file is saved"), before);
    assert!(run_ok(["cat", &saved]).stdout.contains("are not records"));
    assert!(run_ok(["repair", path]).stdout.contains("nothing to repair"));
}

/// Records under the wrong name come after later records and would be skipped without a message.
#[test]
fn segment_with_a_wrong_name_is_reported() {
    let mut log = SampleLog::new();
    log.queries(0..400);
    log.close();
    let files = log.files();
    let aside = log.sibling("aside");
    for (from, to) in [(&files[1], &aside), (&files[2], &files[1]), (&aside, &files[2])] {
        fs::rename(from, to).expect("both files exist");
    }
    let path = log.path();
    let path = path.to_str().expect("UTF-8");
    let output = run(["verify", path]);
    assert!(!output.success, "{output:?}");
    for number in [2, 3] {
        let message = format!("the file contains segment {number} of stripe 0, but has the name of another");
        assert!(output.stdout.contains(&message), "{output:?}");
    }
    assert!(output.stdout.contains("damaged or incomplete") && !output.stdout.contains("help:"), "{output:?}");
    assert!(run_ok(["cat", path]).stdout.contains("has the name of another"));
    let dry_run = run_ok(["repair", path]).stdout;
    assert!(dry_run.contains("rename it") && dry_run.contains("nothing to repair"), "{dry_run}");
    assert!(run_ok(["repair", "--yes", path]).stdout.contains("nothing to repair"));
    for (from, to) in [(&files[1], &aside), (&files[2], &files[1]), (&aside, &files[2])] {
        fs::rename(from, to).expect("both files exist");
    }
    assert!(run_ok(["verify", path]).stdout.contains(": good: 400 records"));
}

#[test]
fn complete_log_passes_verify() {
    for mut log in [SampleLog::new(), SampleLog::json()] {
        log.queries(0..300);
        let path = log.path();
        // An open log passes, too.
        assert!(run_ok(["verify".into(), path.clone()]).stdout.contains(": good: 300 records"));
        log.close();
        let output = run_ok(["verify".into(), path.clone()]);
        assert!(
            output.stdout.contains(": good: 300 records") && output.stdout.contains("2026-03-01 17:30:00 +05:30"),
            "{output:?}"
        );
        assert!(run_ok(["repair".into(), path, "--yes".into()]).stdout.contains("nothing to repair"));
    }
}

#[test]
fn log_in_use_is_read_and_not_repaired() {
    let mut log = SampleLog::new();
    log.queries(0..3);
    let path = log.path();
    let path = path.to_str().expect("UTF-8");
    assert_eq!(run_ok(["cat", path]).lines().len(), 3);
    for arguments in [&["repair", path][..], &["repair", path, "--yes"]] {
        let error = run_err(arguments);
        assert!(error.contains("has it open"), "{error}");
    }
    // Reading has not changed the log.
    log.queries(3..6);
    log.close();
    assert_eq!(run_ok(["cat", path]).lines().len(), 6);
    let file = log.files()[0].clone();
    assert!(run_err(["repair".into(), file]).contains("takes a folder"));
}

#[test]
fn partial_record_at_the_end_is_no_damage() {
    let mut log = SampleLog::new();
    log.queries(0..5);
    log.close();
    let path = log.path();
    let path = path.to_str().expect("UTF-8");
    let file = log.files()[0].clone();
    let whole = fs::read(&file).expect("the file exists");
    // The file has no seal, and its last record is cut.
    fs::write(&file, &whole[..whole.len() - 100]).expect("the file can be written");
    let output = run(["verify", path]);
    assert!(output.stdout.contains("cut short") && output.stdout.contains("4 records"), "{output:?}");
    assert!(run_ok(["cat", path]).stdout.contains("cut short"));
}
