//! Tasks and sockets end with their channel.

use tidegate_balance::RoundRobin;
use tidegate_grpc_channel::Channel;
use tokio::runtime::Handle;

use crate::test_server::{call, drive, servers, target, until};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// BA-3 and BA-4.
#[tokio::test]
async fn five_hundred_channels_leak_nothing() {
    let servers = servers(2).await;
    let target = target(&servers);
    let one = async |number: usize| {
        let (channel, driver) = Channel::builder(&target).policy(RoundRobin).build().unwrap();
        let driver = tokio::spawn(driver.run());
        call(&channel, "/t/Echo").await.unwrap();
        // Three ways to end a channel.
        match number % 3 {
            0 => channel.close(),
            1 => drop(channel),
            _ => driver.abort(),
        }
        let _ = driver.await;
    };
    one(0).await;
    until(|| servers.iter().all(|server| server.open() == 0)).await;
    let alive_tasks = || Handle::current().metrics().num_alive_tasks();
    // Tasks of hyper end shortly after their connection.
    let mut base = alive_tasks();
    for _ in 0..100 {
        tokio::task::yield_now().await;
        base = base.min(alive_tasks());
    }
    let files = descriptors();
    for number in 0..500 {
        one(number).await;
    }
    until(|| servers.iter().all(|server| server.open() == 0)).await;
    until(|| alive_tasks() <= base).await;
    // Other tests of this program open sockets at the same time; a leak would be 500.
    assert!(descriptors() < files + 200, "{} descriptors, {files} before", descriptors());
}

/// BA-33.
#[tokio::test]
async fn static_targets_start_no_resolver() {
    for target in ["ipv4:127.0.0.1:1", "127.0.0.1:1", "unix:/nowhere/socket", "ipv6:[::1]:1"] {
        let (channel, driver) = Channel::builder(target).policy(RoundRobin).build().unwrap();
        // Would call a resolver.
        channel.resolve_now();
        let driver = tokio::spawn(driver.run());
        until(|| channel.balancer().status().len() == 1).await;
        assert_eq!(channel.balancer().counters().policy_failures, 0);
        drop(channel);
        driver.await.unwrap();
    }
}

/// BA-29.
#[tokio::test]
async fn channel_closes_during_a_hanging_lookup() {
    struct Hang;
    impl tidegate_balance::Resolve for Hang {
        fn resolve(&mut self) -> tidegate_balance::ResolveFuture<'_> {
            Box::pin(std::future::pending())
        }
    }
    let driven = drive(Channel::builder("orders").resolver(Box::new(|| Ok(Box::new(Hang)))));
    let channel = driven.channel.clone();
    let waiting = tokio::spawn(async move { call(&channel, "/t/Echo").await });
    until(|| driven.channel.balancer().counters().waiting == 1).await;
    driven.channel.close();
    assert!(waiting.await.unwrap().is_err());
    until(|| driven.driver.is_finished()).await;
}
