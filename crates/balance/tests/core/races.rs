//! Picks race changes of the set.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use tidegate_balance::{Balancer, BalancerSettings, EndpointSpec, Pick, PickError, Picker, RoundRobin};

use crate::fixture::{KeyBalancer, key, policies, ready, ready_at_start, set, specs};

fn seed() -> u64 {
    let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("TIDEGATE_SEED={seed}");
    seed
}

/// BA-1.
#[test]
fn picks_racing_close_succeed_or_return_closed() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 3);
        let picks = |balancer: KeyBalancer| {
            move || {
                for _ in 0..100 {
                    match balancer.pick(&Pick::new()) {
                        Ok(_) | Err(PickError::Closed) => (),
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        };
        let picking: Vec<_> = (0..50).map(|_| thread::spawn(picks(balancer.clone()))).collect();
        balancer.close();
        picking.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(balancer.take_departed().iter().all(|gone| gone.load().in_flight() == 0), "{policy:?}");
    }
}

/// BA-2.
#[test]
fn picks_from_a_shrinking_set_never_fail() {
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 8);
        let picking: Vec<_> = (0..30)
            .map(|_| {
                let balancer = balancer.clone();
                thread::spawn(move || (0..200).for_each(|_| balancer.pick(&Pick::new()).map(drop).unwrap()))
            })
            .collect();
        for left in (2..8).rev() {
            set(&balancer, Instant::now(), specs(0..left));
        }
        picking.into_iter().for_each(|thread| thread.join().unwrap());
        for _ in 0..50 {
            let lease = balancer.pick(&Pick::new()).unwrap();
            assert!([key(0), key(1)].contains(&lease), "{policy:?}");
        }
    }
}

/// BA-5.
#[test]
fn pick_sees_one_snapshot_and_versions_grow() {
    let balancer: Balancer<u64> = Balancer::new(RoundRobin, ready_at_start(), 1, Instant::now());
    // Generation g has g % 5 + 1 endpoints with the value g, none of them in generation g - 1.
    let replace = |generation: u64| {
        let names = (0..generation % 5 + 1).map(|number| EndpointSpec::new(format!("{generation}-{number}").as_str()));
        balancer.update(Instant::now(), names, |_, _| generation);
        balancer.take_departed().iter().for_each(|endpoint| _ = endpoint.abandon_drain());
    };
    replace(0);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..3 {
            let (mut picker, stop) = (Picker::new(&balancer, seed), &stop);
            scope.spawn(move || {
                let (mut newest, mut version) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let generation = picker.pick_with(&Pick::new(), |endpoint| *endpoint.value()).unwrap();
                    assert!(generation >= newest, "generation {generation} after {newest}");
                    let now = picker.balancer().version();
                    assert!(now >= version);
                    (newest, version) = (generation, now);
                }
            });
        }
        (1..3000).for_each(replace);
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(balancer.status().iter().filter(|status| !status.leaving).count(), 5);
}

/// BA-6 and BA-45.
#[test]
fn picks_race_random_changes() {
    let mut random = fastrand::Rng::with_seed(seed());
    for policy in policies() {
        let balancer = ready(Arc::clone(&policy), 4);
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                let (balancer, stop) = (balancer.clone(), &stop);
                scope.spawn(move || {
                    let mut tried = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        match balancer.pick(&Pick::new().tried(&tried)) {
                            Ok(lease) => tried.push(lease.endpoint().id()),
                            Err(PickError::Empty | PickError::NotReady { .. }) => thread::yield_now(),
                            Err(other) => panic!("{other}"),
                        }
                        tried.truncate(3);
                    }
                });
            }
            for _ in 0..500 {
                change(&balancer, &mut random);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(balancer.status().iter().all(|status| status.in_flight == 0), "{policy:?}");
    }
}

/// A random change.
fn change(balancer: &KeyBalancer, random: &mut fastrand::Rng) {
    let now = Instant::now();
    let endpoints = balancer.endpoints();
    match (random.u8(..6), random.choice(&endpoints)) {
        (0, _) => drop(set(balancer, now, specs(0..random.usize(..6)))),
        (1, Some(endpoint)) => drop(balancer.mark_failed(endpoint.id(), now, Arc::new(std::io::Error::other("gone")))),
        (2, Some(endpoint)) => balancer.mark_ready(endpoint.id(), now),
        (3, _) => balancer.set_policy(random.choice(policies()).expect("there are policies")),
        (4, Some(endpoint)) => balancer.set_weight(endpoint.key(), random.u32(..4)),
        _ => balancer.take_departed().iter().for_each(|endpoint| _ = endpoint.abandon_drain()),
    }
}

/// BA-3.
#[test]
fn balancers_leave_no_value_on_idle_threads() {
    let value = Arc::new(());
    let (send, receive) = std::sync::mpsc::channel::<Option<Balancer<Arc<()>>>>();
    let (done, wait) = std::sync::mpsc::channel();
    let idle = thread::spawn(move || {
        while let Ok(Some(balancer)) = receive.recv() {
            balancer.pick(&Pick::new()).map(drop).unwrap();
            drop(balancer);
            done.send(()).unwrap();
        }
    });
    for _ in 0..500 {
        let now = Instant::now();
        let balancer = Balancer::new(RoundRobin, ready_at_start(), 1, now);
        balancer.update(now, specs(0..3), |_, _| Arc::clone(&value));
        balancer.pick(&Pick::new()).map(drop).unwrap();
        send.send(Some(balancer.clone())).unwrap();
        wait.recv().unwrap();
        balancer.close();
        drop(balancer);
    }
    // An idle thread keeps at most as many snapshots as balancers that were alive at the same time.
    assert!(Arc::strong_count(&value) <= 1 + 3 * 64, "{} values are left", Arc::strong_count(&value));
    send.send(None).unwrap();
    idle.join().unwrap();
    assert_eq!(Arc::strong_count(&value), 1);
}

#[test]
fn pick_inside_a_pick_works() {
    let balancer = ready(Arc::new(RoundRobin), 3);
    let inner = balancer.pick_with(&Pick::new(), |_| balancer.pick_with(&Pick::new(), |endpoint| endpoint.id()));
    inner.unwrap().unwrap();
}

#[test]
fn pick_in_a_thread_local_destructor_works() {
    struct PicksInDrop(KeyBalancer);
    impl Drop for PicksInDrop {
        fn drop(&mut self) {
            self.0.pick(&Pick::new()).map(drop).unwrap();
        }
    }
    thread_local!(static LAST: std::cell::RefCell<Option<PicksInDrop>> = const { std::cell::RefCell::new(None) });
    let balancer = ready(Arc::new(RoundRobin), 3);
    thread::spawn(move || {
        // Initialised first, it is destroyed last: after the snapshot copies of this thread.
        LAST.with(|last| *last.borrow_mut() = Some(PicksInDrop(balancer.clone())));
        balancer.pick(&Pick::new()).map(drop).unwrap();
    })
    .join()
    .unwrap();
}

#[test]
fn default_settings_work() {
    let balancer: KeyBalancer = Balancer::new(RoundRobin, BalancerSettings::default(), 1, Instant::now());
    assert_eq!(balancer.tick(Instant::now()), None);
}
