//! Who is next: round robin in both modes, weights, first of all, and the place in the round.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use tidegate_balance::{
    Balancer, Endpoint, Exact, Local, Member, Pick, PickError, PickFirst, Policy, RingHash, RoundRobin, Spec, Table,
    View, WeightedRoundRobin, hash_of,
};

use crate::house::{at_once, counts, id_of, key, pick_key, policies, ready, set, specs};

proptest! {
    #[test]
    fn t07_a_thread_s_picks_go_round_exactly(count in 1_usize..40, rounds in 1_usize..20) {
        for policy in [Arc::new(RoundRobin) as Arc<dyn tidegate_balance::Policy>, Arc::new(Exact), Arc::new(WeightedRoundRobin)] {
            let balancer = ready(policy, count);
            prop_assert!(counts(&balancer, count, rounds * count).iter().all(|&picks| picks == rounds));
        }
    }

    #[test]
    fn t09_exact_turns_differ_by_one_at_most(count in 1_usize..20, threads in 1_usize..5, picks in 0_usize..100) {
        let balancer = ready(Arc::new(Exact), count);
        let mut found = vec![0_usize; count];
        let mut pickers: Vec<_> = (0..threads).map(|seed| balancer.picker(seed as u64)).collect();
        for turn in 0..picks {
            let id = pickers[turn % threads].pick_with(&Pick::new(), |endpoint| endpoint.id()).unwrap();
            found[(0..count).find(|&number| id_of(&balancer, number) == id).unwrap()] += 1;
        }
        let (least, most) = (found.iter().min().unwrap(), found.iter().max().unwrap());
        prop_assert!(most - least <= 1, "{found:?}");
    }

    #[test]
    fn t08_each_thread_adds_one_to_the_difference_at_most(
        count in 1_usize..12,
        picks in proptest::collection::vec(0_usize..60, 1..6),
    ) {
        let balancer = ready(Arc::new(RoundRobin), count);
        let mut found = vec![0_usize; count];
        for (seed, &picks) in picks.iter().enumerate() {
            let mut picker = balancer.picker(seed as u64);
            for _ in 0..picks {
                let chosen = picker.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).unwrap();
                found[(0..count).find(|&number| key(number) == chosen).unwrap()] += 1;
            }
        }
        let (least, most) = (found.iter().min().unwrap(), found.iter().max().unwrap());
        prop_assert!(most - least <= picks.len(), "{found:?}");
    }

    #[test]
    fn t59_weights_of_any_ratio_are_kept_in_each_cycle(weights in proptest::collection::vec(0_u32..30, 1..12)) {
        let balancer = Balancer::new(WeightedRoundRobin, at_once(), 1, Instant::now());
        let weighted = weights.iter().enumerate().map(|(number, &weight)| Spec::new(key(number).as_str()).weight(weight));
        set(&balancer, Instant::now(), weighted.collect());
        let all_zero = weights.iter().all(|&weight| weight == 0);
        let expected: Vec<usize> = weights.iter().map(|&weight| if all_zero { 1 } else { weight as usize }).collect();
        let cycle: usize = expected.iter().sum();
        prop_assert_eq!(counts(&balancer, weights.len(), cycle), expected);
    }
}

fn weighted(policy: Arc<dyn Policy>, weights: &[u32]) -> crate::house::Keys {
    let balancer = Balancer::with_policy(policy, at_once(), 1, Instant::now());
    let spec = |(number, &weight): (usize, &u32)| Spec::new(key(number).as_str()).weight(weight);
    set(&balancer, Instant::now(), weights.iter().enumerate().map(spec).collect());
    balancer
}

#[test]
fn t59_who_weighs_a_millionth_has_a_millionth_of_the_turns() {
    let balancer = weighted(Arc::new(WeightedRoundRobin), &[1_000_000, 1, 0]);
    assert_eq!(counts(&balancer, 3, 1_000_001), [1_000_000, 1, 0]);
}

#[test]
fn t59_every_policy_bears_weights_of_zero_and_huge_ones() {
    let any = |_: &Endpoint<String>| true;
    for policy in policies() {
        let heeds = !["pick_first", "round_robin", "round_robin_exact", "newest"].contains(&policy.name());
        for weights in [&[0, 0, 0][..], &[1, 0, 0], &[u32::MAX, 1, 0], &[u32::MAX; 3], &[0]] {
            let balancer = weighted(Arc::clone(&policy), weights);
            let first = id_of(&balancer, 0);
            let picks = |number: u64| [Pick::new().hash(number), Pick::new().filter(&any)];
            let leases = (0..200).flat_map(picks).map(|pick| balancer.pick(&pick).expect("weights refuse nobody"));
            let leases: Vec<_> = leases.collect();
            let has_none = |number: usize| weights.get(number) == Some(&0) && weights.iter().any(|&weight| weight > 0);
            let is_wrong = |number: usize| heeds && has_none(number);
            assert!(leases.iter().all(|lease| !(0..3).any(|number| is_wrong(number) && **lease == key(number))));
            // Only those of no weight are left: better one of them than none.
            balancer.pick(&Pick::new().filter(&|endpoint| endpoint.id() != first)).map(drop).unwrap_or_else(|told| {
                assert_eq!(weights.len(), 1, "{policy:?}: {told}");
            });
        }
    }
}

#[test]
fn t59_one_weight_may_be_zero_all_may_be_and_a_ratio_may_be_huge() {
    let cases: [(&[u32], &[usize]); 4] =
        [(&[0, 1], &[0, 1000]), (&[0, 0], &[500, 500]), (&[u32::MAX, 1], &[1000, 0]), (&[0], &[1000])];
    for (weights, expected) in cases {
        let balancer = weighted(Arc::new(WeightedRoundRobin), weights);
        let found = counts(&balancer, weights.len(), 1000);
        let close = found.iter().zip(expected).all(|(&found, &expected)| found.abs_diff(expected) <= 1);
        assert!(close, "{weights:?}: {found:?}");
    }
}

#[test]
fn t59_weights_are_spread_within_a_cycle() {
    let balancer = Balancer::new(WeightedRoundRobin, at_once(), 1, Instant::now());
    set(&balancer, Instant::now(), vec![Spec::new("heavy").weight(50), Spec::new("light").weight(50)]);
    let mut picker = balancer.picker(9);
    let mut run = (String::new(), 0);
    for _ in 0..200 {
        let chosen = picker.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).unwrap();
        run = if run.0 == chosen { (chosen, run.1 + 1) } else { (chosen, 1) };
        assert!(run.1 <= 2, "{} came {} times in a row", run.0, run.1);
    }
}

#[test]
fn t10_a_cursor_at_its_end_wraps_without_a_jump() {
    use tidegate_balance::{Local, Policy, Table, View};

    /// Puts the thread's cursor near its end before each pick of the round robin inside.
    #[derive(Debug)]
    struct Late;
    struct LateTable(Box<dyn Table>, std::sync::atomic::AtomicBool);

    impl Policy for Late {
        fn name(&self) -> &'static str {
            "late"
        }
        fn table(
            &self,
            members: &[tidegate_balance::Member],
            before: Option<&dyn Table>,
        ) -> Result<Box<dyn Table>, Box<dyn std::error::Error + Send + Sync>> {
            Ok(Box::new(LateTable(RoundRobin.table(members, before)?, false.into())))
        }
    }

    impl Table for LateTable {
        fn pick(&self, view: &View<'_>, local: &mut Local) -> Option<usize> {
            if !self.1.swap(true, std::sync::atomic::Ordering::Relaxed) {
                (local.cursor, local.detour) = (usize::MAX, usize::MAX);
            }
            self.0.pick(view, local)
        }
    }

    for count in [3, 7] {
        let balancer = ready(Arc::new(Late), count);
        assert_eq!(counts(&balancer, count, 10 * count), vec![10; count]);
        // A restricted pick has a counter of its own, which overflows.
        let mut picker = balancer.picker(1);
        let all = |_: &tidegate_balance::Endpoint<String>| true;
        let mut last = None;
        for _ in 0..3 * count {
            let id = picker.pick_with(&Pick::new().filter(&all), |endpoint| endpoint.id()).unwrap();
            assert!(count == 1 || last != Some(id), "the same twice in a row");
            last = Some(id);
        }
    }
}

#[test]
fn t11_the_same_set_again_publishes_nothing_and_moves_no_cursor() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 5);
        let (version, publications) = (balancer.version(), balancer.counters().publications);
        let update = set(&balancer, Instant::now(), specs((0..5).rev()));
        assert_eq!((update.added.len(), update.kept, update.removed), (0, 5, 0), "{policy:?}");
        assert_eq!((balancer.version(), balancer.counters().publications), (version, publications), "{policy:?}");
    }
}

#[test]
fn t12_an_update_goes_on_where_the_round_was() {
    for (before, after, next) in [(0..4, 0..6, 2), (0..4, 1..4, 2), (0..6, 3..6, 3), (0..3, 2..9, 2)] {
        for exact in [false, true] {
            let policy: Arc<dyn tidegate_balance::Policy> = if exact { Arc::new(Exact) } else { Arc::new(RoundRobin) };
            let balancer = Balancer::with_policy(policy, at_once(), 1, Instant::now());
            set(&balancer, Instant::now(), specs(before.clone()));
            let mut picker = balancer.picker(1);
            let mut pick = || picker.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).unwrap();
            while pick() != key(1) {}
            set(&balancer, Instant::now(), specs(after.clone()));
            assert_eq!(pick(), key(next), "{before:?} -> {after:?}, exact: {exact}");
        }
    }
}

#[test]
fn t13_threads_that_live_for_one_pick_begin_anywhere() {
    let balancer = ready(Arc::new(RoundRobin), 5);
    let mut found = vec![0; 5];
    for _ in 0..500 {
        let balancer = balancer.clone();
        let chosen = std::thread::spawn(move || pick_key(&balancer)).join().unwrap();
        found[(0..5).find(|&number| key(number) == chosen).unwrap()] += 1;
    }
    // 100 each are expected; a fair draw is below 50 or above 160 once in ten million times.
    assert!(found.iter().all(|picks| (50..160).contains(picks)), "{found:?}");
}

#[test]
fn t14_pick_first_follows_an_update() {
    let balancer = ready(Arc::new(PickFirst::default()), 1);
    assert_eq!(pick_key(&balancer), key(0));
    set(&balancer, Instant::now(), specs(1..3));
    assert_eq!(pick_key(&balancer), key(1));
}

#[test]
fn t15_pick_first_stays_with_its_endpoint_when_the_order_changes() {
    let balancer = ready(Arc::new(PickFirst::default()), 3);
    assert_eq!(pick_key(&balancer), key(0));
    set(&balancer, Instant::now(), specs([3, 2, 1, 0]));
    assert_eq!(pick_key(&balancer), key(0));
    // And with the one it changed to, when the first comes back.
    let now = Instant::now();
    balancer.failed(id_of(&balancer, 0), now, Arc::new(std::io::Error::other("gone")));
    assert_eq!(pick_key(&balancer), key(3));
    balancer.ready(id_of(&balancer, 0), now);
    assert_eq!(pick_key(&balancer), key(3));
}

#[test]
fn t17_shuffling_spreads_many_clients() {
    let mut found = vec![0; 4];
    for seed in 0..1000 {
        let now = Instant::now();
        let balancer = Balancer::new(PickFirst { shuffle: true }, at_once(), seed, now);
        set(&balancer, now, specs(0..4));
        let chosen = pick_key(&balancer);
        found[(0..4).find(|&number| key(number) == chosen).unwrap()] += 1;
    }
    assert!(found.iter().all(|clients| (180..320).contains(clients)), "{found:?}");
}

#[test]
fn t60_about_one_nth_of_the_hashes_moves_when_one_endpoint_comes_or_goes() {
    const HASHES: u64 = 20_000;
    let owners = |balancer: &crate::house::Keys| -> Vec<String> {
        let owner = |number: u64| {
            let pick = Pick::new().hash(hash_of(&number.to_le_bytes()));
            balancer.pick_with(&pick, |endpoint| endpoint.value().clone()).unwrap()
        };
        (0..HASHES).map(owner).collect()
    };
    // A ring is full with 128 of them, and with eight if it is small. From there on, those that make room move as well.
    let small = || RingHash::new(1024);
    let cases = [2, 5, 10, 50, 127].map(|count| (count, RingHash::default(), 1));
    let full = [(128, RingHash::default(), 2), (300, RingHash::default(), 2), (8, small(), 2), (20, small(), 2)];
    for (count, ring, times) in cases.into_iter().chain(full) {
        let balancer = ready(Arc::new(ring), count);
        let before = owners(&balancer);
        set(&balancer, Instant::now(), specs(0..=count));
        let after = owners(&balancer);
        let moved = before.iter().zip(&after).filter(|(one, other)| one != other).count();
        let expected = HASHES as usize / (count + 1);
        let range = expected / 2..expected * 2 * times;
        assert!(range.contains(&moved), "{count}: {moved} moved, {expected} expected");
        assert!(
            times > 1 || before.iter().zip(&after).all(|(one, other)| one == other || *other == key(count)),
            "moved among old ones"
        );
        set(&balancer, Instant::now(), specs(0..count));
        assert_eq!(owners(&balancer), before, "another process, or the same one later, chooses the same");
    }
}

#[test]
fn t60_plain_numbers_are_spread_like_hashes() {
    let balancer = ready(Arc::new(RingHash::default()), 10);
    let mut found = [0; 10];
    for number in 0..10_000 {
        let chosen = balancer.pick_with(&Pick::new().hash(number), |endpoint| endpoint.value().clone()).unwrap();
        found[(0..10).find(|&number| key(number) == chosen).unwrap()] += 1;
    }
    assert!(found.iter().all(|picks| (500..2000).contains(picks)), "{found:?}");
}

#[test]
fn t62_the_chosen_one_is_not_another_after_a_removal_reorders_the_table() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 6);
        for _ in 0..20 {
            let lease = balancer.pick(&Pick::new()).unwrap();
            let chosen = lease.endpoint().key().clone();
            let rest = (0..6).filter(|&number| key(number) != chosen.as_str());
            set(&balancer, Instant::now(), specs(rest));
            assert_eq!(*lease, chosen.as_str(), "{policy:?}");
            drop(lease);
            set(&balancer, Instant::now(), specs(0..6));
        }
    }
}

/// Says that it takes turns, and knows nobody when it is asked.
#[derive(Debug)]
struct Told;

impl Policy for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn table(&self, _: &[Member], _: Option<&dyn Table>) -> Result<Box<dyn Table>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(Self))
    }
}

impl Table for Told {
    fn pick(&self, _: &View<'_>, _: &mut Local) -> Option<usize> {
        None
    }

    fn takes_turns(&self) -> bool {
        true
    }
}

#[test]
fn a_table_that_takes_turns_is_asked_only_by_picks_that_may_not_go_to_anybody() {
    let balancer = ready(Arc::new(Told), 3);
    assert_eq!(counts(&balancer, 3, 30), [10, 10, 10]);
    let nobody = balancer.pick_with(&Pick::new().filter(&|_| true), |_| ());
    assert!(matches!(nobody, Err(PickError::NoMatch { ready: 3 })), "{nobody:?}");
    balancer.set_policy(Arc::new(PickFirst::default()));
    assert_eq!(counts(&balancer, 3, 30), [30, 0, 0]);
}
