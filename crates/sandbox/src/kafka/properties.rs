//! The files that a broker is started with.

use std::fmt::Write as _;
use std::path::Path;

/// Everything that a cluster of several brokers needs is cut down to one, and what waits for others does not wait.
const ALONE: [(&str, &str); 16] = [
    ("process.roles", "broker,controller"),
    ("node.id", "1"),
    ("controller.listener.names", "CONTROLLER"),
    ("listener.security.protocol.map", "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT"),
    ("auto.create.topics.enable", "false"),
    ("offsets.topic.num.partitions", "1"),
    ("offsets.topic.replication.factor", "1"),
    ("transaction.state.log.num.partitions", "1"),
    ("transaction.state.log.replication.factor", "1"),
    ("transaction.state.log.min.isr", "1"),
    ("share.coordinator.state.topic.num.partitions", "1"),
    ("share.coordinator.state.topic.replication.factor", "1"),
    ("share.coordinator.state.topic.min.isr", "1"),
    ("group.initial.rebalance.delay.ms", "0"),
    // By default it takes a quarter of our heap.
    ("log.cleaner.dedupe.buffer.size", "4194304"),
    ("log.cleaner.backoff.ms", "500"),
];

/// `server.properties` of the broker in `home`. Of several lines for one name the last counts.
pub(super) fn server(home: &Path, port: u16, controller_port: u16, settings: &[(String, String)]) -> String {
    let mut file = String::new();
    // Writing to a String cannot fail.
    let mut set = |name: &str, value: &str| {
        let _ = writeln!(file, "{name}={value}");
    };
    ALONE.iter().for_each(|(name, value)| set(name, value));
    let broker = format!("PLAINTEXT://127.0.0.1:{port}");
    let controller = format!("127.0.0.1:{controller_port}");
    set("listeners", &format!("{broker},CONTROLLER://{controller}"));
    set("advertised.listeners", &broker);
    set("controller.quorum.voters", &format!("1@{controller}"));
    set("log.dirs", &home.join("data").display().to_string());
    settings.iter().for_each(|(name, value)| set(name, value));
    file
}

/// Of the logging: warnings go to the standard output, which is the broker's log file.
pub(super) const LOGGING: &str = "\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_caller_come_last() {
        let mine = [("node.id".to_owned(), "7".to_owned())];
        let file = server(Path::new("/x"), 1, 2, &mine);
        assert!(file.find("node.id=7") > file.find("node.id=1"));
        assert!(file.contains("log.dirs=/x/data\n"));
    }
}
