//! The tasks of single shapes: their snapshots, and the moves of their rows.
//!
//! A task that panics ends its shape and nothing else: requests that wait for the shape are answered, and clients load it
//! again. The task is not restarted, because a part of its work is in the log already.

use std::future::Future;
use std::sync::Arc;

use tidegate_supervise::{Ctx, Exit, Refused, Scope, Supervisor, Tokio};

use crate::server::ShapeServer;
use crate::shape::{Shape, ShapeId, SnapshotFailure};

/// A task of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ShapeTask {
    /// Takes the snapshot.
    Snapshot(ShapeId),
    /// Finds the rows that moved by the transaction at this position.
    Moves(ShapeId, u64),
}

/// The running tasks, each with a guard that handles its panic.
pub(crate) struct ShapeTasks {
    running: Scope<ShapeTask>,
    /// The parent scope of the tasks: it stops after them.
    guards: Supervisor<Tokio, ShapeTask>,
}

impl ShapeTasks {
    /// No tasks, below `scope`. Tasks run on the current runtime.
    pub(crate) fn new(scope: &Scope) -> Self {
        let guards = scope.child::<ShapeTask>("shape tasks").on(Tokio::current());
        Self { running: guards.scope().child("running"), guards }
    }
}

impl ShapeServer {
    /// Starts a task of a shape. The task ends early when the server stops.
    ///
    /// # Errors
    /// If the server is stopping.
    pub(crate) fn start_task<F>(self: &Arc<Self>, task: ShapeTask, shape: &Arc<Shape>, work: F) -> Result<(), Refused>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let running = self.tasks.running.wrap_as(task, move |ctx: Ctx| async move {
            tokio::select! {
                () = ctx.cancelled() => {}
                () = work => {}
            }
        })?;
        let (server, shape) = (Arc::clone(self), Arc::clone(shape));
        let guard = self.tasks.guards.spawn_as(task, move |ctx: Ctx| async move {
            // Ends soon after a stop.
            if running.await == Err(Exit::Panicked) {
                tokio::select! {
                    () = ctx.cancelled() => {}
                    () = server.end_faulty(&shape, task) => {}
                }
            }
        });
        guard.map(drop)
    }

    /// Ends a shape whose task has panicked. Requests for its snapshot get status 503, so that they come again after a pause;
    /// others get status 409.
    async fn end_faulty(&self, shape: &Arc<Shape>, task: ShapeTask) {
        self.counters.faulted();
        tracing::error!(handle = %shape.handle, ?task, "shape removed: a fault of the program has ended its task");
        match task {
            ShapeTask::Snapshot(_) => {
                let text = "the snapshot has failed because of a fault of the server".to_owned();
                self.fail(shape, SnapshotFailure::Unavailable(text)).await;
            }
            ShapeTask::Moves(..) => self.remove(shape).await,
        }
    }
}
