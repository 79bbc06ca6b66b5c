//! Cost of a checkout and a release, compared with other pools.
//!
//! `cargo bench -p tidegate-pool --bench checkout -- [--quick] [--json FILE] [--check]`. Figures are
//! nanoseconds of one thread per checkout and release, medians over interleaved rounds. The median column is the median of
//! slices that are short enough to run uninterrupted on a busy machine. The mean column includes interruptions and waits
//! for other threads. `--check` exits 1 if a bar is missed.

use std::{
    collections::VecDeque,
    convert::Infallible,
    fs::File,
    hint::black_box,
    io::Write,
    pin::Pin,
    process::ExitCode,
    sync::{Arc, Barrier, Mutex},
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use serde_json::json;
use tidegate_pool::{
    Checkout, Connection, Lease, Limits, LocalPool, ManageConnection, PendingConnect, Pool, ReleaseAction,
};
use tokio::sync::{mpsc, oneshot};

/// Connections per thread.
const SIZE: usize = 8;
/// Operations between two clock reads.
const SLICE: u32 = 256;
/// Target for this pool on one thread, in nanoseconds.
const BAR_NS: f64 = 50.0;

#[derive(Debug, Default)]
struct Conn(u64);

impl Connection for Conn {
    type Detached = Self;
    type Error = Infallible;

    fn is_usable(&mut self) -> bool {
        black_box(self.0) == 0
    }

    fn detach(self) -> Self {
        self
    }

    fn attach(detached: Self) -> Self {
        detached
    }
}

struct ConnectAtOnce;

impl ManageConnection<Conn> for ConnectAtOnce {
    fn connect(&self, pending: PendingConnect<Conn>) {
        pending.succeed(Conn(0), Instant::now());
    }
}

/// A measured pool: `measure(threads, time)`.
struct Subject {
    name: &'static str,
    ours: bool,
    measure: fn(usize, Duration) -> Figures,
}

const SUBJECTS: [Subject; 7] = [
    Subject { name: "tidegate-pool checkout", ours: true, measure: checkout },
    Subject { name: "tidegate-pool try_checkout", ours: true, measure: try_checkout },
    Subject { name: "Mutex<VecDeque>", ours: false, measure: mutex },
    Subject { name: "process behind a channel", ours: false, measure: channel },
    Subject { name: "deadpool 0.13", ours: false, measure: deadpool },
    Subject { name: "bb8 0.9", ours: false, measure: bb8 },
    Subject { name: "r2d2 0.8", ours: false, measure: r2d2 },
];

/// Runs `work` on `threads` threads in parallel; returns the mean of their figures.
fn on_threads(threads: usize, work: impl Fn(usize) -> Figures + Sync) -> Figures {
    let (start, work) = (Barrier::new(threads), &work);
    let measured: Vec<Figures> = thread::scope(|scope| {
        let run = |core| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                work(core)
            })
        };
        let running: Vec<_> = (0..threads).map(run).collect();
        running.into_iter().map(|thread| thread.join().expect("a bench thread does not panic")).collect()
    });
    [0, 1].map(|which| measured.iter().map(|figures| figures[which]).sum::<f64>() / threads as f64)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Median and mean of the slices of one round.
type Figures = [f64; 2];

fn figures(slices: Vec<f64>) -> Figures {
    let mean = slices.iter().sum::<f64>() / slices.len() as f64;
    [median(slices), mean]
}

fn slice_ns(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / f64::from(SLICE)
}

/// Nanoseconds per call.
fn timed(time: Duration, mut call: impl FnMut()) -> Figures {
    let (begun, mut slices) = (Instant::now(), Vec::new());
    while begun.elapsed() < time {
        let start = Instant::now();
        (0..SLICE).for_each(|_| call());
        slices.push(slice_ns(start));
    }
    figures(slices)
}

/// Nanoseconds per call, on a current-thread runtime.
fn timed_async(time: Duration, mut call: impl AsyncFnMut()) -> Figures {
    runtime().block_on(async {
        let (begun, mut slices) = (Instant::now(), Vec::new());
        while begun.elapsed() < time {
            let start = Instant::now();
            for _ in 0..SLICE {
                call().await;
            }
            slices.push(slice_ns(start));
        }
        figures(slices)
    })
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be built")
}

fn tidegate(threads: usize) -> Arc<Pool<Conn>> {
    let limits = Limits { size: SIZE * threads, ..Limits::default() };
    Pool::new(threads, limits, 1, Instant::now(), |_| ())
}

/// Measures `call` on each core, with one connection per core.
fn on_cores(threads: usize, time: Duration, call: fn(&LocalPool<Conn>, Instant)) -> Figures {
    let (pool, opened) = (tidegate(threads), Barrier::new(threads));
    on_threads(threads, |core| {
        let now = Instant::now();
        let local = LocalPool::new(&pool, core, now, ConnectAtOnce);
        let lease = poll(local.checkout(now));
        opened.wait();
        lease.release(ReleaseAction::Reuse, now);
        opened.wait();
        timed(time, || call(&local, now))
    })
}

fn poll(mut checkout: Checkout<Conn>) -> Lease<Conn> {
    match Pin::new(&mut checkout).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(lease)) => lease,
        _ => panic!("connects succeed in the call"),
    }
}

fn try_checkout(threads: usize, time: Duration) -> Figures {
    on_cores(threads, time, |local, now| {
        let lease = local.try_checkout(now).expect("an idle connection");
        black_box(lease).release(ReleaseAction::Reuse, now);
    })
}

fn checkout(threads: usize, time: Duration) -> Figures {
    on_cores(threads, time, |local, now| {
        black_box(poll(local.checkout(now))).release(ReleaseAction::Reuse, now);
    })
}

fn mutex(threads: usize, time: Duration) -> Figures {
    let idle: VecDeque<Box<Conn>> = (0..SIZE * threads).map(|_| Box::default()).collect();
    let pool = Mutex::new(idle);
    on_threads(threads, |_| {
        timed(time, || {
            let conn = pool.lock().expect("not poisoned").pop_back().expect("enough connections");
            pool.lock().expect("not poisoned").push_back(black_box(conn));
        })
    })
}

enum OwnerCall {
    Take(oneshot::Sender<Box<Conn>>),
    Give(Box<Conn>),
}

/// A thread owns the connections and answers calls over a channel.
fn channel(threads: usize, time: Duration) -> Figures {
    let (calls, mut inbox) = mpsc::unbounded_channel();
    let mut idle: Vec<Box<Conn>> = (0..SIZE * threads).map(|_| Box::default()).collect();
    let owner = thread::spawn(move || {
        while let Some(call) = inbox.blocking_recv() {
            match call {
                OwnerCall::Take(reply) => drop(reply.send(idle.pop().expect("enough connections"))),
                OwnerCall::Give(conn) => idle.push(conn),
            }
        }
    });
    let result = on_threads(threads, |_| {
        let calls = calls.clone();
        timed_async(time, async || {
            let (reply, answer) = oneshot::channel();
            calls.send(OwnerCall::Take(reply)).expect("the owner lives");
            let conn = answer.await.expect("an answer");
            calls.send(OwnerCall::Give(black_box(conn))).expect("the owner lives");
        })
    });
    drop(calls);
    owner.join().expect("the owner does not panic");
    result
}

struct Manager;

impl ::deadpool::managed::Manager for Manager {
    type Type = Conn;
    type Error = Infallible;

    async fn create(&self) -> Result<Conn, Infallible> {
        Ok(Conn(0))
    }

    async fn recycle(
        &self,
        conn: &mut Conn,
        _: &::deadpool::managed::Metrics,
    ) -> ::deadpool::managed::RecycleResult<Infallible> {
        assert!(conn.is_usable());
        Ok(())
    }
}

fn deadpool(threads: usize, time: Duration) -> Figures {
    let pool: ::deadpool::managed::Pool<Manager> =
        ::deadpool::managed::Pool::builder(Manager).max_size(SIZE * threads).build().expect("a pool");
    on_threads(threads, |_| {
        timed_async(time, async || {
            drop(black_box(pool.get().await.expect("a connection")));
        })
    })
}

impl ::bb8::ManageConnection for Manager {
    type Connection = Conn;
    type Error = Infallible;

    async fn connect(&self) -> Result<Conn, Infallible> {
        Ok(Conn(0))
    }

    async fn is_valid(&self, conn: &mut Conn) -> Result<(), Infallible> {
        assert!(conn.is_usable());
        Ok(())
    }

    fn has_broken(&self, _: &mut Conn) -> bool {
        false
    }
}

fn bb8(threads: usize, time: Duration) -> Figures {
    let size = u32::try_from(SIZE * threads).expect("a small number");
    let build = ::bb8::Pool::builder().max_size(size).min_idle(size).build(Manager);
    let keeper = runtime();
    let pool = keeper.block_on(build).expect("a pool");
    on_threads(threads, |_| {
        timed_async(time, async || {
            drop(black_box(pool.get().await.expect("a connection")));
        })
    })
}

impl ::r2d2::ManageConnection for Manager {
    type Connection = Conn;
    type Error = Infallible;

    fn connect(&self) -> Result<Conn, Infallible> {
        Ok(Conn(0))
    }

    fn is_valid(&self, conn: &mut Conn) -> Result<(), Infallible> {
        assert!(conn.is_usable());
        Ok(())
    }

    fn has_broken(&self, _: &mut Conn) -> bool {
        false
    }
}

fn r2d2(threads: usize, time: Duration) -> Figures {
    let size = u32::try_from(SIZE * threads).expect("a small number");
    let pool = ::r2d2::Pool::builder().max_size(size).build(Manager).expect("a pool");
    on_threads(threads, |_| {
        timed(time, || {
            drop(black_box(pool.get().expect("a connection")));
        })
    })
}

struct Options {
    quick: bool,
    json: Option<String>,
    check: bool,
}

fn options() -> Options {
    let mut options = Options { quick: false, json: None, check: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => options.quick = true,
            "--check" => options.check = true,
            "--json" => options.json = arguments.next(),
            // `cargo bench` passes it.
            "--bench" => {}
            other => eprintln!("unknown option {other}"),
        }
    }
    options
}

/// Figures of each subject, measured in interleaved rounds: the median over the rounds.
fn measure(threads: usize, quick: bool) -> Vec<Figures> {
    let (rounds, time) = if quick { (3, 20) } else { (9, 70) };
    let mut measured = vec![Vec::new(); SUBJECTS.len()];
    for _ in 0..rounds {
        for (subject, measured) in SUBJECTS.iter().zip(&mut measured) {
            measured.push((subject.measure)(threads, Duration::from_millis(time)));
        }
    }
    let over_rounds = |rounds: &Vec<Figures>, which| median(rounds.iter().map(|figures| figures[which]).collect());
    measured.iter().map(|rounds| [0, 1].map(|which| over_rounds(rounds, which))).collect()
}

fn main() -> ExitCode {
    let options = options();
    let mut lines = Vec::new();
    let mut met = true;
    println!("{:<28} {:>8} {:>12} {:>12}", "checkout + release", "threads", "median ns", "mean ns");
    for (threads, case) in [(1, "own core, uncontended"), (2, "2 threads")] {
        for (subject, [median, mean]) in SUBJECTS.iter().zip(measure(threads, options.quick)) {
            println!("{:<28} {threads:>8} {median:>12.1} {mean:>12.1}", subject.name);
            for (metric, value) in [("checkout_release_median", median), ("checkout_release_mean", mean)] {
                let mut line = json!({
                    "bench": "pool", "subject": subject.name, "case": case,
                    "metric": metric, "value": value, "unit": "ns",
                });
                if subject.ours && threads == 1 && metric == "checkout_release_median" {
                    line["target"] = json!({"limit": format!("<= {BAR_NS}"), "ok": value <= BAR_NS});
                    met &= value <= BAR_NS;
                }
                lines.push(line);
            }
        }
    }
    if let Some(path) = options.json {
        let mut file = File::create(path).expect("the file of --json can be created");
        lines.iter().for_each(|line| writeln!(file, "{line}").expect("the file of --json can be written"));
    }
    if options.check && !met {
        eprintln!("missed: own core, uncontended <= {BAR_NS} ns");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
