//! Policies: round robin, weights, pick first, ring hash, and the cursor after updates.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;
use tidegate_balance::{
    Balancer, Candidates, Endpoint, EndpointSpec, ExactRoundRobin, Pick, PickError, PickFirst, PickState, PickTable,
    Picker, Policy, PolicyMember, RingHash, RoundRobin, WeightedRoundRobin, hash_bytes,
};

use crate::fixture::{counts, id_of, key, pick_key, policies, ready, ready_at_start, set, specs};

proptest! {
    /// BA-7.
    #[test]
    fn round_robin_of_one_thread_is_exact(count in 1_usize..40, rounds in 1_usize..20) {
        let policies: [Arc<dyn tidegate_balance::Policy>; 3] =
            [Arc::new(RoundRobin), Arc::new(ExactRoundRobin), Arc::new(WeightedRoundRobin)];
        for policy in policies {
            let balancer = ready(policy, count);
            prop_assert!(counts(&balancer, count, rounds * count).iter().all(|&picks| picks == rounds));
        }
    }

    /// BA-9.
    #[test]
    fn exact_round_robin_differs_by_at_most_one(count in 1_usize..20, threads in 1_usize..5, picks in 0_usize..100) {
        let balancer = ready(Arc::new(ExactRoundRobin), count);
        let mut found = vec![0_usize; count];
        let mut pickers: Vec<_> = (0..threads).map(|seed| Picker::new(&balancer, seed as u64)).collect();
        for turn in 0..picks {
            let id = pickers[turn % threads].pick_with(&Pick::new(), |endpoint| endpoint.id()).unwrap();
            found[(0..count).find(|&number| id_of(&balancer, number) == id).unwrap()] += 1;
        }
        let (min, max) = (found.iter().min().unwrap(), found.iter().max().unwrap());
        prop_assert!(max - min <= 1, "{found:?}");
    }

    /// BA-8.
    #[test]
    fn each_thread_adds_at_most_one_to_the_difference(
        count in 1_usize..12,
        picks in proptest::collection::vec(0_usize..60, 1..6),
    ) {
        let balancer = ready(Arc::new(RoundRobin), count);
        let mut found = vec![0_usize; count];
        for (seed, &picks) in picks.iter().enumerate() {
            let mut picker = Picker::new(&balancer, seed as u64);
            for _ in 0..picks {
                let picked = picker.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).unwrap();
                found[(0..count).find(|&number| key(number) == picked).unwrap()] += 1;
            }
        }
        let (min, max) = (found.iter().min().unwrap(), found.iter().max().unwrap());
        prop_assert!(max - min <= picks.len(), "{found:?}");
    }

    /// BA-59.
    #[test]
    fn weights_are_exact_in_each_cycle(weights in proptest::collection::vec(0_u32..30, 1..12)) {
        let balancer = Balancer::new(WeightedRoundRobin, ready_at_start(), 1, Instant::now());
        let weighted = weights.iter().enumerate().map(|(number, &weight)| EndpointSpec::new(key(number).as_str()).weight(weight));
        set(&balancer, Instant::now(), weighted.collect());
        let all_zero = weights.iter().all(|&weight| weight == 0);
        let expected: Vec<usize> = weights.iter().map(|&weight| if all_zero { 1 } else { weight as usize }).collect();
        let cycle: usize = expected.iter().sum();
        prop_assert_eq!(counts(&balancer, weights.len(), cycle), expected);
    }
}

fn weighted(policy: Arc<dyn Policy>, weights: &[u32]) -> crate::fixture::KeyBalancer {
    let balancer = Balancer::with_policy(policy, ready_at_start(), 1, Instant::now());
    let spec = |(number, &weight): (usize, &u32)| EndpointSpec::new(key(number).as_str()).weight(weight);
    set(&balancer, Instant::now(), weights.iter().enumerate().map(spec).collect());
    balancer
}

/// BA-59.
#[test]
fn weight_of_a_millionth_gets_a_millionth() {
    let balancer = weighted(Arc::new(WeightedRoundRobin), &[1_000_000, 1, 0]);
    assert_eq!(counts(&balancer, 3, 1_000_001), [1_000_000, 1, 0]);
}

/// BA-59.
#[test]
fn every_policy_accepts_zero_and_huge_weights() {
    let any = |_: &Endpoint<String>| true;
    for policy in policies() {
        let uses_weights = !["pick_first", "round_robin", "round_robin_exact", "newest"].contains(&policy.name());
        for weights in [&[0, 0, 0][..], &[1, 0, 0], &[u32::MAX, 1, 0], &[u32::MAX; 3], &[0]] {
            let balancer = weighted(Arc::clone(&policy), weights);
            let first = id_of(&balancer, 0);
            let picks = |number: u64| [Pick::new().hash(number), Pick::new().filter(&any)];
            let leases =
                (0..200).flat_map(picks).map(|pick| balancer.pick(&pick).expect("weights exclude no endpoint"));
            let leases: Vec<_> = leases.collect();
            let has_none = |number: usize| weights.get(number) == Some(&0) && weights.iter().any(|&weight| weight > 0);
            let is_wrong = |number: usize| uses_weights && has_none(number);
            assert!(leases.iter().all(|lease| !(0..3).any(|number| is_wrong(number) && **lease == key(number))));
            // Only endpoints of weight zero are allowed.
            balancer.pick(&Pick::new().filter(&|endpoint| endpoint.id() != first)).map(drop).unwrap_or_else(|error| {
                assert_eq!(weights.len(), 1, "{policy:?}: {error}");
            });
        }
    }
}

/// BA-59.
#[test]
fn weighted_round_robin_accepts_extreme_weights() {
    let cases: [(&[u32], &[usize]); 4] =
        [(&[0, 1], &[0, 1000]), (&[0, 0], &[500, 500]), (&[u32::MAX, 1], &[1000, 0]), (&[0], &[1000])];
    for (weights, expected) in cases {
        let balancer = weighted(Arc::new(WeightedRoundRobin), weights);
        let found = counts(&balancer, weights.len(), 1000);
        let close = found.iter().zip(expected).all(|(&found, &expected)| found.abs_diff(expected) <= 1);
        assert!(close, "{weights:?}: {found:?}");
    }
}

/// BA-59.
#[test]
fn weights_are_spread_within_a_cycle() {
    let balancer = Balancer::new(WeightedRoundRobin, ready_at_start(), 1, Instant::now());
    set(&balancer, Instant::now(), vec![EndpointSpec::new("heavy").weight(50), EndpointSpec::new("light").weight(50)]);
    let mut picker = Picker::new(&balancer, 9);
    let mut run = (String::new(), 0);
    for _ in 0..200 {
        let picked = picker.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).unwrap();
        run = if run.0 == picked { (picked, run.1 + 1) } else { (picked, 1) };
        assert!(run.1 <= 2, "{} was picked {} times in a row", run.0, run.1);
    }
}

/// BA-10.
#[test]
fn cursor_overflow_wraps_without_a_jump() {
    use tidegate_balance::{Candidates, PickState, PickTable, Policy};

    /// A round robin whose first pick starts with the cursor at its maximum.
    #[derive(Debug)]
    struct AtMaximum;
    struct AtMaximumTable(Box<dyn PickTable>, std::sync::atomic::AtomicBool);

    impl Policy for AtMaximum {
        fn name(&self) -> &'static str {
            "at_maximum"
        }
        fn table(
            &self,
            members: &[tidegate_balance::PolicyMember],
            previous: Option<&dyn PickTable>,
        ) -> Result<Box<dyn PickTable>, Box<dyn std::error::Error + Send + Sync>> {
            Ok(Box::new(AtMaximumTable(RoundRobin.table(members, previous)?, false.into())))
        }
    }

    impl PickTable for AtMaximumTable {
        fn pick(&self, candidates: &Candidates<'_>, state: &mut PickState) -> Option<usize> {
            if !self.1.swap(true, std::sync::atomic::Ordering::Relaxed) {
                (state.cursor, state.restricted_cursor) = (usize::MAX, usize::MAX);
            }
            self.0.pick(candidates, state)
        }
    }

    for count in [3, 7] {
        let balancer = ready(Arc::new(AtMaximum), count);
        assert_eq!(counts(&balancer, count, 10 * count), vec![10; count]);
        // A restricted pick has a cursor of its own, which overflows.
        let mut picker = Picker::new(&balancer, 1);
        let all = |_: &tidegate_balance::Endpoint<String>| true;
        let mut last = None;
        for _ in 0..3 * count {
            let id = picker.pick_with(&Pick::new().filter(&all), |endpoint| endpoint.id()).unwrap();
            assert!(count == 1 || last != Some(id), "the same endpoint twice in a row");
            last = Some(id);
        }
    }
}

/// BA-11.
#[test]
fn unchanged_set_publishes_nothing() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 5);
        let (version, publications) = (balancer.version(), balancer.counters().publications);
        let update = set(&balancer, Instant::now(), specs((0..5).rev()));
        assert_eq!((update.added.len(), update.kept, update.removed), (0, 5, 0), "{policy:?}");
        assert_eq!((balancer.version(), balancer.counters().publications), (version, publications), "{policy:?}");
    }
}

/// BA-12.
#[test]
fn update_continues_the_round() {
    for (before, after, next) in [(0..4, 0..6, 2), (0..4, 1..4, 2), (0..6, 3..6, 3), (0..3, 2..9, 2)] {
        for exact in [false, true] {
            let policy: Arc<dyn tidegate_balance::Policy> =
                if exact { Arc::new(ExactRoundRobin) } else { Arc::new(RoundRobin) };
            let balancer = Balancer::with_policy(policy, ready_at_start(), 1, Instant::now());
            set(&balancer, Instant::now(), specs(before.clone()));
            let mut picker = Picker::new(&balancer, 1);
            let mut pick = || picker.pick_with(&Pick::new(), |endpoint| endpoint.value().clone()).unwrap();
            while pick() != key(1) {}
            set(&balancer, Instant::now(), specs(after.clone()));
            assert_eq!(pick(), key(next), "{before:?} -> {after:?}, exact: {exact}");
        }
    }
}

/// BA-13.
#[test]
fn short_lived_threads_start_at_random() {
    let balancer = ready(Arc::new(RoundRobin), 5);
    let mut found = vec![0; 5];
    for _ in 0..500 {
        let balancer = balancer.clone();
        let picked = std::thread::spawn(move || pick_key(&balancer)).join().unwrap();
        found[(0..5).find(|&number| key(number) == picked).unwrap()] += 1;
    }
    // Expected: 100 each. A fair draw is below 50 or above 160 once in ten million times.
    assert!(found.iter().all(|picks| (50..160).contains(picks)), "{found:?}");
}

/// BA-14.
#[test]
fn pick_first_follows_an_update() {
    let balancer = ready(Arc::new(PickFirst::default()), 1);
    assert_eq!(pick_key(&balancer), key(0));
    set(&balancer, Instant::now(), specs(1..3));
    assert_eq!(pick_key(&balancer), key(1));
}

/// BA-15.
#[test]
fn pick_first_keeps_its_endpoint_on_reorder() {
    let balancer = ready(Arc::new(PickFirst::default()), 3);
    assert_eq!(pick_key(&balancer), key(0));
    set(&balancer, Instant::now(), specs([3, 2, 1, 0]));
    assert_eq!(pick_key(&balancer), key(0));
    // The policy keeps the endpoint that it changed to when the first one is ready again.
    let now = Instant::now();
    balancer.mark_failed(id_of(&balancer, 0), now, Arc::new(std::io::Error::other("gone")));
    assert_eq!(pick_key(&balancer), key(3));
    balancer.mark_ready(id_of(&balancer, 0), now);
    assert_eq!(pick_key(&balancer), key(3));
}

/// BA-17.
#[test]
fn shuffling_spreads_clients() {
    let mut found = vec![0; 4];
    for seed in 0..1000 {
        let now = Instant::now();
        let balancer = Balancer::new(PickFirst { shuffle: true }, ready_at_start(), seed, now);
        set(&balancer, now, specs(0..4));
        let picked = pick_key(&balancer);
        found[(0..4).find(|&number| key(number) == picked).unwrap()] += 1;
    }
    assert!(found.iter().all(|clients| (180..320).contains(clients)), "{found:?}");
}

/// BA-60.
#[test]
fn ring_hash_moves_one_nth_of_the_hashes() {
    const HASHES: u64 = 20_000;
    let owners = |balancer: &crate::fixture::KeyBalancer| -> Vec<String> {
        let owner = |number: u64| {
            let pick = Pick::new().hash(hash_bytes(&number.to_le_bytes()));
            balancer.pick_with(&pick, |endpoint| endpoint.value().clone()).unwrap()
        };
        (0..HASHES).map(owner).collect()
    };
    // A ring is full with 128 endpoints, a small one with eight. A full ring also moves hashes between old endpoints.
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
            "moved between old endpoints"
        );
        set(&balancer, Instant::now(), specs(0..count));
        assert_eq!(owners(&balancer), before, "every process picks the same owner");
    }
}

/// BA-60.
#[test]
fn ring_hash_spreads_plain_numbers() {
    let balancer = ready(Arc::new(RingHash::default()), 10);
    let mut found = [0; 10];
    for number in 0..10_000 {
        let picked = balancer.pick_with(&Pick::new().hash(number), |endpoint| endpoint.value().clone()).unwrap();
        found[(0..10).find(|&number| key(number) == picked).unwrap()] += 1;
    }
    assert!(found.iter().all(|picks| (500..2000).contains(picks)), "{found:?}");
}

/// BA-62.
#[test]
fn lease_keeps_its_endpoint_after_a_removal() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 6);
        for _ in 0..20 {
            let lease = balancer.pick(&Pick::new()).unwrap();
            let picked = lease.endpoint().key().clone();
            let rest = (0..6).filter(|&number| key(number) != picked.as_str());
            set(&balancer, Instant::now(), specs(rest));
            assert_eq!(*lease, picked.as_str(), "{policy:?}");
            drop(lease);
            set(&balancer, Instant::now(), specs(0..6));
        }
    }
}

/// A table that claims to be round robin and picks no endpoint itself.
#[derive(Debug)]
struct OnlyInTurn;

impl Policy for OnlyInTurn {
    fn name(&self) -> &'static str {
        "only_in_turn"
    }

    fn table(
        &self,
        _: &[PolicyMember],
        _: Option<&dyn PickTable>,
    ) -> Result<Box<dyn PickTable>, Box<dyn Error + Send + Sync>> {
        Ok(Box::new(Self))
    }
}

impl PickTable for OnlyInTurn {
    fn pick(&self, _: &Candidates<'_>, _: &mut PickState) -> Option<usize> {
        None
    }

    fn is_round_robin(&self) -> bool {
        true
    }
}

#[test]
fn round_robin_table_serves_only_restricted_picks() {
    let balancer = ready(Arc::new(OnlyInTurn), 3);
    assert_eq!(counts(&balancer, 3, 30), [10, 10, 10]);
    let none = balancer.pick_with(&Pick::new().filter(&|_| true), |_| ());
    assert!(matches!(none, Err(PickError::NoMatch { ready: 3 })), "{none:?}");
    balancer.set_policy(Arc::new(PickFirst::default()));
    assert_eq!(counts(&balancer, 3, 30), [30, 0, 0]);
}
