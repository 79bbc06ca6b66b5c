//! A client's cancel request, which comes on a connection of its own.

use std::rc::Rc;

use crate::plane::{ClientState, Signal, Worker, place_of};

/// Acts on a cancel request, if its key fits. Nobody is told whether it does.
pub(super) fn act(worker: &Rc<Worker>, pid: u32, key: &[u8]) {
    let (index, slot) = place_of(pid);
    let Some(mailbox) = worker.gateway.workers().get(index) else { return };
    let key: Box<[u8]> = key.into();
    mailbox.visit(move |owner| {
        let Some(card) = owner.roster.find(slot, &key) else { return };
        tracing::debug!(client = card.id, "cancel request");
        match card.state.get() {
            ClientState::Waiting(_) => card.signal(Signal::CancelWait),
            ClientState::Active => {
                if let Some(linked) = card.linked() {
                    owner.cancel(linked.identity, linked.gate.begin());
                }
            }
            // The query has ended already.
            ClientState::Idle => {}
        }
    });
}
