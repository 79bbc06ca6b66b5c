//! Reloads, one after the other. Each reads its files on a thread that may wait for them: a list of hundreds of thousands of
//! users takes seconds, in which signals and the console are heard.

use std::{future::Future, pin::Pin, sync::Arc};

use tokio::sync::mpsc;

use tidegate_proxy::plane::{Gateway, ReloadReply};

use crate::cli;

type Outcome = anyhow::Result<()>;

/// Those that are due, and the one under way.
pub(super) struct Reloads {
    requests: mpsc::Receiver<ReloadReply>,
    /// A signal has asked, whom nobody answers.
    by_signal: bool,
    under_way: Option<UnderWay>,
}

struct UnderWay {
    reply: Option<ReloadReply>,
    work: Pin<Box<dyn Future<Output = Outcome> + Send>>,
}

impl Reloads {
    pub(super) fn new(requests: mpsc::Receiver<ReloadReply>) -> Self {
        Self { requests, by_signal: false, under_way: None }
    }

    /// One is due. It begins after the one under way, which may have read its files too early.
    pub(super) fn ask(&mut self) {
        self.by_signal = true;
    }

    /// How the next one went, and who wants to know.
    ///
    /// # Cancel safety
    /// Safe: what is under way goes on with the next call.
    pub(super) async fn next(&mut self, gateway: &Arc<Gateway>, source: &cli::Run) -> (Option<ReloadReply>, Outcome) {
        if self.under_way.is_none() {
            let reply = if std::mem::take(&mut self.by_signal) { None } else { Some(self.request().await) };
            self.under_way = Some(UnderWay { reply, work: Box::pin(reload(gateway.clone(), source.clone())) });
        }
        let outcome = match &mut self.under_way {
            Some(under_way) => under_way.work.as_mut().await,
            None => Ok(()),
        };
        (self.under_way.take().and_then(|ended| ended.reply), outcome)
    }

    async fn request(&mut self) -> ReloadReply {
        match self.requests.recv().await {
            Some(reply) => reply,
            // The gateway is gone, and nobody can ask.
            None => std::future::pending().await,
        }
    }
}

async fn reload(gateway: Arc<Gateway>, source: cli::Run) -> Outcome {
    let owner = gateway.clone();
    let done =
        gateway.pools.connector.resolver.offload("the configuration", move || super::reload(&owner, &source)).await;
    done.unwrap_or_else(|| Err(anyhow::anyhow!("the gateway is stopping")))
}
