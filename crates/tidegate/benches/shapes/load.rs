//! The loads: what the process of the clients does.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use crate::client::{Connection, Follower, tenant};

/// Connections of a load that does not depend on their number.
const CONNECTIONS: usize = 32;
/// Clients that log in concurrently.
const OPENING: usize = 200;
/// Everything that clients wait for is there after this time.
const SETTLE: Duration = Duration::from_millis(500);

/// Runs a load by its name, in a process of its own.
pub(crate) fn run(arguments: &[&str]) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let number = |text: &str| text.parse::<usize>().map_err(io::Error::other);
    let address = |text: &str| text.parse::<SocketAddr>().map_err(io::Error::other);
    runtime.block_on(async {
        match *arguments {
            ["create", server, count, file] => create(address(server)?, number(count)?, file).await,
            ["answers", server, file] => answers(address(server)?, file).await,
            ["load", server, clients] => load(address(server)?, number(clients)?).await,
            ["wait", server, url, clients] => wait(address(server)?, url, number(clients)?, false).await,
            ["wait", server, url, clients, "hold"] => wait(address(server)?, url, number(clients)?, true).await,
            ["latency", server, url, shapes, writes] => {
                latency(address(server)?, url, number(shapes)?, number(writes)?).await
            }
            _ => Err(io::Error::other(format!("unknown load {arguments:?}"))),
        }
    })
}

/// The lines of the input, each of which lets the load go on.
fn input() -> mpsc::UnboundedReceiver<()> {
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for _ in io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(());
        }
    });
    lines
}

fn joined<T>(result: Result<io::Result<T>, tokio::task::JoinError>) -> io::Result<T> {
    result.map_err(io::Error::other)?
}

/// Creates shapes over a few connections, and writes their handles and offsets to a file.
async fn create(address: SocketAddr, count: usize, file: &str) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    for first in 0..CONNECTIONS {
        tasks.spawn(async move {
            let mut lines = String::new();
            let mut connection = Connection::open(address).await?;
            for number in (first..count).step_by(CONNECTIONS) {
                let mut follower = Follower::on(connection, &tenant(number));
                follower.load().await?;
                lines += &format!("{number} {} {}\n", follower.handle, follower.offset);
                connection = follower.into_connection();
            }
            io::Result::Ok(lines)
        });
    }
    let mut text = String::new();
    while let Some(lines) = tasks.join_next().await {
        text += &joined(lines)?;
    }
    std::fs::write(file, text)?;
    println!("created {count}");
    Ok(())
}

/// Requests what follows the offsets of a file, once for each shape.
async fn answers(address: SocketAddr, file: &str) -> io::Result<()> {
    let text = std::fs::read_to_string(file)?;
    let shapes: Vec<String> = text
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (number, handle, offset) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
            Some(format!("{}&handle={handle}&offset={offset}", tenant(number)))
        })
        .collect();
    let shapes = Arc::new(shapes);
    let mut tasks = JoinSet::new();
    let (first_answer, mut first_answers) = mpsc::unbounded_channel();
    for first in 0..CONNECTIONS {
        let (shapes, first_answer) = (Arc::clone(&shapes), first_answer.clone());
        tasks.spawn(async move {
            let mut connection = Connection::open(address).await?;
            for query in shapes.iter().skip(first).step_by(CONNECTIONS) {
                let mut reply = connection.get(query).await?;
                while reply.status == 503 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    reply = connection.get(query).await?;
                }
                if reply.status != 200 {
                    return Err(io::Error::other(format!("status {} for {query}", reply.status)));
                }
                let _ = first_answer.send(());
            }
            Ok(())
        });
    }
    first_answers.recv().await;
    println!("first");
    while let Some(done) = tasks.join_next().await {
        joined(done)?;
    }
    println!("all");
    Ok(())
}

/// Clients that connect together and load the whole table `items`.
async fn load(address: SocketAddr, clients: usize) -> io::Result<()> {
    let mut input = input();
    println!("ready");
    input.recv().await;
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..clients {
        tasks.spawn(async move {
            let mut follower = Follower::connect(address, "table=items").await?;
            follower.load().await?;
            io::Result::Ok((follower.bytes, follower))
        });
    }
    let (mut bytes, mut loaded) = (0, Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (received, follower) = joined(done)?;
        bytes += received;
        loaded.push(follower);
    }
    println!("loaded {} {bytes}", started.elapsed().as_secs_f64());
    // The connections stay open until the server was looked at.
    input.recv().await;
    Ok(())
}

async fn database(url: &str) -> io::Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    Ok(client)
}

/// Follows a shape; sends its number whenever there is data. With `turns`, the next request waits for the next turn.
async fn follow(
    mut follower: Follower,
    number: usize,
    seen: mpsc::UnboundedSender<(usize, Instant)>,
    mut turns: Option<watch::Receiver<()>>,
) -> io::Result<()> {
    loop {
        if !follower.next(true).await?.has_data {
            continue;
        }
        if seen.send((number, Instant::now())).is_err() {
            return Ok(());
        }
        if let Some(turns) = &mut turns {
            turns.changed().await.map_err(io::Error::other)?;
        }
    }
}

/// Connects clients, of which each loads its shape, and lets them wait. Returns the tasks.
async fn connect_all(
    address: SocketAddr,
    shapes: impl Iterator<Item = String>,
    seen: &mpsc::UnboundedSender<(usize, Instant)>,
    turns: Option<&watch::Receiver<()>>,
) -> io::Result<JoinSet<io::Result<()>>> {
    let opening = Arc::new(Semaphore::new(OPENING));
    let mut tasks = JoinSet::new();
    let mut loads = JoinSet::new();
    for (number, shape) in shapes.enumerate() {
        let opening = Arc::clone(&opening);
        loads.spawn(async move {
            let _turn = opening.acquire().await.map_err(io::Error::other)?;
            let mut follower = Follower::connect(address, &shape).await?;
            follower.load().await?;
            io::Result::Ok((number, follower))
        });
    }
    while let Some(loaded) = loads.join_next().await {
        let (number, follower) = joined(loaded)?;
        tasks.spawn(follow(follower, number, seen.clone(), turns.cloned()));
    }
    tokio::time::sleep(SETTLE).await;
    Ok(tasks)
}

/// Clients that wait on one shape. For each line of the input, one row is written, and all clients have to get it. With `holds`,
/// they send their next requests after another line.
async fn wait(address: SocketAddr, url: &str, clients: usize, holds: bool) -> io::Result<()> {
    let mut input = input();
    let (seen, mut answers) = mpsc::unbounded_channel();
    let writer = database(url).await?;
    let (turn, turns) = watch::channel(());
    let shapes = (0..clients).map(|_| "table=items".to_owned());
    let mut tasks = connect_all(address, shapes, &seen, holds.then_some(&turns)).await?;
    println!("waiting {clients}");
    while input.recv().await.is_some() {
        let started = Instant::now();
        let sql = "update items set priority = priority + 1 where id = 0";
        writer.batch_execute(sql).await.map_err(io::Error::other)?;
        let mut last = started;
        for _ in 0..clients {
            tokio::select! {
                biased;
                Some((_, at)) = answers.recv() => last = last.max(at),
                Some(ended) = tasks.join_next() => return joined(ended),
            }
        }
        println!("all {}", (last - started).as_secs_f64());
        if holds {
            input.recv().await;
            turn.send_replace(());
        }
        // The next requests arrive at the server.
        tokio::time::sleep(SETTLE).await;
        println!("settled");
    }
    Ok(())
}

/// A client waits on each of many shapes; writes, one after the other, change a row of one of them.
async fn latency(address: SocketAddr, url: &str, shapes: usize, writes: usize) -> io::Result<()> {
    let (seen, mut answers) = mpsc::unbounded_channel();
    let writer = database(url).await?;
    let mut tasks = connect_all(address, (0..shapes).map(tenant), &seen, None).await?;
    let (mut total, mut statement) = (Vec::new(), Vec::new());
    for round in 0..writes {
        let number = round * 7919 % shapes;
        let sql = format!("update items set priority = priority + 1 where tenant = {number}");
        let started = Instant::now();
        writer.batch_execute(&sql).await.map_err(io::Error::other)?;
        statement.push(started.elapsed().as_secs_f64() * 1e3);
        let at = loop {
            tokio::select! {
                biased;
                Some((found, at)) = answers.recv() => if found == number { break at },
                Some(ended) = tasks.join_next() => return joined(ended),
            }
        };
        total.push((at - started).as_secs_f64() * 1e3);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    total.sort_by(f64::total_cmp);
    statement.sort_by(f64::total_cmp);
    let share = |values: &[f64], percent: usize| values[(values.len() * percent / 100).min(values.len() - 1)];
    println!("latency {} {} {}", share(&total, 50), share(&total, 99), share(&statement, 50));
    Ok(())
}
