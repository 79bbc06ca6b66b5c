//! Sends a CancelRequest to a Postgres server.

use std::io::{self, ErrorKind};

use tidegate_link::{Link, Reactor};
use tidegate_wire::startup;

use crate::{ServerAddress, ServerIdentity};

/// Sends a CancelRequest for a backend process. Returns when Postgres has sent the signal, or never will. `on_sent` is called
/// right before the request is sent; before that call, the request has no effect.
///
/// # Errors
/// If the server cannot be reached.
pub async fn send(reactor: &Reactor, identity: &ServerIdentity, on_sent: impl FnOnce()) -> io::Result<()> {
    let ServerAddress { address, tls, .. } = &identity.address;
    let fd = reactor.connect(address.clone()).await?;
    let mut link = Link::new(reactor, fd)?;
    if let Some(tls) = tls {
        crate::connect::negotiate_tls(reactor, &mut link, tls).await.map_err(io::Error::other)?;
    }
    let mut request = Vec::new();
    startup::cancel_request(identity.pid, &identity.cancel_key, &mut request);
    on_sent();
    link.write(request);
    // Postgres closes the connection after it has sent the signal. A close without a read means that it never will.
    let closed = async {
        link.flush().await?;
        while !link.read().await?.is_empty() {}
        io::Result::Ok(())
    };
    match closed.await {
        Err(error) if matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Ok(()),
        result => result,
    }
}
