//! Unit tests of the channel.

use std::sync::Arc;

use super::*;

const WIDE: PollLimit = PollLimit { records: 10, bytes: 1_000 };

fn record(lane: u32, position: u64) -> Record {
    Record::new(Lane(lane), Epoch(1), Position(position), None, Some(&[0; 10]))
}

fn poll(channel: &SourceChannel, room: PollLimit) -> (Option<SourceEvent>, Vec<u64>) {
    let mut batch = Vec::new();
    let polled = channel.poll(&mut Context::from_waker(Waker::noop()), room, &mut batch);
    let event = match polled {
        Poll::Ready(event) => Some(event.expect("source is running")),
        Poll::Pending => None,
    };
    (event, batch.iter().map(|record| record.position().0).collect())
}

fn opened(lanes: u32) -> Arc<SourceChannel> {
    let channel = Arc::new(SourceChannel::default());
    for lane in 0..lanes {
        channel.open(Lane(lane), Epoch(1));
        assert!(matches!(poll(&channel, WIDE).0, Some(SourceEvent::Assigned { .. })));
    }
    channel
}

#[test]
fn lanes_take_turns_and_keep_order() {
    let channel = opened(2);
    for position in [0, 2] {
        channel.push_records(Lane(0), vec![record(0, position), record(0, position + 1)]);
        channel.push_records(Lane(1), vec![record(1, 100 + position)]);
    }
    assert!(!channel.has_room(Lane(0)));
    let batches: Vec<Vec<u64>> = std::iter::repeat_with(|| poll(&channel, WIDE).1).take(4).collect();
    assert_eq!(batches, [vec![0, 1], vec![100], vec![2, 3], vec![102]]);
    assert_eq!((channel.has_room(Lane(0)), channel.buffered_bytes()), (true, 0));
}

#[test]
fn chunk_is_split_at_the_limit() {
    let channel = opened(1);
    channel.push_records(Lane(0), (0..5).map(|position| record(0, position)).collect());
    assert_eq!(poll(&channel, PollLimit { records: 0, bytes: 0 }), (None, vec![]));
    assert_eq!(poll(&channel, PollLimit { records: 2, bytes: 1_000 }).1, [0, 1]);
    assert_eq!(poll(&channel, PollLimit { records: 10, bytes: 1 }).1, [2]);
    assert_eq!(channel.buffered_bytes(), 20);
    assert_eq!(poll(&channel, WIDE).1, [3, 4]);
}

#[test]
fn gap_follows_its_records_even_at_limit_zero() {
    let channel = opened(1);
    channel.push_records(Lane(0), vec![record(0, 1)]);
    channel.push_gap(Lane(0), Position(7));
    assert_eq!(poll(&channel, PollLimit { records: 0, bytes: 0 }).0, None);
    assert_eq!(poll(&channel, WIDE).1, [1]);
    let passed = SourceEvent::Gap { lane: Lane(0), epoch: Epoch(1), through: Position(7) };
    assert_eq!(poll(&channel, PollLimit { records: 0, bytes: 0 }).0, Some(passed));
}

#[test]
fn paused_records_stay_and_count() {
    let channel = opened(1);
    channel.push_records(Lane(0), vec![record(0, 1)]);
    channel.set_paused(Lane(0), Epoch(1), true);
    assert_eq!((poll(&channel, WIDE).0, channel.buffered_bytes()), (None, 10));
    channel.set_paused(Lane(0), Epoch(0), false);
    assert_eq!(poll(&channel, WIDE).0, None, "resume of an ended epoch");
    channel.set_paused(Lane(0), Epoch(1), false);
    assert_eq!(poll(&channel, WIDE).1, [1]);
}

#[test]
fn closed_lane_delivers_nothing_more() {
    let channel = opened(2);
    channel.push_records(Lane(0), vec![record(0, 1)]);
    channel.push_records(Lane(1), vec![record(1, 1)]);
    let commit = |lane| LaneCommit { lane: Lane(lane), epoch: Epoch(1), through: Position(1) };
    channel.commit(&[commit(0), commit(1)]);
    let gone = vec![(Lane(0), Epoch(1))];
    channel.close_lanes(&gone, SourceEvent::Lost { lanes: gone.clone() });
    assert_eq!(poll(&channel, WIDE).0, Some(SourceEvent::Lost { lanes: gone }));
    assert_eq!(poll(&channel, WIDE), (Some(SourceEvent::Records), vec![1]));
    assert_eq!((poll(&channel, WIDE).0, channel.buffered_bytes()), (None, 0));
    assert_eq!(channel.requests().commits, [commit(1)]);
}

#[test]
fn later_commit_replaces_the_earlier_one() {
    let channel = opened(1);
    let commit = |through| LaneCommit { lane: Lane(0), epoch: Epoch(1), through: Position(through) };
    channel.commit(&[commit(1)]);
    channel.commit(&[commit(2)]);
    assert_eq!(channel.requests().commits, [commit(2)]);
    assert!(channel.requests().commits.is_empty());
}
