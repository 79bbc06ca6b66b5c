//! Promotions, crashes, silence and lag, without servers.

use super::*;

struct Fixture {
    topology: Topology,
    now: Instant,
}

fn fixture(rules: LagLimits) -> Fixture {
    let mut topology = Topology::new(rules);
    topology.set_hosts(["a", "b", "c"].map(Arc::from));
    Fixture { topology, now: Instant::now() }
}

impl Fixture {
    fn report(&mut self, name: &str, report: ProbeReport) {
        self.topology.on_report(name, report, self.now);
    }

    /// All servers are of one system, and none has a second address.
    fn primary(&mut self, name: &str, timeline: u32, lsn: u64) {
        self.primary_of(name, timeline, lsn, ServerOrigin { system: 7, started: 0 });
    }

    fn primary_of(&mut self, name: &str, timeline: u32, lsn: u64, origin: ServerOrigin) {
        self.report(name, ProbeReport::Answer(Observation { in_recovery: false, lsn, timeline, origin }));
    }

    fn replica(&mut self, name: &str, lsn: u64) {
        let origin = ServerOrigin { system: 7, started: 0 };
        self.report(name, ProbeReport::Answer(Observation { in_recovery: true, lsn, timeline: 0, origin }));
    }

    fn down(&mut self, name: &str) {
        self.report(name, ProbeReport::Down("connection refused".to_owned()));
    }

    /// `a b c`: primary `a`, two replicas.
    fn with_primary_and_replicas(mut self) -> Self {
        self.primary("a", 1, 100);
        self.replica("b", 100);
        self.replica("c", 100);
        self
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
    }

    fn state(&self, name: &str) -> HostState {
        self.view(name).state
    }

    fn view(&self, name: &str) -> HostView {
        self.topology.views().into_iter().find(|(known, _)| **known == *name).unwrap().1
    }

    /// Primary, replicas and any, as one text.
    fn routing(&self) -> String {
        let ClusterRouting { primary, replicas, any, .. } = self.topology.routing();
        format!("{} | {} | {}", primary.as_deref().unwrap_or("-"), replicas.join(" "), any.join(" "))
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn no_server_is_used_before_its_first_answer() {
    let mut fixture = fixture(LagLimits::default());
    assert_eq!((fixture.routing().as_str(), fixture.state("a")), ("- |  | ", HostState::New));
    fixture.replica("b", 1);
    assert_eq!(fixture.routing(), "- | b | b");
    fixture.primary("a", 1, 1);
    assert_eq!(fixture.routing(), "a | b | a b");
}

#[test]
fn dead_primary_is_replaced_by_a_promotion() {
    let mut fixture = fixture(LagLimits::default()).with_primary_and_replicas();
    assert_eq!(fixture.routing(), "a | b c | a b c");
    fixture.down("a");
    assert_eq!((fixture.routing().as_str(), fixture.state("a")), ("- | b c | b c", HostState::Down));
    fixture.primary("b", 2, 120);
    assert_eq!(fixture.routing(), "b | c | b c");
    fixture.replica("a", 120);
    assert_eq!(fixture.routing(), "b | a c | a b c");
}

#[test]
fn higher_timeline_wins() {
    let mut fixture = fixture(LagLimits::default()).with_primary_and_replicas();
    fixture.primary("b", 2, 90);
    assert_eq!((fixture.routing().as_str(), fixture.state("a")), ("b | c | b c", HostState::Deposed));
    let routing = fixture.topology.routing();
    assert!(routing.unusable.contains("a") && routing.deposed.contains("a"));
    // Even while the new primary is down: writes to the old one would be lost.
    fixture.down("b");
    assert_eq!((fixture.routing().as_str(), fixture.state("a")), ("- | c | c", HostState::Deposed));
}

#[test]
fn previous_primary_wins_on_equal_timelines() {
    let mut fixture = fixture(LagLimits::default()).with_primary_and_replicas();
    fixture.primary("b", 1, 500);
    assert_eq!((fixture.routing().as_str(), fixture.state("b")), ("a | c | a c", HostState::Deposed));
    fixture.down("a");
    assert_eq!(fixture.routing(), "b | c | b c");
}

#[test]
fn server_that_shuts_down_is_not_used() {
    let mut fixture = fixture(LagLimits::default()).with_primary_and_replicas();
    fixture.report("c", ProbeReport::Closed("the database system is shutting down".to_owned()));
    assert_eq!((fixture.routing().as_str(), fixture.state("c")), ("a | b | a b", HostState::Closed));
    assert!(fixture.topology.routing().unusable.contains("c"));
    fixture.replica("c", 100);
    assert_eq!(fixture.routing(), "a | b c | a b c");
}

#[test]
fn two_missing_answers_make_a_server_silent() {
    let mut fixture = fixture(LagLimits::default()).with_primary_and_replicas();
    fixture.report("b", ProbeReport::Silent);
    assert_eq!(fixture.state("b"), HostState::Up);
    fixture.report("b", ProbeReport::Silent);
    assert_eq!((fixture.routing().as_str(), fixture.state("b")), ("a | c | a c", HostState::Silent));
    fixture.replica("b", 100);
    assert_eq!(fixture.routing(), "a | b c | a b c");
}

#[test]
fn silence_does_not_revive_a_server() {
    for gone in [ProbeReport::Down("connection refused".to_owned()), ProbeReport::Closed("shutting down".to_owned())] {
        let mut fixture = fixture(LagLimits::default()).with_primary_and_replicas();
        fixture.report("a", gone);
        fixture.report("a", ProbeReport::Silent);
        assert_eq!((fixture.routing().as_str(), fixture.state("a")), ("- | b c | b c", HostState::Silent));
        fixture.primary("a", 1, 100);
        assert_eq!(fixture.routing(), "a | b c | a b c");
    }
}

#[test]
fn unsent_probe_changes_no_state() {
    let not_sent = || ProbeReport::NotSent("too many open files".to_owned());
    let mut fixture = fixture(LagLimits::default());
    fixture.report("a", not_sent());
    assert_eq!((fixture.state("a"), fixture.view("a").error.as_deref()), (HostState::New, Some("too many open files")));
    let mut fixture = fixture.with_primary_and_replicas();
    fixture.down("c");
    ["a", "b", "c"].iter().for_each(|name| fixture.report(name, not_sent()));
    assert_eq!((fixture.routing().as_str(), fixture.state("c")), ("a | b | a b", HostState::Down));
}

#[test]
fn all_silent_servers_are_used() {
    let mut fixture = fixture(LagLimits::default()).with_primary_and_replicas();
    for name in ["a", "b", "c", "a", "b", "c"] {
        fixture.report(name, ProbeReport::Silent);
    }
    // Not for writes: another server may have been promoted beyond a network partition.
    assert_eq!(fixture.routing(), "- | b c | a b c");
}

#[test]
fn refused_probe_keeps_the_role() {
    let mut fixture = fixture(LagLimits::default()).with_primary_and_replicas();
    fixture.report("b", ProbeReport::Refused("password authentication failed".to_owned()));
    assert_eq!(fixture.routing(), "a | b c | a b c");
    assert_eq!(fixture.view("b").error.as_deref(), Some("password authentication failed"));
    let mut fresh = self::fixture(LagLimits::default());
    fresh.report("b", ProbeReport::Refused("no pg_hba.conf entry".to_owned()));
    assert_eq!((fresh.routing().as_str(), fresh.view("b").role), ("- |  | b", HostRole::Unknown));
}

#[test]
fn byte_lag_is_limited() {
    let mut fixture = fixture(LagLimits { lag_bytes_max: 50, ..LagLimits::default() }).with_primary_and_replicas();
    fixture.primary("a", 1, 151);
    fixture.replica("b", 101);
    assert_eq!((fixture.routing().as_str(), fixture.state("c")), ("a | b | a b", HostState::Lagging));
    assert_eq!(fixture.view("c").lag_bytes, Some(51));
    fixture.replica("c", 151);
    assert_eq!(fixture.routing(), "a | b c | a b c");
}

#[test]
fn time_lag_starts_at_the_first_missing_byte() {
    let mut fixture = fixture(LagLimits { lag_max: 3 * SECOND, ..LagLimits::default() }).with_primary_and_replicas();
    for lsn in [110, 120, 130] {
        fixture.advance(SECOND);
        fixture.primary("a", 1, lsn);
    }
    fixture.replica("b", 115);
    assert_eq!((fixture.view("b").lag, fixture.view("c").lag), (Some(SECOND), Some(2 * SECOND)));
    fixture.advance(2 * SECOND);
    fixture.primary("a", 1, 130);
    assert_eq!((fixture.routing().as_str(), fixture.state("c")), ("a | b | a b", HostState::Lagging));
    fixture.replica("c", 130);
    assert_eq!(fixture.view("c").lag, Some(Duration::ZERO), "an idle primary causes no lag");
}

#[test]
fn dead_primary_causes_no_lag() {
    let mut fixture = fixture(LagLimits { lag_max: 3 * SECOND, ..LagLimits::default() }).with_primary_and_replicas();
    fixture.advance(SECOND);
    fixture.primary("a", 1, 200);
    fixture.down("a");
    fixture.advance(60 * SECOND);
    fixture.replica("b", 150);
    assert_eq!(fixture.routing(), "- | b c | b c");
}

#[test]
fn lag_survives_restart_and_promotion() {
    let mut fixture = fixture(LagLimits { lag_max: 3 * SECOND, ..LagLimits::default() }).with_primary_and_replicas();
    for lsn in [200, 300] {
        fixture.advance(10 * SECOND);
        fixture.primary("a", 1, lsn);
        fixture.replica("b", lsn);
    }
    // The replica restarts far behind, as after a kill, while the primary was down.
    fixture.down("a");
    fixture.primary("a", 1, 310);
    fixture.replica("c", 150);
    assert_eq!((fixture.view("c").lag, fixture.routing().as_str()), (Some(10 * SECOND), "a | b | a b"));
    // The new primary lacks some WAL of the last one.
    fixture.down("a");
    fixture.primary("b", 2, 305);
    assert_eq!((fixture.view("c").lag, fixture.routing().as_str()), (Some(10 * SECOND), "b |  | b"));
    fixture.replica("c", 300);
    assert_eq!((fixture.view("c").lag, fixture.state("c")), (Some(Duration::ZERO), HostState::Up));
}

#[test]
fn new_primary_may_have_an_earlier_position() {
    let mut fixture = fixture(LagLimits { lag_bytes_max: 50, ..LagLimits::default() }).with_primary_and_replicas();
    fixture.primary("a", 1, 1000);
    fixture.primary("b", 2, 120);
    fixture.replica("c", 110);
    assert_eq!((fixture.view("c").lag_bytes, fixture.state("c")), (Some(10), HostState::Up));
}

#[test]
fn changed_list_keeps_known_servers() {
    let mut fixture = fixture(LagLimits::default()).with_primary_and_replicas();
    fixture.topology.set_hosts(["a", "c", "d"].map(Arc::from));
    assert_eq!((fixture.routing().as_str(), fixture.state("d")), ("a | c | a c", HostState::New));
    fixture.down("gone");
    fixture.topology.set_hosts(["c"].map(Arc::from));
    assert_eq!(fixture.routing(), "- | c | c");
}

#[test]
fn hanging_primary_is_deposed_by_a_promotion() {
    let mut fixture = fixture(LagLimits::default()).with_primary_and_replicas();
    fixture.report("a", ProbeReport::Silent);
    fixture.report("a", ProbeReport::Silent);
    assert_eq!((fixture.routing().as_str(), fixture.state("a")), ("- | b c | b c", HostState::Silent));
    assert!(fixture.topology.routing().unusable.is_empty(), "it may continue");
    fixture.primary("b", 2, 120);
    assert_eq!((fixture.routing().as_str(), fixture.state("a")), ("b | c | b c", HostState::Deposed));
    assert!(fixture.topology.routing().unusable.contains("a"));
    // Later reports of the old primary do not matter.
    fixture.primary("a", 1, 130);
    assert_eq!((fixture.routing().as_str(), fixture.state("a")), ("b | c | b c", HostState::Deposed));
}

#[test]
fn primaries_of_different_systems() {
    let mut fixture = fixture(LagLimits::default());
    let [one, other] = [1, 2].map(|system| ServerOrigin { system, started: system });
    fixture.primary_of("a", 1, 100, one);
    fixture.primary_of("b", 5, 900, other);
    assert_eq!(fixture.routing(), "a |  | a b");
    let routing = fixture.topology.routing();
    assert!(routing.deposed.is_empty() && routing.unrelated.iter().map(|name| &**name).eq(["b"]), "{routing:?}");
    // Writes move only while their system has no primary, and do not move back.
    fixture.down("a");
    assert_eq!(fixture.routing(), "b |  | b");
    fixture.primary_of("a", 1, 100, one);
    assert_eq!(fixture.routing(), "b |  | a b");
    // A promotion within a system works as usual.
    fixture.primary_of("c", 2, 120, one);
    assert_eq!((fixture.routing().as_str(), fixture.state("a")), ("b |  | b c", HostState::Deposed));
}

#[test]
fn lag_is_measured_within_a_system() {
    let mut fixture = fixture(LagLimits { lag_bytes_max: 50, ..LagLimits::default() });
    fixture.primary_of("a", 1, 100_000, ServerOrigin { system: 1, started: 1 });
    fixture.primary("b", 1, 500);
    fixture.replica("c", 480);
    assert_eq!((fixture.routing().as_str(), fixture.view("c").lag_bytes), ("a | c | a b c", Some(20)));
}

#[test]
fn two_addresses_of_one_server() {
    let mut fixture = fixture(LagLimits::default());
    let server = ServerOrigin { system: 7, started: 99 };
    fixture.primary_of("a", 1, 100, server);
    fixture.primary_of("b", 1, 100, server);
    fixture.replica("c", 100);
    assert_eq!((fixture.routing().as_str(), fixture.state("b")), ("a | c | a b c", HostState::Up));
    fixture.down("a");
    assert_eq!(fixture.routing(), "b | c | b c");
    // A restarted server is distinguished from a copy by its next answer only.
    fixture.primary_of("a", 1, 100, ServerOrigin { system: 7, started: 100 });
    assert_eq!(fixture.state("a"), HostState::Deposed);
    fixture.primary_of("b", 1, 100, ServerOrigin { system: 7, started: 100 });
    assert_eq!((fixture.routing().as_str(), fixture.state("a")), ("b | c | a b c", HostState::Up));
}

#[test]
fn servers_without_an_identifier_count_as_one_system() {
    let mut fixture = fixture(LagLimits::default());
    fixture.primary_of("a", 1, 100, ServerOrigin { system: 1, started: 1 });
    fixture.primary_of("b", 1, 100, ServerOrigin::default());
    assert_eq!((fixture.routing().as_str(), fixture.state("b")), ("a |  | a", HostState::Deposed));
}
