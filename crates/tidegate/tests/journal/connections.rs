//! Logins, refused logins and disconnects.

use tidegate_query_log::entry::Kind;

use crate::kept::Kept;

on_each_postgres! {
    fn who_comes_is_refused_and_leaves(fixture) {
        let kept = Kept::new(fixture, "size = 1\n", "");
        let client = kept.gateway.startup("postgres").parameter("application_name", "till 4").connect();
        client.vanish(false);
        kept.when("it has left", |entries| entries.iter().any(|entry| entry.kind == Kind::Disconnect));
        let stranger = kept.gateway.startup("nowhere").user("eve").parameter("application_name", "knock");
        let refused = stranger.refused();
        assert_eq!(refused.code, "3D000");
        let entries = kept.end();
        let kinds: Vec<_> = entries.iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [Kind::Login, Kind::Disconnect, Kind::LoginFailed]);
        assert_eq!(entries[0].application.as_deref(), Some("till 4"));
        assert!(entries[0].client.as_deref().is_some_and(|client| client.starts_with("127.0.0.1:")));
        assert_eq!((entries[0].session.is_some(), entries[0].session), (true, entries[1].session));
        assert!(entries[1].reason.is_some() && entries[1].total_us.is_some());
        let failed = &entries[2];
        assert_eq!((failed.user.as_deref(), failed.database.as_deref()), (Some("eve"), Some("nowhere")));
        assert_eq!((failed.sqlstate.as_deref(), failed.session), (Some("3D000"), None));
        assert_eq!(failed.application.as_deref(), Some("knock"));
        assert!(failed.message.as_deref().is_some_and(|message| message.contains("nowhere")));
    }

    fn a_name_that_changes_is_noted_from_then_on(fixture) {
        let kept = Kept::new(fixture, "size = 1\n", "");
        let mut client = kept.gateway.startup("postgres").parameter("application_name", "old").connect();
        client.ok("select 1");
        client.ok("set application_name = 'new'");
        client.ok("select 2");
        drop(client);
        let entries = kept.end();
        let said = |text: &str| entries.iter().find(|entry| entry.statement.as_deref() == Some(text));
        let name = |text: &str| said(text).and_then(|entry| entry.application.clone());
        assert_eq!((name("select 1").as_deref(), name("select 2").as_deref()), (Some("old"), Some("new")));
    }

    fn they_can_be_left_out(fixture) {
        let kept = Kept::new(fixture, "size = 1\n", "connections = false");
        kept.gateway.client("postgres").ok("select 1");
        let entries = kept.end();
        assert_eq!(entries.iter().map(|entry| entry.kind).collect::<Vec<_>>(), [Kind::Query]);
    }
}
