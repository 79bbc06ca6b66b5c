//! Sends a CancelRequest to a Postgres server.

use std::io::{self, ErrorKind};

use tidegate_link::{Link, Reactor};
use tidegate_wire::startup;

use crate::{Identity, ServerAddress};

/// Asks Postgres to cancel what a server process does. Returns when Postgres has sent the signal, or never will. Until it is
/// sent, which `on_sent` is told, nothing can come of it.
///
/// # Errors
/// When the server cannot be reached.
pub async fn deliver(reactor: &Reactor, identity: &Identity, on_sent: impl FnOnce()) -> io::Result<()> {
    let ServerAddress { address, tls, .. } = &identity.address;
    let fd = reactor.connect(address.clone()).await?;
    let mut link = Link::new(reactor, fd)?;
    if let Some(tls) = tls {
        crate::connect::begin_tls(reactor, &mut link, tls).await.map_err(io::Error::other)?;
    }
    let mut request = Vec::new();
    startup::cancel_request(identity.pid, &identity.cancel_key, &mut request);
    on_sent();
    link.write(request);
    // Postgres answers by closing, after it has sent the signal; who closes without having read it never will.
    let heard = async {
        link.flush().await?;
        while !link.read().await?.is_empty() {}
        io::Result::Ok(())
    };
    match heard.await {
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Ok(()),
        result => result,
    }
}
