//! What is not there: lost, missing, damaged, in use.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::{bad, good, run, written::Written};

/// Changes bytes in the middle of a file.
fn damage(path: &Path) {
    let mut file = fs::File::options().read(true).write(true).open(path).expect("it is there");
    let middle = file.metadata().expect("it is there").len() / 2;
    let mut bytes = [0; 300];
    file.seek(SeekFrom::Start(middle)).expect("it can be read");
    file.read_exact(&mut bytes).expect("it can be read");
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    file.seek(SeekFrom::Start(middle)).expect("it can be read");
    file.write_all(&bytes).expect("it can be written");
}

/// A journal of some segments, of which the second is damaged.
fn damaged() -> Written {
    let mut written = Written::new();
    written.queries(0..400);
    written.close();
    damage(&written.files()[1]);
    written
}

#[test]
fn a_folder_that_is_no_journal_is_not_good() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = run(["verify".into(), folder.path().to_path_buf()]);
    assert!(!said.good && said.out.contains("no journal was ever opened there"), "{said:?}");
    assert!(said.out.contains(": NOT whole: 0 records"), "{said:?}");
    let said = run(["verify".into(), folder.path().to_path_buf(), "--json".into()]);
    assert!(said.out.contains("\"ok\":false"), "{}", said.out);
    // One that has written nothing yet is.
    let mut written = Written::new();
    written.close();
    assert!(good(["verify".into(), written.path()]).out.contains(": good: 0 records"));
}

/// The records tell what a damaged header did.
#[test]
fn a_damaged_header_costs_no_record() {
    let mut written = Written::new();
    written.queries(0..400);
    written.close();
    let path = written.files()[1].clone();
    let mut bytes = fs::read(&path).expect("it can be read");
    bytes[12] ^= 1;
    fs::write(&path, bytes).expect("it can be written");
    let folder = written.path();
    let said = run(["verify".into(), folder.clone()]);
    assert!(!said.good && said.out.contains(": 64 bytes at 0 are no records"), "{said:?}");
    assert!(said.out.contains(": NOT whole: 400 records"), "{said:?}");
    assert!(good(["repair".into(), folder.clone(), "--yes".into()]).out.contains("written again with"));
    assert!(good(["verify".into(), folder]).out.contains(": good: 400 records"));
}

#[test]
fn losses_are_shown_in_every_view() {
    for mut written in [Written::new(), Written::json()] {
        written.queries(0..2);
        written.lose_one();
        written.queries(2..3);
        written.close();
        let path = written.path();
        let path = path.to_str().expect("UTF-8");
        let lost = "1 record of class queries lost to overload (too_large)";
        for views in
            [&["cat", path][..], &["cat", path, "--user", "nobody"], &["tail", path], &["top", path], &["stats", path]]
        {
            let said = good(views);
            assert!(said.out.contains(lost), "{views:?}: {said:?}");
        }
        let json = good(["cat", path, "--json", "--user", "nobody"]).json();
        assert_eq!((json.len(), &json[0]["gap"]["cause"]), (1, &"too_large".into()));
        let csv = good(["export", path, "--csv", "--user", "nobody"]).out;
        assert!(csv.lines().nth(1).is_some_and(|row| row.contains(",gap,") && row.contains("1 records")), "{csv}");
        let top = good(["top", path, "--json"]).json();
        assert_eq!(top.last().expect("a sum")["all"]["holes"]["lost"][0]["records"], 1);
    }
    for mut written in [Written::new(), Written::json()] {
        written.lose_one();
        written.queries(0..2);
        written.close();
        let said = good(["verify".into(), written.path()]);
        assert!(said.out.contains("told: 1 record of class queries lost"), "{said:?}");
        assert!(said.out.contains(": good: 2 records"), "{said:?}");
    }
}

#[test]
fn damage_is_found_named_shown_and_repaired() {
    let written = damaged();
    let (path, file) = (written.path(), written.files()[1].clone());
    let (path, file) = (path.to_str().expect("UTF-8"), file.to_str().expect("UTF-8").to_owned());
    let said = run(["verify", path]);
    assert!(!said.good && said.out.contains(&format!("{file}: ")) && said.out.contains("NOT whole"), "{said:?}");
    let judged = run(["verify", path, "--json"]);
    let verdict = &judged.json()[0];
    assert_eq!((judged.good, &verdict["ok"]), (false, &false.into()));
    assert_eq!(verdict["journals"][0]["damage"][0]["file"], file.as_str());
    let missing = verdict["journals"][0]["missing"].as_u64().expect("a number");
    assert!((1..10).contains(&missing), "{missing}");
    // Whatever can be read is, and what cannot is said.
    let shown = good(["cat", path]);
    assert!(
        shown.out.contains("are no records") && shown.out.contains(&format!("{missing} records missing")),
        "{shown:?}"
    );
    assert_eq!(
        good(["cat", path, "--json", "--kind", "query", "--user", "ann"]).json().len() as u64,
        400 - missing + 2
    );
    // A dry run changes nothing.
    let before = fs::read(&file).expect("it is there");
    let dry = good(["repair", path]);
    assert!(dry.out.contains(&file) && dry.out.contains("--yes"), "{dry:?}");
    assert_eq!(fs::read(&file).expect("it is there"), before);
    // Repaired, the bytes are gone; the records that were in them stay missing, and that is said.
    let done = good(["repair", path, "--yes"]);
    assert!(done.out.contains("written again") && done.out.contains(".damaged"), "{done:?}");
    let after = run(["verify", path, "--json"]);
    let verdict = &after.json()[0]["journals"][0];
    assert_eq!((&verdict["damage"], &verdict["missing"]), (&serde_json::json!([]), &missing.into()));
    let kept = format!("{file}.damaged");
    assert_eq!(fs::read(&kept).expect("it is kept"), before);
    assert!(good(["cat", &kept]).out.contains("are no records"));
    assert!(good(["repair", path]).out.contains("nothing to repair"));
}

/// Under its wrong name its records come after those that follow them, and would be passed over without a word.
#[test]
fn a_segment_under_another_ones_name_is_told_with_its_own() {
    let mut written = Written::new();
    written.queries(0..400);
    written.close();
    let files = written.files();
    let aside = written.beside("aside");
    for (from, to) in [(&files[1], &aside), (&files[2], &files[1]), (&aside, &files[2])] {
        fs::rename(from, to).expect("both are there");
    }
    let path = written.path();
    let path = path.to_str().expect("UTF-8");
    let said = run(["verify", path]);
    assert!(!said.good, "{said:?}");
    for number in [2, 3] {
        let words = format!("the file says that it is segment {number} of stripe 0, and has another's name");
        assert!(said.out.contains(&words), "{said:?}");
    }
    assert!(said.out.contains("NOT whole") && !said.out.contains("help:"), "{said:?}");
    assert!(good(["cat", path]).out.contains("has another's name"));
    let foretold = good(["repair", path]).out;
    assert!(foretold.contains("rename it") && foretold.contains("nothing to repair"), "{foretold}");
    assert!(good(["repair", "--yes", path]).out.contains("nothing to repair"));
    for (from, to) in [(&files[1], &aside), (&files[2], &files[1]), (&aside, &files[2])] {
        fs::rename(from, to).expect("both are there");
    }
    assert!(good(["verify", path]).out.contains(": good: 400 records"));
}

#[test]
fn a_journal_that_is_whole_is_good() {
    for mut written in [Written::new(), Written::json()] {
        written.queries(0..300);
        let path = written.path();
        // Also while it is being written.
        assert!(good(["verify".into(), path.clone()]).out.contains(": good: 300 records"));
        written.close();
        let said = good(["verify".into(), path.clone()]);
        assert!(
            said.out.contains(": good: 300 records") && said.out.contains("2026-03-01 17:30:00 +05:30"),
            "{said:?}"
        );
        assert!(good(["repair".into(), path, "--yes".into()]).out.contains("nothing to repair"));
    }
}

#[test]
fn a_journal_in_use_is_read_and_not_repaired() {
    let mut written = Written::new();
    written.queries(0..3);
    let path = written.path();
    let path = path.to_str().expect("UTF-8");
    assert_eq!(good(["cat", path]).lines().len(), 3);
    for arguments in [&["repair", path][..], &["repair", path, "--yes"]] {
        let error = bad(arguments);
        assert!(error.contains("has it open"), "{error}");
    }
    // It was not harmed by being looked at.
    written.queries(3..6);
    written.close();
    assert_eq!(good(["cat", path]).lines().len(), 6);
    let file = written.files()[0].clone();
    assert!(bad(["repair".into(), file]).contains("takes the folder"));
}

#[test]
fn half_a_record_at_the_end_is_said_and_is_no_damage() {
    let mut written = Written::new();
    written.queries(0..5);
    written.close();
    let path = written.path();
    let path = path.to_str().expect("UTF-8");
    let file = written.files()[0].clone();
    let whole = fs::read(&file).expect("it is there");
    // Without its seal, and with a record cut short.
    fs::write(&file, &whole[..whole.len() - 100]).expect("it can be written");
    let said = run(["verify", path]);
    assert!(said.out.contains("cut short") && said.out.contains("4 records"), "{said:?}");
    assert!(good(["cat", path]).out.contains("cut short"));
}
