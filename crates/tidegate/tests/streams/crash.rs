//! Whenever the process is killed, every record is done at least once, and those of a key first come in their order.

use crate::ledger::Ledger;
use crate::process::{Folder, Stream, eventually, numbers, random};

#[test]
fn a_file_that_is_killed_again_and_again_is_done_at_least_once() {
    let mut random = random();
    let (folder, ledger) = (Folder::new(), Ledger::new());
    let file = folder.write("in.ndjson", &numbers(0..3_000, 30));
    let (checkpoint, url, sql) = (folder.path("done"), ledger.url(), ledger.sql());
    let arguments = ["--from", &file, "--checkpoint", &checkpoint, "--key", "/k", "--to", &url, "--sql", &sql];
    let start = || Stream::start(arguments.iter().chain(&["--param", "/k", "--param", "/n"]));
    for _ in 0..6 {
        let (stream, until) = (start(), ledger.distinct() + random.u64(1..500));
        eventually("some more arrive", || ledger.distinct() >= until.min(3_000));
        stream.kill9();
    }
    start().wait().expect(0);
    ledger.audit(0..3_000);
}
