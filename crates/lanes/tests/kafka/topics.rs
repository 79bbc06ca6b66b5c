//! Topics by a pattern.

use std::time::Duration;

use crate::audit::Audit;
use crate::member::Member;
use crate::world::{World, settings, until};

/// Each commit is a record of `__consumer_offsets`, which would be committed, and so on for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_means_no_topic_of_kafkas_own() {
    let world = World::new("all", 1);
    world.fill(0..10, 10);
    // Of the shared broker's topics, this one and Kafka's own.
    let pattern = format!("^({}|__.*)$", world.topic);
    let source = settings(&world.broker.bootstrap(), &world.group).topic(&pattern).build().unwrap();
    let audit = Audit::new();
    let member = Member::audited(source, 0, &audit, Duration::ZERO);
    until("all is committed", || world.committed(1) == [Some(10)]).await;
    assert_eq!((member.lanes(), audit.count()), (vec![format!("{}/0", world.topic)], 10));
    member.stop().await;
}
