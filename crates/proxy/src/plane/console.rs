//! The interface to the admin console, which lives above this crate.

use std::{future::Future, pin::Pin, rc::Rc};

use tidegate_link::Link;

use super::{RegisteredClient, Worker};

/// A client of the console after its login.
pub struct ConsoleClient {
    /// The connection; the greeting is queued.
    pub link: Link,
    /// The user.
    pub user: String,
    /// Whether it may run commands that change something.
    pub may_change: bool,
    /// The entry in the registry of clients.
    pub entry: RegisteredClient,
}

/// Serves a client of the console until it leaves; returns the reason for the log.
pub type Console = Rc<dyn Fn(Rc<Worker>, ConsoleClient) -> Pin<Box<dyn Future<Output = &'static str>>>>;
