//! Echo server whose clients are children: keyed by number, stopped on Ctrl-C, and reported if they do not end.
//!
//! `cargo run -p tidegate-supervise --features tokio --example echo`, then `nc 127.0.0.1 7007`.

use std::error::Error;
use std::time::Duration;

use tidegate_supervise::{Ctx, Scope, Supervisor, Tokio};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let root = Scope::root::<&str>("echo").on(Tokio::current());
    // The listener stops in an earlier phase than the clients, so no client connects during the stop.
    let listener = root.child_builder("listener").phase(0).build::<u64>().on(Tokio::current());
    let clients = root.child_builder("clients").phase(1).max_children(10_000).build::<u64>().on(Tokio::current());

    let socket = TcpListener::bind("127.0.0.1:7007").await?;
    println!("listening on {}; Ctrl-C to stop", socket.local_addr()?);
    let accepting = clients.clone();
    drop(listener.spawn(|ctx| accept(ctx, socket, accepting))?);

    tokio::signal::ctrl_c().await?;
    let report = root.stop(Duration::from_secs(5), Duration::from_secs(1)).await;
    println!("{report}");
    Ok(())
}

async fn accept(ctx: Ctx, socket: TcpListener, clients: Supervisor<Tokio, u64>) {
    for id in 0.. {
        let stream = tokio::select! {
            () = ctx.cancelled() => return,
            accepted = socket.accept() => accepted,
        };
        let Ok((stream, _)) = stream else { continue };
        if let Err(refused) = clients.spawn_as(id, |ctx| echo(ctx, stream)) {
            println!("client {id}: {refused}");
        }
    }
}

async fn echo(ctx: Ctx, mut stream: TcpStream) -> std::io::Result<()> {
    let mut buffer = [0; 1024];
    loop {
        tokio::select! {
            () = ctx.cancelled() => return stream.write_all(b"server is stopping\n").await,
            read = stream.read(&mut buffer) => match read? {
                0 => return Ok(()),
                read => stream.write_all(&buffer[..read]).await?,
            },
        }
    }
}
