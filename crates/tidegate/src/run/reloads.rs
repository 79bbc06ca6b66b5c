//! Reloads, one after another. Files are read on a blocking thread: a list of hundreds of thousands of users takes seconds, while
//! signals and the console still work.

use std::{future::Future, pin::Pin, sync::Arc};

use tokio::sync::mpsc;

use tidegate_proxy::plane::{Gateway, ReloadReply, Workers};

use crate::cli;

/// A notice for the operator, or why the old configuration stays.
type ReloadResult = anyhow::Result<Option<&'static str>>;

/// Requested reloads, and the current one.
pub(super) struct ReloadQueue {
    requests: mpsc::Receiver<ReloadReply>,
    /// Requested by a signal; has no reply.
    by_signal: bool,
    current: Option<CurrentReload>,
}

struct CurrentReload {
    reply: Option<ReloadReply>,
    work: Pin<Box<dyn Future<Output = ReloadResult> + Send>>,
}

impl ReloadQueue {
    pub(super) fn new(requests: mpsc::Receiver<ReloadReply>) -> Self {
        Self { requests, by_signal: false, current: None }
    }

    /// Requests a reload. It starts after the current one, which may have read its files too early.
    pub(super) fn request_by_signal(&mut self) {
        self.by_signal = true;
    }

    /// Whether a signal has requested a reload that has not started.
    pub(super) fn is_requested_by_signal(&self) -> bool {
        self.by_signal
    }

    /// Returns the result of the next reload, and the channel for its reply.
    ///
    /// # Cancel safety
    /// Safe: a running reload continues with the next call.
    pub(super) async fn next(
        &mut self,
        gateway: &Arc<Gateway>,
        workers: &Arc<Workers>,
        source: &cli::RunArgs,
    ) -> (Option<ReloadReply>, ReloadResult) {
        if self.current.is_none() {
            let reply = if std::mem::take(&mut self.by_signal) { None } else { Some(self.next_request().await) };
            self.current =
                Some(CurrentReload { reply, work: Box::pin(reload(gateway.clone(), workers.clone(), source.clone())) });
        }
        let result = match &mut self.current {
            Some(current) => current.work.as_mut().await,
            None => Ok(None),
        };
        (self.current.take().and_then(|ended| ended.reply), result)
    }

    async fn next_request(&mut self) -> ReloadReply {
        match self.requests.recv().await {
            Some(reply) => reply,
            // The gateway is gone, so no request can arrive.
            None => std::future::pending().await,
        }
    }
}

async fn reload(gateway: Arc<Gateway>, workers: Arc<Workers>, source: cli::RunArgs) -> ReloadResult {
    let owner = gateway.clone();
    let done = gateway
        .pools
        .connector
        .resolver
        .offload("the configuration", move || super::reload(&owner, &workers, &source))
        .await;
    done.unwrap_or_else(|| Err(anyhow::anyhow!("the gateway is stopping")))
}
