//! A log file that is rotated while a stream follows it, and between two runs.

use rustix::process::Signal;

use crate::process::{Stream, TempFolder, assert_each_once_in_order, eventually, numbers};

#[test]
fn rotated_file_loses_no_line() {
    let folder = TempFolder::new();
    let (file, checkpoint) = (folder.write("in.log", &numbers(0..10, 5)), folder.path("done"));
    let arguments = ["--from", &file, "--follow", "--checkpoint", &checkpoint, "--key", "/k", "--to", "-"];
    let stream = Stream::start(arguments);
    eventually("the existing lines arrive", || stream.lines().len() == 10);
    let rename = |from: &str, to: &str| std::fs::rename(folder.path(from), folder.path(to)).unwrap();
    rename("in.log", "in.log.1");
    folder.append("in.log.1", &numbers(10..20, 5));
    folder.append("in.log", &numbers(20..30, 5));
    eventually("the lines of both files arrive", || stream.lines().len() == 30);
    stream.signal(Signal::TERM);
    assert_each_once_in_order(&stream.wait().expect(0).lines, 0..30);
    // Rotated again between two runs, the last time by a copy and a truncation.
    folder.append("in.log", &numbers(30..40, 5));
    rename("in.log.1", "in.log.2");
    rename("in.log", "in.log.1");
    folder.append("in.log", &numbers(40..50, 5));
    let next = || Stream::run(["--from", &file, "--checkpoint", &checkpoint, "--key", "/k", "--to", "-"]).expect(0);
    assert_each_once_in_order(&next().lines, 30..50);
    folder.append("in.log", &numbers(50..60, 5));
    std::fs::copy(folder.path("in.log"), folder.path("in.log.1")).unwrap();
    folder.write("in.log", &numbers(60..100, 5));
    assert_each_once_in_order(&next().lines, 50..100);
}
