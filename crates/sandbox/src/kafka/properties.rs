//! The configuration files of a broker.

use std::fmt::Write as _;
use std::path::Path;

/// Settings for a cluster of one broker: no replicas, and no waiting for other brokers.
const SINGLE_BROKER: [(&str, &str); 15] = [
    ("process.roles", "broker,controller"),
    ("node.id", "1"),
    ("controller.listener.names", "CONTROLLER"),
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
    // The default is a quarter of the heap.
    ("log.cleaner.dedupe.buffer.size", "4194304"),
    ("log.cleaner.backoff.ms", "500"),
];

/// The ports of the listeners: plain, with TLS, and with authentication.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListenerPorts {
    pub(super) plain: u16,
    pub(super) controller: u16,
    pub(super) tls: Option<u16>,
    pub(super) login: Option<u16>,
}

/// Key and certificates of the listener over TLS, in the broker's folder.
pub(super) const KEYSTORE: &str = "server.pem";

/// The SASL mechanism.
pub(super) const MECHANISM: &str = "SCRAM-SHA-256";
const SCRAM_MODULE: &str = "org.apache.kafka.common.security.scram.ScramLoginModule required;";

/// `server.properties` of the broker in `home`. The last value for a name counts.
pub(super) fn server(home: &Path, ports: ListenerPorts, settings: &[(String, String)]) -> String {
    let mut file = String::new();
    // Writing to a String cannot fail.
    let mut set = |name: &str, value: &str| {
        let _ = writeln!(file, "{name}={value}");
    };
    SINGLE_BROKER.iter().for_each(|(name, value)| set(name, value));
    let mut protocols = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT".to_owned();
    let mut brokers = format!("PLAINTEXT://127.0.0.1:{}", ports.plain);
    let mut add = |name: &str, protocol: &str, port: u16| {
        let _ = write!(protocols, ",{name}:{protocol}");
        let _ = write!(brokers, ",{name}://127.0.0.1:{port}");
    };
    if let Some(port) = ports.tls {
        add("TLS", "SSL", port);
        set("ssl.keystore.type", "PEM");
        set("ssl.keystore.location", &home.join(KEYSTORE).display().to_string());
    }
    if let Some(port) = ports.login {
        add("LOGIN", if ports.tls.is_some() { "SASL_SSL" } else { "SASL_PLAINTEXT" }, port);
        set("listener.name.login.sasl.enabled.mechanisms", MECHANISM);
        set("listener.name.login.scram-sha-256.sasl.jaas.config", SCRAM_MODULE);
    }
    let controller = format!("127.0.0.1:{}", ports.controller);
    set("listener.security.protocol.map", &protocols);
    set("listeners", &format!("{brokers},CONTROLLER://{controller}"));
    set("advertised.listeners", &brokers);
    set("controller.quorum.voters", &format!("1@{controller}"));
    set("log.dirs", &home.join("data").display().to_string());
    settings.iter().for_each(|(name, value)| set(name, value));
    file
}

/// Logging: warnings go to standard output, which is the log file of the broker.
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
    fn settings_of_the_caller_override_defaults() {
        let mine = [("node.id".to_owned(), "7".to_owned())];
        let ports = ListenerPorts { plain: 1, controller: 2, tls: None, login: None };
        let file = server(Path::new("/x"), ports, &mine);
        assert!(file.find("node.id=7") > file.find("node.id=1"));
        assert!(file.contains("log.dirs=/x/data\n"));
        assert!(file.contains("\nlisteners=PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2\n"));
    }

    #[test]
    fn logins_use_tls_with_a_certificate() {
        let ports = ListenerPorts { plain: 1, controller: 2, tls: Some(3), login: Some(4) };
        let file = server(Path::new("/x"), ports, &[]);
        assert!(file.contains("PLAINTEXT:PLAINTEXT,TLS:SSL,LOGIN:SASL_SSL\n"), "{file}");
        assert!(
            file.contains("\nadvertised.listeners=PLAINTEXT://127.0.0.1:1,TLS://127.0.0.1:3,LOGIN://127.0.0.1:4\n")
        );
    }
}
