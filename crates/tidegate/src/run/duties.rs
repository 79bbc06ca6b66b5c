//! What the control plane does again and again, each a child of `tidegate/control` that is started again should it fail.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate_config::Config;
use tidegate_proxy::plane::{Gateway, Unused};
use tidegate_supervise::{Class, Ctx, Restart};
use tidegate_tasks as tree;
use tidegate_tasks::Duty;

/// How soon a duty hears of another period.
const PERIOD_LOOK_EVERY: Duration = Duration::from_secs(1);

/// How often it is looked whether a database is unused; sooner if it is to be forgotten sooner.
const UNUSED_EVERY: Duration = Duration::from_secs(60);
const UNUSED_EVERY_MIN: Duration = Duration::from_millis(50);

/// How often it is looked whether there are many pools without a connection and a client.
const EMPTY_EVERY: Duration = Duration::from_secs(1);

/// Starts all that the configuration asks for.
pub(super) fn start(gateway: &Arc<Gateway>) {
    let owner = gateway.clone();
    let class = Class::new(tree::kept(Restart::Permanent), move |duty: &Duty, ctx| attend(*duty, owner.clone(), ctx));
    for duty in [Duty::Averages, Duty::Names, Duty::Pools, Duty::Unused, Duty::Empty] {
        // It is refused when the process is ending already.
        let _ = gateway.lifecycle.duties.spawn_kept(duty, &class);
    }
}

async fn attend(duty: Duty, gateway: Arc<Gateway>, ctx: Ctx) {
    match duty {
        Duty::Averages => average(&gateway, &ctx).await,
        Duty::Names => check_names(&gateway, &ctx).await,
        Duty::Pools => close_pools(&gateway, &ctx).await,
        Duty::Unused => forget_unused(&gateway, &ctx).await,
        Duty::Empty => forget_empty(&gateway, &ctx).await,
    }
}

async fn average(gateway: &Gateway, ctx: &Ctx) {
    loop {
        tokio::select! {
            () = ctx.cancelled() => return,
            // What averages are of.
            () = pass(gateway, |config| config.log.stats_period) => sample_once(gateway).await,
        }
    }
}

async fn check_names(gateway: &Gateway, ctx: &Ctx) {
    loop {
        tokio::select! {
            () = ctx.cancelled() => return,
            () = pass(gateway, |config| config.dns.check_period) => {
                gateway.pools.connector.resolver.refresh().await;
                gateway.follow_names();
            }
        }
    }
}

/// Waits for so long, which may be changed meanwhile; for ever while it is 0.
async fn pass(gateway: &Gateway, period: fn(&Config) -> Duration) {
    let begun = Instant::now();
    loop {
        let period = period(&gateway.config.setup().config);
        let left = period.saturating_sub(begun.elapsed());
        if left.is_zero() && !period.is_zero() {
            return;
        }
        let pause = if period.is_zero() { PERIOD_LOOK_EVERY } else { left.min(PERIOD_LOOK_EVERY) };
        tokio::time::sleep(pause).await;
    }
}

async fn forget_unused(gateway: &Arc<Gateway>, ctx: &Ctx) {
    let mut unused = Unused::default();
    loop {
        let limit = gateway.config.setup().config.timeouts.auto_database;
        let pause = if limit.is_zero() { UNUSED_EVERY } else { UNUSED_EVERY.min(limit / 4).max(UNUSED_EVERY_MIN) };
        tokio::select! {
            () = ctx.cancelled() => return,
            () = tokio::time::sleep(pause) => gateway.forget_unused(&mut unused).await,
        }
    }
}

async fn forget_empty(gateway: &Arc<Gateway>, ctx: &Ctx) {
    loop {
        tokio::select! {
            () = ctx.cancelled() => return,
            () = tokio::time::sleep(EMPTY_EVERY) => {
                gateway.clients.failed_logins.sweep(Instant::now());
                gateway.forget_empty().await;
            }
        }
    }
}

/// An idle server has no task that could be told to end: its thread closes it when its pool is closed. That is due when
/// the clients have left, and also if they had to be made to.
async fn close_pools(gateway: &Gateway, ctx: &Ctx) {
    struct AtTheEnd<'a>(&'a Gateway, &'a Ctx);
    impl Drop for AtTheEnd<'_> {
        fn drop(&mut self) {
            // Else it is started again.
            if self.1.is_stopping() {
                self.0.pools.close_all();
            }
        }
    }
    let _at_the_end = AtTheEnd(gateway, ctx);
    ctx.cancelled().await;
}

/// Ends a period, and tells the log of it in PgBouncer's line, which is what log readers know.
async fn sample_once(gateway: &Gateway) {
    gateway.sample().await;
    if !gateway.config.setup().config.log.stats {
        return;
    }
    let now =
        tidegate_proxy::stats::Sample { at: std::time::Instant::now(), totals: tidegate_proxy::stats::Totals::new() };
    let of = gateway.statistics.averages_of_all(&now);
    tracing::info!(
        "stats: {} xacts/s, {} queries/s, {} client parses/s, {} server parses/s, {} binds/s, in {} B/s, out {} B/s, \
         xact {} us, query {} us, wait {} us",
        of.xact_count,
        of.query_count,
        of.client_parse_count,
        of.server_parse_count,
        of.bind_count,
        of.received_bytes,
        of.sent_bytes,
        of.xact_time,
        of.query_time,
        of.wait_time,
    );
}
