//! Promotions, crashes, silence and lag, without a server.

use super::*;

struct Stage {
    topology: Topology,
    now: Instant,
}

fn stage(rules: Rules) -> Stage {
    let mut topology = Topology::new(rules);
    topology.set_hosts(["a", "b", "c"].map(Arc::from));
    Stage { topology, now: Instant::now() }
}

impl Stage {
    fn says(&mut self, name: &str, report: Report) {
        self.topology.note(name, report, self.now);
    }

    /// All come from one `initdb`, and none is another's address.
    fn primary(&mut self, name: &str, timeline: u32, lsn: u64) {
        self.primary_of(name, timeline, lsn, Origin { system: 7, started: 0 });
    }

    fn primary_of(&mut self, name: &str, timeline: u32, lsn: u64, origin: Origin) {
        self.says(name, Report::Answer(Observation { in_recovery: false, lsn, timeline, origin }));
    }

    fn replica(&mut self, name: &str, lsn: u64) {
        let origin = Origin { system: 7, started: 0 };
        self.says(name, Report::Answer(Observation { in_recovery: true, lsn, timeline: 0, origin }));
    }

    fn down(&mut self, name: &str) {
        self.says(name, Report::Down("connection refused".to_owned()));
    }

    /// `a b c`: a primary `a`, two replicas.
    fn settled(mut self) -> Self {
        self.primary("a", 1, 100);
        self.replica("b", 100);
        self.replica("c", 100);
        self
    }

    fn passes(&mut self, time: Duration) {
        self.now += time;
    }

    fn state(&self, name: &str) -> HostState {
        self.view(name).state
    }

    fn view(&self, name: &str) -> HostView {
        self.topology.views().into_iter().find(|(known, _)| **known == *name).unwrap().1
    }

    /// Primary, replicas, any; as one text.
    fn verdict(&self) -> String {
        let Verdict { primary, replicas, any, .. } = self.topology.verdict();
        format!("{} | {} | {}", primary.as_deref().unwrap_or("-"), replicas.join(" "), any.join(" "))
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn nobody_serves_before_somebody_has_answered() {
    let mut stage = stage(Rules::default());
    assert_eq!((stage.verdict().as_str(), stage.state("a")), ("- |  | ", HostState::New));
    stage.replica("b", 1);
    assert_eq!(stage.verdict(), "- | b | b");
    stage.primary("a", 1, 1);
    assert_eq!(stage.verdict(), "a | b | a b");
}

#[test]
fn a_dead_primary_leaves_its_place_empty_until_a_replica_is_promoted() {
    let mut stage = stage(Rules::default()).settled();
    assert_eq!(stage.verdict(), "a | b c | a b c");
    stage.down("a");
    assert_eq!((stage.verdict().as_str(), stage.state("a")), ("- | b c | b c", HostState::Down));
    stage.primary("b", 2, 120);
    assert_eq!(stage.verdict(), "b | c | b c");
    stage.replica("a", 120);
    assert_eq!(stage.verdict(), "b | a c | a b c");
}

#[test]
fn of_two_primaries_the_higher_timeline_is_believed() {
    let mut stage = stage(Rules::default()).settled();
    stage.primary("b", 2, 90);
    assert_eq!((stage.verdict().as_str(), stage.state("a")), ("b | c | b c", HostState::Deposed));
    let verdict = stage.topology.verdict();
    assert!(verdict.unfit.contains("a") && verdict.deposed.contains("a"));
    // Also while the new one is away: what the old one takes now would be lost.
    stage.down("b");
    assert_eq!((stage.verdict().as_str(), stage.state("a")), ("- | c | c", HostState::Deposed));
}

#[test]
fn of_two_primaries_of_one_timeline_the_one_that_was_it_stays() {
    let mut stage = stage(Rules::default()).settled();
    stage.primary("b", 1, 500);
    assert_eq!((stage.verdict().as_str(), stage.state("b")), ("a | c | a c", HostState::Deposed));
    stage.down("a");
    assert_eq!(stage.verdict(), "b | c | b c");
}

#[test]
fn a_server_that_is_closing_is_used_no_more() {
    let mut stage = stage(Rules::default()).settled();
    stage.says("c", Report::Closed("the database system is shutting down".to_owned()));
    assert_eq!((stage.verdict().as_str(), stage.state("c")), ("a | b | a b", HostState::Closed));
    assert!(stage.topology.verdict().unfit.contains("c"));
    stage.replica("c", 100);
    assert_eq!(stage.verdict(), "a | b c | a b c");
}

#[test]
fn one_slow_answer_means_nothing_two_mean_silence() {
    let mut stage = stage(Rules::default()).settled();
    stage.says("b", Report::Silent);
    assert_eq!(stage.state("b"), HostState::Up);
    stage.says("b", Report::Silent);
    assert_eq!((stage.verdict().as_str(), stage.state("b")), ("a | c | a c", HostState::Silent));
    stage.replica("b", 100);
    assert_eq!(stage.verdict(), "a | b c | a b c");
}

#[test]
fn a_server_that_is_gone_is_not_brought_back_by_silence() {
    for gone in [Report::Down("connection refused".to_owned()), Report::Closed("shutting down".to_owned())] {
        let mut stage = stage(Rules::default()).settled();
        stage.says("a", gone);
        stage.says("a", Report::Silent);
        assert_eq!((stage.verdict().as_str(), stage.state("a")), ("- | b c | b c", HostState::Silent));
        stage.primary("a", 1, 100);
        assert_eq!(stage.verdict(), "a | b c | a b c");
    }
}

#[test]
fn a_question_that_was_never_sent_says_nothing_of_a_server() {
    let unasked = || Report::Unasked("too many open files".to_owned());
    let mut stage = stage(Rules::default());
    stage.says("a", unasked());
    assert_eq!((stage.state("a"), stage.view("a").error.as_deref()), (HostState::New, Some("too many open files")));
    let mut stage = stage.settled();
    stage.down("c");
    ["a", "b", "c"].iter().for_each(|name| stage.says(name, unasked()));
    assert_eq!((stage.verdict().as_str(), stage.state("c")), ("a | b | a b", HostState::Down));
}

#[test]
fn when_all_are_silent_all_are_used() {
    let mut stage = stage(Rules::default()).settled();
    for name in ["a", "b", "c", "a", "b", "c"] {
        stage.says(name, Report::Silent);
    }
    // But not for writes: another one may have been promoted where we cannot see it.
    assert_eq!(stage.verdict(), "- | b c | a b c");
}

#[test]
fn who_would_not_tell_keeps_the_role_it_had() {
    let mut stage = stage(Rules::default()).settled();
    stage.says("b", Report::Mute("password authentication failed".to_owned()));
    assert_eq!(stage.verdict(), "a | b c | a b c");
    assert_eq!(stage.view("b").error.as_deref(), Some("password authentication failed"));
    let mut fresh = self::stage(Rules::default());
    fresh.says("b", Report::Mute("no pg_hba.conf entry".to_owned()));
    assert_eq!((fresh.verdict().as_str(), fresh.view("b").role), ("- |  | b", Role::Unknown));
}

#[test]
fn lag_in_bytes_has_a_limit() {
    let mut stage = stage(Rules { lag_bytes_max: 50, ..Rules::default() }).settled();
    stage.primary("a", 1, 151);
    stage.replica("b", 101);
    assert_eq!((stage.verdict().as_str(), stage.state("c")), ("a | b | a b", HostState::Lagging));
    assert_eq!(stage.view("c").lag_bytes, Some(51));
    stage.replica("c", 151);
    assert_eq!(stage.verdict(), "a | b c | a b c");
}

#[test]
fn lag_in_time_is_that_of_the_first_byte_that_is_missing() {
    let mut stage = stage(Rules { lag_max: 3 * SECOND, ..Rules::default() }).settled();
    for lsn in [110, 120, 130] {
        stage.passes(SECOND);
        stage.primary("a", 1, lsn);
    }
    stage.replica("b", 115);
    assert_eq!((stage.view("b").lag, stage.view("c").lag), (Some(SECOND), Some(2 * SECOND)));
    stage.passes(2 * SECOND);
    stage.primary("a", 1, 130);
    assert_eq!((stage.verdict().as_str(), stage.state("c")), ("a | b | a b", HostState::Lagging));
    stage.replica("c", 130);
    assert_eq!(stage.view("c").lag, Some(Duration::ZERO), "a primary that writes nothing makes no lag");
}

#[test]
fn nobody_falls_behind_a_dead_primary() {
    let mut stage = stage(Rules { lag_max: 3 * SECOND, ..Rules::default() }).settled();
    stage.passes(SECOND);
    stage.primary("a", 1, 200);
    stage.down("a");
    stage.passes(60 * SECOND);
    stage.replica("b", 150);
    assert_eq!(stage.verdict(), "- | b c | b c");
}

#[test]
fn who_lies_behind_does_so_as_well_when_the_primary_comes_back_or_another_one_has_its_place() {
    let mut stage = stage(Rules { lag_max: 3 * SECOND, ..Rules::default() }).settled();
    for lsn in [200, 300] {
        stage.passes(10 * SECOND);
        stage.primary("a", 1, lsn);
        stage.replica("b", lsn);
    }
    // It begins anew far behind, as a replica does that was killed, while the primary was away.
    stage.down("a");
    stage.primary("a", 1, 310);
    stage.replica("c", 150);
    assert_eq!((stage.view("c").lag, stage.verdict().as_str()), (Some(10 * SECOND), "a | b | a b"));
    // The next one has not all that the last one had.
    stage.down("a");
    stage.primary("b", 2, 305);
    assert_eq!((stage.view("c").lag, stage.verdict().as_str()), (Some(10 * SECOND), "b |  | b"));
    stage.replica("c", 300);
    assert_eq!((stage.view("c").lag, stage.state("c")), (Some(Duration::ZERO), HostState::Up));
}

#[test]
fn a_new_primary_may_go_on_from_an_earlier_place() {
    let mut stage = stage(Rules { lag_bytes_max: 50, ..Rules::default() }).settled();
    stage.primary("a", 1, 1000);
    stage.primary("b", 2, 120);
    stage.replica("c", 110);
    assert_eq!((stage.view("c").lag_bytes, stage.state("c")), (Some(10), HostState::Up));
}

#[test]
fn a_list_that_changes_keeps_what_is_known_of_those_who_stay() {
    let mut stage = stage(Rules::default()).settled();
    stage.topology.set_hosts(["a", "c", "d"].map(Arc::from));
    assert_eq!((stage.verdict().as_str(), stage.state("d")), ("a | c | a c", HostState::New));
    stage.down("gone");
    stage.topology.set_hosts(["c"].map(Arc::from));
    assert_eq!(stage.verdict(), "- | c | c");
}

#[test]
fn a_primary_that_hangs_is_deposed_once_another_is_promoted() {
    let mut stage = stage(Rules::default()).settled();
    stage.says("a", Report::Silent);
    stage.says("a", Report::Silent);
    assert_eq!((stage.verdict().as_str(), stage.state("a")), ("- | b c | b c", HostState::Silent));
    assert!(stage.topology.verdict().unfit.is_empty(), "it may go on");
    stage.primary("b", 2, 120);
    assert_eq!((stage.verdict().as_str(), stage.state("a")), ("b | c | b c", HostState::Deposed));
    assert!(stage.topology.verdict().unfit.contains("a"));
    // Whatever it says when it wakes up.
    stage.primary("a", 1, 130);
    assert_eq!((stage.verdict().as_str(), stage.state("a")), ("b | c | b c", HostState::Deposed));
}

#[test]
fn primaries_of_different_systems_are_all_used_and_one_takes_the_writes() {
    let mut stage = stage(Rules::default());
    let [one, other] = [1, 2].map(|system| Origin { system, started: system });
    stage.primary_of("a", 1, 100, one);
    stage.primary_of("b", 5, 900, other);
    assert_eq!(stage.verdict(), "a |  | a b");
    let verdict = stage.topology.verdict();
    assert!(verdict.deposed.is_empty() && verdict.apart.iter().map(|name| &**name).eq(["b"]), "{verdict:?}");
    // Writes move only when there is nobody at home, and do not move back.
    stage.down("a");
    assert_eq!(stage.verdict(), "b |  | b");
    stage.primary_of("a", 1, 100, one);
    assert_eq!(stage.verdict(), "b |  | a b");
    // Within each of them a promotion counts as ever.
    stage.primary_of("c", 2, 120, one);
    assert_eq!((stage.verdict().as_str(), stage.state("a")), ("b |  | b c", HostState::Deposed));
}

#[test]
fn a_replica_is_measured_by_the_primary_of_its_own_system() {
    let mut stage = stage(Rules { lag_bytes_max: 50, ..Rules::default() });
    stage.primary_of("a", 1, 100_000, Origin { system: 1, started: 1 });
    stage.primary("b", 1, 500);
    stage.replica("c", 480);
    assert_eq!((stage.verdict().as_str(), stage.view("c").lag_bytes), ("a | c | a b c", Some(20)));
}

#[test]
fn two_addresses_of_one_server_are_no_split_brain() {
    let mut stage = stage(Rules::default());
    let server = Origin { system: 7, started: 99 };
    stage.primary_of("a", 1, 100, server);
    stage.primary_of("b", 1, 100, server);
    stage.replica("c", 100);
    assert_eq!((stage.verdict().as_str(), stage.state("b")), ("a | c | a b c", HostState::Up));
    stage.down("a");
    assert_eq!(stage.verdict(), "b | c | b c");
    // A server that was started again is told from one that was copied only by its next answer.
    stage.primary_of("a", 1, 100, Origin { system: 7, started: 100 });
    assert_eq!(stage.state("a"), HostState::Deposed);
    stage.primary_of("b", 1, 100, Origin { system: 7, started: 100 });
    assert_eq!((stage.verdict().as_str(), stage.state("a")), ("b | c | a b c", HostState::Up));
}

#[test]
fn servers_that_do_not_say_where_they_come_from_are_taken_for_relatives() {
    let mut stage = stage(Rules::default());
    stage.primary_of("a", 1, 100, Origin { system: 1, started: 1 });
    stage.primary_of("b", 1, 100, Origin::default());
    assert_eq!((stage.verdict().as_str(), stage.state("b")), ("a |  | a", HostState::Deposed));
}
