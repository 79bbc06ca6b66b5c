//! What was begun ends: tasks, sockets, memory of balancers.

use tidegate_balance::{Channel, RoundRobin};
use tokio::runtime::Handle;

use crate::backend::{backends, call, drive, target, until};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

#[tokio::test]
async fn t03_t04_five_hundred_channels_leave_nothing_behind() {
    let backends = backends(2).await;
    let target = target(&backends);
    let one = async |number: usize| {
        let (channel, driver) = Channel::builder(&target).policy(RoundRobin).build().unwrap();
        let driving = tokio::spawn(driver.run());
        call(&channel, "/t/Echo").await.unwrap();
        // Three ways to end.
        match number % 3 {
            0 => channel.close(),
            1 => drop(channel),
            _ => driving.abort(),
        }
        let _ = driving.await;
    };
    one(0).await;
    until(|| backends.iter().all(|backend| backend.open() == 0)).await;
    let settled = || Handle::current().metrics().num_alive_tasks();
    // Tasks of hyper end a moment after their connection.
    let mut base = settled();
    for _ in 0..100 {
        tokio::task::yield_now().await;
        base = base.min(settled());
    }
    let files = descriptors();
    for number in 0..500 {
        one(number).await;
    }
    until(|| backends.iter().all(|backend| backend.open() == 0)).await;
    until(|| settled() <= base).await;
    // Other tests of this program open sockets at the same time; a leak would be 500 of them.
    assert!(descriptors() < files + 200, "{} descriptors, {files} before", descriptors());
}

#[tokio::test]
async fn t33_targets_that_need_no_resolver_start_none() {
    for target in ["ipv4:127.0.0.1:1", "127.0.0.1:1", "unix:/nowhere/socket", "ipv6:[::1]:1"] {
        let (channel, driver) = Channel::builder(target).policy(RoundRobin).build().unwrap();
        // A resolver would be asked by this; nothing listens.
        channel.resolve_now();
        let driving = tokio::spawn(driver.run());
        until(|| channel.balancer().status().len() == 1).await;
        assert_eq!(channel.balancer().counters().policy_failures, 0);
        drop(channel);
        driving.await.unwrap();
    }
}

#[tokio::test]
async fn t29_a_channel_whose_look_up_hangs_closes_at_once() {
    struct Hang;
    impl tidegate_balance::Resolve for Hang {
        fn resolve(&mut self) -> tidegate_balance::Resolving<'_> {
            Box::pin(std::future::pending())
        }
    }
    let driven = drive(Channel::builder("orders").resolver(Box::new(|| Ok(Box::new(Hang)))));
    let channel = driven.channel.clone();
    let waiting = tokio::spawn(async move { call(&channel, "/t/Echo").await });
    until(|| driven.channel.balancer().counters().waiting == 1).await;
    driven.channel.close();
    assert!(waiting.await.unwrap().is_err());
    until(|| driven.driving.is_finished()).await;
}
