//! Periodic tasks of the control plane, children of `tidegate/control`. A failed task is restarted.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tidegate_config::Config;
use tidegate_proxy::plane::{self, Configuration, Gateway, Pools, Statistics, Unused, Workers};
use tidegate_supervise::{ChildClass, Ctx, Restart};
use tidegate_tasks as tasks;
use tidegate_tasks::ControlTask;

/// Interval at which a changed period is noticed.
const PERIOD_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Interval of checks for unused databases; shorter if the limit is shorter.
const UNUSED_EVERY: Duration = Duration::from_secs(60);
const UNUSED_EVERY_MIN: Duration = Duration::from_millis(50);

/// Interval of checks for many empty pools.
const EMPTY_EVERY: Duration = Duration::from_secs(1);

/// Starts all tasks.
pub(super) fn start(gateway: &Arc<Gateway>, workers: &Arc<Workers>) {
    let (owner, workers) = (gateway.clone(), workers.clone());
    let class = ChildClass::new(tasks::unlimited_restarts(Restart::Permanent), move |task: &ControlTask, ctx| {
        run_task(*task, owner.clone(), workers.clone(), ctx)
    });
    for task in [ControlTask::Averages, ControlTask::Names, ControlTask::Pools, ControlTask::Unused, ControlTask::Empty]
    {
        // Rejected while the process is stopping.
        let _ = gateway.lifecycle.control_tasks.spawn_kept(task, &class);
    }
}

async fn run_task(task: ControlTask, gateway: Arc<Gateway>, workers: Arc<Workers>, ctx: Ctx) {
    match task {
        ControlTask::Averages => average(&gateway.config, &gateway.statistics, &workers, &ctx).await,
        ControlTask::Names => check_names(&gateway, &ctx).await,
        ControlTask::Pools => close_pools(&gateway.pools, &ctx).await,
        ControlTask::Unused => forget_unused(&gateway.config, &gateway.pools, &workers, &ctx).await,
        ControlTask::Empty => forget_empty(&gateway, &workers, &ctx).await,
    }
}

async fn average(config: &Configuration, statistics: &Statistics, workers: &Workers, ctx: &Ctx) {
    loop {
        tokio::select! {
            () = ctx.cancelled() => return,
            // The period of averages.
            () = wait_period(config, |config| config.log.stats_period) => {
                workers.sample(statistics).await;
                if config.setup().config.log.stats {
                    log_averages(statistics);
                }
            }
        }
    }
}

async fn check_names(gateway: &Gateway, ctx: &Ctx) {
    loop {
        tokio::select! {
            () = ctx.cancelled() => return,
            () = wait_period(&gateway.config, |config| config.dns.check_period) => {
                gateway.pools.connector.resolver.refresh().await;
                gateway.follow_names();
            }
        }
    }
}

/// Waits for a period, which may change meanwhile; forever while it is 0.
async fn wait_period(config: &Configuration, period: fn(&Config) -> Duration) {
    let begun = Instant::now();
    loop {
        let period = period(&config.setup().config);
        let left = period.saturating_sub(begun.elapsed());
        if left.is_zero() && !period.is_zero() {
            return;
        }
        let pause = if period.is_zero() { PERIOD_LOOK_EVERY } else { left.min(PERIOD_LOOK_EVERY) };
        tokio::time::sleep(pause).await;
    }
}

async fn forget_unused(config: &Configuration, pools: &Pools, workers: &Workers, ctx: &Ctx) {
    let mut unused = Unused::default();
    loop {
        let limit = config.setup().config.timeouts.auto_database;
        let pause = if limit.is_zero() { UNUSED_EVERY } else { UNUSED_EVERY.min(limit / 4).max(UNUSED_EVERY_MIN) };
        tokio::select! {
            () = ctx.cancelled() => return,
            () = tokio::time::sleep(pause) => plane::forget_unused(config, pools, workers, &mut unused).await,
        }
    }
}

async fn forget_empty(gateway: &Gateway, workers: &Workers, ctx: &Ctx) {
    loop {
        tokio::select! {
            () = ctx.cancelled() => return,
            () = tokio::time::sleep(EMPTY_EVERY) => {
                gateway.clients.failed_logins.sweep(Instant::now());
                plane::forget_empty(&gateway.config, &gateway.pools, workers).await;
            }
        }
    }
}

/// Closes the pools after the clients have ended, whether regularly or by force. Idle servers have no task of their own; their
/// thread closes them with the pool.
async fn close_pools(pools: &Pools, ctx: &Ctx) {
    struct CloseOnStop<'a>(&'a Pools, &'a Ctx);
    impl Drop for CloseOnStop<'_> {
        fn drop(&mut self) {
            // Otherwise the task is restarted.
            if self.1.is_stopping() {
                self.0.close_all();
            }
        }
    }
    let _close_on_stop = CloseOnStop(pools, ctx);
    ctx.cancelled().await;
}

/// Logs the averages of a period in PgBouncer's format, for existing log parsers.
fn log_averages(statistics: &Statistics) {
    let now = tidegate_stats::Sample { at: std::time::Instant::now(), totals: tidegate_stats::Totals::new() };
    let of = statistics.averages_of_all(&now);
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
