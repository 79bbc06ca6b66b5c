//! Serves the shapes of a database: `serve postgres://… 127.0.0.1:3000 FOLDER`.

use std::sync::Arc;

use tidegate_shapes::{DatabaseLogin, ShapesOptions, SlotFeed};
use tidegate_supervise::Scope;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, listen, folder] = arguments.as_slice() else { return Err("usage: serve URL IP:PORT FOLDER".into()) };
    let scope: Scope = Scope::root("shapes");
    let (login, feed) = (DatabaseLogin::from_url(url)?, SlotFeed::from_url(url)?);
    let server = tidegate_shapes::start(ShapesOptions::new(folder.into()), login, Arc::new(feed), &scope)?;
    tidegate_shapes::serve(&server, vec![tidegate_shapes::bind(listen.parse()?)?], Arc::new(|| None), &scope)?;
    std::future::pending::<()>().await;
    Ok(())
}
