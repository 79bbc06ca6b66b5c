//! Check of `[peers.ID]`: numbers and addresses of other gateways.

use std::collections::BTreeMap;

use super::{Checker, SectionView};
use crate::keys::{ListenConfig, PEER_MAX, PeerKeys};

impl Checker<'_> {
    pub(super) fn peers(&mut self, section: &SectionView<'_>, listen: &ListenConfig) -> BTreeMap<u16, PeerKeys> {
        let mut peers = BTreeMap::new();
        for entry in &section.table.entries {
            let Some(own) = self.named(section, entry) else { continue };
            let peer: PeerKeys = self.settings(&own);
            if peer.host.is_empty() && !own.has("host") {
                let help = "write host = \"10.0.0.2\", or the folder of its unix socket";
                self.error(own.locate(&[]), format!("[{}] has no host", own.path), help);
            }
            match entry.key.parse::<u16>() {
                Ok(id) if (1..=PEER_MAX).contains(&id) => drop(peers.insert(id, peer)),
                _ => {
                    let help = format!("write [peers.N] with N from 1 to {PEER_MAX}, the peer_id of the peer");
                    self.error(own.locate(&[]), format!("`{}` is not the number of a peer", entry.key), help);
                }
            }
        }
        if !peers.is_empty() && listen.peer_id == 0 {
            let help = "write peer_id = N in [listen], different for each gateway";
            self.warning(section.locate(&[]), "peers have no effect: this gateway has no peer_id", help);
        }
        peers
    }
}
