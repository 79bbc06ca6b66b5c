//! The exporter of spans, a task of the control plane.

use std::{sync::Arc, time::Duration};

use tidegate_config::TracesConfig;
use tidegate_supervise::{ChildClass, Ctx, Restart, Scope, Supervisor, Tokio};
use tidegate_tasks as tasks;
use tidegate_traces::TraceExporter;

/// Limit for sending the last spans when the process ends.
pub(super) const FLUSH_LIMIT: Duration = Duration::from_secs(3);

/// The exporter, if `[traces]` has an endpoint.
pub(super) fn exporter(config: &TracesConfig) -> anyhow::Result<Option<Arc<TraceExporter>>> {
    if !config.is_on() {
        return Ok(None);
    }
    Ok(Some(Arc::new(TraceExporter::new(config)?)))
}

/// Starts to export, until the scope is stopped.
pub(super) fn start(root: &Scope, exporter: Option<&Arc<TraceExporter>>) {
    let Some(exporter) = exporter.cloned() else { return };
    let scope: Supervisor<Tokio, &'static str> = tasks::observed_scope(root, "traces").build().on(Tokio::current());
    let class = ChildClass::new(tasks::unlimited_restarts(Restart::Permanent), move |_: &&'static str, ctx: Ctx| {
        let exporter = exporter.clone();
        async move {
            tokio::select! {
                () = ctx.cancelled() => {}
                () = exporter.run() => {}
            }
        }
    });
    // Rejected while the process is stopping.
    let _ = scope.spawn_kept("exporter", &class);
}
