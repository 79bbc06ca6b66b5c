//! Cancel requests: one connection each, and never at the expense of another client.
//!
//! A request names a server process, not a query. Should the query end while the request is under way, the signal
//! would hit whatever that process does next. So a server with requests under way goes to no other client before they
//! are through.

use std::{
    cell::RefCell,
    io::{self, ErrorKind},
    rc::Rc,
    task::Waker,
};

use tidegate_link::{Link, Reactor};
use tidegate_wire::startup;

use super::{Identity, connect::ServerAddress};

/// Counts the cancel requests under way for one server.
#[derive(Clone, Debug, Default)]
pub struct CancelGate(Rc<RefCell<Gate>>);

#[derive(Debug, Default)]
struct Gate {
    under_way: usize,
    /// Nobody knows what became of a request: it may take effect at any time.
    has_lost: bool,
    waiter: Option<Waker>,
}

/// A request under way; ends when dropped.
#[derive(Debug)]
pub struct UnderWay(CancelGate);

impl CancelGate {
    /// A request begins.
    #[must_use]
    pub fn begin(&self) -> UnderWay {
        self.0.borrow_mut().under_way += 1;
        UnderWay(self.clone())
    }

    /// No request is under way.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.borrow().under_way == 0
    }

    /// A request was sent, and its end was not seen: the server is for no other client.
    #[must_use]
    pub fn has_lost(&self) -> bool {
        self.0.borrow().has_lost
    }

    /// Waits until no request is under way.
    pub async fn opened(&self) {
        std::future::poll_fn(|cx| {
            let mut gate = self.0.borrow_mut();
            if gate.under_way == 0 {
                return std::task::Poll::Ready(());
            }
            gate.waiter = Some(cx.waker().clone());
            std::task::Poll::Pending
        })
        .await;
    }
}

impl UnderWay {
    /// Nobody knows what became of it.
    pub fn lose(self) {
        self.0.0.borrow_mut().has_lost = true;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut gate = self.0.0.borrow_mut();
        gate.under_way -= 1;
        if let Some(waker) = gate.waiter.take() {
            waker.wake();
        }
    }
}

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
        super::connect::begin_tls(reactor, &mut link, tls).await.map_err(io::Error::other)?;
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
