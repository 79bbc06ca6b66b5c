//! The gate by itself. Not in its file, since that is compiled a second time, under loom.

use crate::gate::{Gate, Grant};
use crate::moment::Moment;

fn at(seconds: f64) -> Moment {
    Moment((seconds * 1e6) as u64)
}

fn woken(give: impl FnOnce(&mut dyn FnMut(usize))) -> Vec<usize> {
    let mut woken = Vec::new();
    give(&mut |shard| woken.push(shard));
    woken
}

#[test]
fn no_more_than_the_limit_is_handed_out() {
    let gate = Gate::new(3, None);
    assert_eq!(gate.take(0, 2, at(0.0)).count, 2);
    assert_eq!(gate.take(1, 2, at(0.0)).count, 1);
    assert_eq!(gate.take(1, 2, at(0.0)), Grant { count: 0, again_at: None });
    assert_eq!(woken(|wake| gate.give(1, wake)), [1]);
    assert_eq!(gate.take(1, 2, at(0.0)).count, 1);
}

#[test]
fn who_was_refused_comes_before_who_did_not_wait() {
    let gate = Gate::new(1, None);
    assert_eq!(gate.take(0, 1, at(0.0)).count, 1);
    assert_eq!(gate.take(1, 1, at(0.0)).count, 0);
    gate.give(1, |_| {});
    assert_eq!(gate.take(0, 1, at(0.0)).count, 0);
    assert_eq!(gate.take(1, 1, at(0.0)).count, 1);
    gate.give(1, |_| {});
    assert_eq!(gate.take(1, 1, at(0.0)).count, 0);
    assert_eq!(gate.take(0, 1, at(0.0)).count, 1);
}

#[test]
fn a_lower_limit_is_met_when_permits_come_back() {
    let gate = Gate::new(4, None);
    assert_eq!(gate.take(0, 4, at(0.0)).count, 4);
    gate.set_limit(1, |_| {});
    gate.give(3, |_| {});
    assert_eq!(gate.take(0, 1, at(0.0)).count, 0);
    gate.give(1, |_| {});
    assert_eq!((gate.take(0, 1, at(0.0)).count, gate.used()), (1, 1));
}

#[test]
fn the_rate_is_kept_and_shared() {
    let gate = Gate::new(1000, Some(10.0));
    let mut starts = [0, 0];
    for tick in 0..10_000 {
        for shard in [0, 1] {
            let grant = gate.take(shard, 5, at(f64::from(tick) / 1000.0));
            starts[shard] += grant.count;
            gate.give(grant.count, |_| {});
        }
    }
    assert!(starts.iter().sum::<usize>().abs_diff(100) <= 1, "{starts:?}");
    assert!(starts[0].abs_diff(starts[1]) <= 2, "{starts:?}");
}

#[test]
fn a_rate_of_nothing_is_a_pause() {
    let gate = Gate::new(1, Some(0.0));
    assert_eq!(gate.take(0, 1, at(1e6)), Grant { count: 0, again_at: None });
    assert_eq!(woken(|wake| gate.set_rate(Some(1.0), at(1e6), wake)), [0]);
    let again_at = gate.take(0, 1, at(1e6)).again_at.expect("a time");
    assert_eq!(gate.take(0, 1, again_at).count, 1);
}

#[test]
fn permits_that_come_back_unused_do_not_end_a_pause() {
    let gate = Gate::new(10, Some(100.0));
    let taken = gate.take(0, 5, at(1.0)).count;
    gate.set_rate(Some(0.0), at(1.0), |_| {});
    gate.give_unused(taken, |_| {});
    assert_eq!((gate.take(0, 1, at(1e6)).count, gate.used()), (0, 0));
}
