//! Every record is delivered at least once if the process is killed at any time, with the first deliveries of a key in
//! order.

use crate::delivery_table::DeliveryTable;
use crate::process::{Stream, TempFolder, eventually, numbers, random};

#[test]
fn file_is_delivered_at_least_once_despite_kills() {
    let mut random = random();
    let (folder, deliveries) = (TempFolder::new(), DeliveryTable::new());
    let file = folder.write("in.ndjson", &numbers(0..3_000, 30));
    let (checkpoint, url, sql) = (folder.path("done"), deliveries.url(), deliveries.sql());
    let arguments = ["--from", &file, "--checkpoint", &checkpoint, "--key", "/k", "--to", &url, "--sql", &sql];
    let start = || Stream::start(arguments.iter().chain(&["--param", "/k", "--param", "/n"]));
    for _ in 0..6 {
        let (stream, until) = (start(), deliveries.distinct() + random.u64(1..500));
        eventually("more records arrive", || deliveries.distinct() >= until.min(3_000));
        stream.kill9();
    }
    start().wait().expect(0);
    deliveries.check(0..3_000);
}
