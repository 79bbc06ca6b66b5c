//! Cancel requests of clients, which arrive on their own connections.

use std::{convert::Infallible, io, rc::Rc, sync::Arc};

use tidegate_link::Link;
use tidegate_supervise::Ctx;
use tidegate_wire::startup;
use tokio::sync::mpsc;

use crate::plane::{
    CancelAsker, ClientInfo, ClientState, Gateway, PeerQueue, Signal, Worker, Workers, peer_key, place_of, within,
};

/// A cancel request. The sender gets no reply, whatever the outcome.
pub(super) struct CancelRequest {
    pub(super) worker: Rc<Worker>,
    pub(super) link: Link,
    pub(super) pid: u32,
    pub(super) key: Box<[u8]>,
}

impl CancelRequest {
    /// Delivers the request, and closes the connection once the server has processed it.
    pub(super) async fn serve(mut self, ctx: &Ctx) {
        let limit = self.worker.gateway.config.setup().config.timeouts.login;
        let delivery = within(&self.worker.reactor, limit, act(&self.worker, self.pid, &self.key));
        let _ = ctx.run_until_cancelled(delivery).await;
        self.link.shutdown();
    }
}

/// Executes a cancel request if its key matches; the sender does not learn the result. Returns when the server, or the peer
/// that owns the client, has processed it: as in Postgres, later queries of the client are not cancelled.
async fn act(worker: &Rc<Worker>, pid: u32, key: &[u8]) {
    let own = worker.gateway.peers.own_id();
    let peer = peer_key::peer_of(pid);
    if own != 0 && peer != own {
        return pass_on(worker, peer, pid, key).await;
    }
    cancel_client(&worker.gateway, &worker.workers, pid, key).await;
}

/// Cancels the query of the client with this key, here or in the process that this one has replaced. Returns when the server has
/// processed the request.
///
/// # Cancel safety
/// Safe: a request that was found continues.
pub async fn cancel_client(gateway: &Gateway, workers: &Workers, pid: u32, key: &[u8]) {
    let own = gateway.peers.own_id();
    let (asker, mut over) = mpsc::channel(1);
    let index = place_of(pid).and_then(|(thread, slot)| {
        let index = gateway.moves.index_of(thread, workers.count())?;
        (own == 0).then_some((index, slot))
    });
    let is_found = match index {
        Some((index, slot)) => {
            let (key, asker): (Box<[u8]>, _) = (key.into(), asker.clone());
            let Some(mailbox) = workers.all().get(index) else { return };
            let asked = mailbox.ask(move |owner| cancel(owner, owner.registry.find(slot, &key), asker));
            asked.await == Some(true)
        }
        None => false,
    };
    // Servers on two hosts may share a process id, and a moved client keeps its own: the key identifies the client.
    let may_be_elsewhere = index.is_none() || gateway.moves.arrived() > 0;
    let is_found = is_found
        || may_be_elsewhere && {
            let key: Arc<[u8]> =
                if own == 0 { key.into() } else { peer_key::with_hops(key, peer_key::HOPS_MAX).into() };
            let look = |owner_asker: CancelAsker| {
                let key = key.clone();
                move |owner: &Rc<Worker>| {
                    cancel(owner, owner.registry.find_by_process_id(pid, &key), owner_asker.clone())
                }
            };
            workers.ask_all(look(asker.clone())).await.contains(&true)
        };
    if is_found {
        drop(asker);
    } else {
        gateway.moves.forward_cancel(pid, key, asker).await;
    }
    // The channel carries no messages; it closes when the last sender is dropped.
    let _: Option<Infallible> = over.recv().await;
}

/// Cancels the query of a client. Returns whether there is a client.
fn cancel(owner: &Rc<Worker>, client_info: Option<Rc<ClientInfo>>, asker: CancelAsker) -> bool {
    let Some(client_info) = client_info else { return false };
    tracing::debug!(client = client_info.id, "cancel request");
    match client_info.state.get() {
        ClientState::Waiting(_) => client_info.signal(Signal::CancelWait),
        ClientState::Active => {
            if let (Some(server_handle), Some(pool)) =
                (client_info.server_handle(), owner.gateway.pools.get(&client_info.key()))
            {
                owner.cancel(server_handle.identity.clone(), server_handle.gate.begin(), pool, Some(asker));
            }
        }
        // The query has ended already.
        ClientState::Idle | ClientState::Replicating(_) => {}
    }
    true
}

/// Forwards a request to the peer that owns the client.
async fn pass_on(worker: &Rc<Worker>, peer: u16, pid: u32, key: &[u8]) {
    let hops = peer_key::hops_of(key);
    let Some((host, line)) =
        worker.gateway.peers.find(peer, &worker.gateway.config.setup().config).filter(|_| hops > 0)
    else {
        return tracing::debug!(peer, hops, "a cancel request for no peer that is known");
    };
    let mut request = Vec::new();
    startup::cancel_request(pid, &peer_key::with_hops(key, hops - 1), &mut request);
    let addresses = worker.gateway.pools.connector.addresses(&host);
    let delivery = async {
        let mut failed = None;
        for address in addresses.await.map_err(io::Error::other)? {
            match deliver(worker, &line, address, &request).await {
                Ok(()) => return Ok(()),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| io::Error::other("it has no address")))
    };
    let limit = worker.gateway.config.setup().config.timeouts.cancel;
    match within(&worker.reactor, limit, delivery).await {
        Some(Ok(())) => tracing::debug!(peer, "cancel request passed on"),
        Some(Err(error)) => tracing::warn!(peer, %host, %error, "cancel request not passed on"),
        None => tracing::warn!(peer, %host, "cancel request not passed on in time"),
    }
}

async fn deliver(worker: &Worker, line: &PeerQueue, address: socket2::SockAddr, request: &[u8]) -> io::Result<()> {
    let gone = || io::Error::other("the peer was taken out");
    let on_the_way = line.join().await.ok_or_else(gone)?;
    let mut link = Link::new(&worker.reactor, worker.reactor.connect(address).await?)?;
    let _sent = on_the_way.connected();
    link.write(request.to_vec());
    link.flush().await?;
    // The peer closes the connection when the request is processed.
    while !link.read().await.map_or(true, |chunk| chunk.is_empty()) {}
    Ok(())
}
