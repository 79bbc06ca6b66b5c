//! Records of logins, failed logins and disconnects.

use tidegate_query_log::record::RecordKind;
use tidegate_testkit::on_each_postgres;

use crate::logging_gateway::LoggingGateway;

on_each_postgres! {
    fn logins_failed_logins_and_disconnects_are_logged(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let client = logged.gateway.startup("postgres").parameter("application_name", "till 4").connect();
        client.disconnect(false);
        logged.wait_for("the disconnect is logged", |entries| entries.iter().any(|entry| entry.kind == RecordKind::Disconnect));
        let unknown = logged.gateway.startup("no_such_db").user("eve").parameter("application_name", "till 5");
        let refused = unknown.refused();
        assert_eq!(refused.code, "3D000");
        let entries = logged.end();
        let kinds: Vec<_> = entries.iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [RecordKind::Login, RecordKind::Disconnect, RecordKind::LoginFailed]);
        assert_eq!(entries[0].application.as_deref(), Some("till 4"));
        assert!(entries[0].client.as_deref().is_some_and(|client| client.starts_with("127.0.0.1:")));
        assert_eq!((entries[0].session.is_some(), entries[0].session), (true, entries[1].session));
        assert!(entries[1].reason.is_some() && entries[1].total_us.is_some());
        let failed = &entries[2];
        assert_eq!((failed.user.as_deref(), failed.database.as_deref()), (Some("eve"), Some("no_such_db")));
        assert_eq!((failed.sqlstate.as_deref(), failed.session), (Some("3D000"), None));
        assert_eq!(failed.application.as_deref(), Some("till 5"));
        assert!(failed.message.as_deref().is_some_and(|message| message.contains("no_such_db")));
    }

    fn changed_application_name_is_logged(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "");
        let mut client = logged.gateway.startup("postgres").parameter("application_name", "old").connect();
        client.ok("select 1");
        client.ok("set application_name = 'new'");
        client.ok("select 2");
        drop(client);
        let entries = logged.end();
        let record = |text: &str| entries.iter().find(|entry| entry.statement.as_deref() == Some(text));
        let name = |text: &str| record(text).and_then(|entry| entry.application.clone());
        assert_eq!((name("select 1").as_deref(), name("select 2").as_deref()), (Some("old"), Some("new")));
    }

    fn connection_records_can_be_disabled(fixture) {
        let logged = LoggingGateway::new(fixture, "size = 1\n", "connections = false");
        logged.gateway.client("postgres").ok("select 1");
        let entries = logged.end();
        assert_eq!(entries.iter().map(|entry| entry.kind).collect::<Vec<_>>(), [RecordKind::Query]);
    }
}
