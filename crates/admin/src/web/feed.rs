//! Tables that pages follow by server-sent events: each is computed once per tick for all its followers.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::{
    Response,
    body::{Bytes, Frame},
    header::{self, HeaderValue},
};
use tidegate_proxy::plane::lock;
use tokio::sync::{Notify, watch};

use super::{Body, FOLLOWERS_MAX, WebConsole, guard::Refusal, history::WebHistory, tables};
use crate::{context::AdminContext, show::MetricsSnapshot};

/// Content type of a stream of events.
pub(super) const EVENT_STREAM: &str = "text/event-stream";
/// Interval of samples and of events.
const TICK: Duration = Duration::from_secs(1);
/// Shortest time between two samples; a page that begins to follow causes one in between.
const TICK_MIN: Duration = Duration::from_millis(200);

/// A table that pages follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    Overview,
    Pools,
    Clients,
    Servers,
    Hosts,
    Journal,
    Streams,
    Shapes,
}

impl Topic {
    const ALL: [(&'static str, Self); 8] = [
        ("overview", Self::Overview),
        ("pools", Self::Pools),
        ("clients", Self::Clients),
        ("servers", Self::Servers),
        ("hosts", Self::Hosts),
        ("journal", Self::Journal),
        ("streams", Self::Streams),
        ("shapes", Self::Shapes),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, topic)| *topic)
    }
}

/// The tables and their followers.
pub(super) struct TableFeed {
    topics: BTreeMap<Topic, watch::Sender<Bytes>>,
    history: Mutex<WebHistory>,
    /// Notified when a page begins to follow a table.
    joined: Notify,
}

impl TableFeed {
    pub(super) fn new() -> Self {
        let topics = Topic::ALL.iter().map(|(_, topic)| (*topic, watch::Sender::new(Bytes::new()))).collect();
        Self { topics, history: Mutex::default(), joined: Notify::new() }
    }

    /// Samples the gateway and sends tables to their followers, forever.
    pub(super) async fn run(web: &Arc<WebConsole>) {
        loop {
            let (begun, owner) = (Instant::now(), web.clone());
            // Thousands of databases take a while; signals and look-ups continue.
            let tick = move || async move { owner.feed.tick(&owner.context).await };
            web.context.gateway.pools.connector.resolver.offload_async("tables of the web console", tick).await;
            tokio::time::sleep(TICK_MIN).await;
            let rest = TICK.saturating_sub(begun.elapsed());
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = web.feed.joined.notified() => {}
            }
        }
    }

    async fn tick(&self, context: &Arc<AdminContext>) {
        let snapshot = MetricsSnapshot::new(context);
        let totals = snapshot.sample().await.totals.clone();
        let hosts = tables::hosts(&snapshot).await;
        lock(&self.history).add(&context.gateway.clients, &context.gateway.pools, &totals, &hosts);
        for (topic, sender) in &self.topics {
            if sender.receiver_count() > 0 {
                let event = tables::event(*topic, &snapshot, &self.history).await;
                sender.send_replace(format!("data: {event}\n\n").into());
            }
        }
    }

    /// The last minutes, for the charts of a page that opens.
    pub(super) fn history(&self) -> serde_json::Value {
        lock(&self.history).points()
    }

    /// Streams a table to a page.
    pub(super) fn follow(&self, web: &Arc<WebConsole>, topic: &str) -> Result<Response<Body>, Refusal> {
        let topic = Topic::named(topic).ok_or(Refusal::NotFound)?;
        let follower = Follower::join(web)?;
        let receiver = self.topics.get(&topic).ok_or(Refusal::NotFound)?.subscribe();
        self.joined.notify_one();
        let events = stream::unfold((receiver, follower), |(mut receiver, follower)| async move {
            // Fails when the gateway stops.
            receiver.changed().await.ok()?;
            let event = receiver.borrow_and_update().clone();
            Some((Ok::<_, Infallible>(Frame::data(event)), (receiver, follower)))
        });
        let mut response = Response::new(StreamBody::new(events).boxed_unsync());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM));
        Ok(response)
    }
}

/// Counts a page that follows a table.
struct Follower(Arc<WebConsole>);

impl Follower {
    fn join(web: &Arc<WebConsole>) -> Result<Self, Refusal> {
        let before = web.followers.fetch_add(1, Ordering::SeqCst);
        let follower = Self(web.clone());
        if before < FOLLOWERS_MAX { Ok(follower) } else { Err(Refusal::Busy) }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.followers.fetch_sub(1, Ordering::SeqCst);
    }
}
