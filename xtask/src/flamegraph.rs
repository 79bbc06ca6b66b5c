//! `cargo xtask flamegraph gateway`: a CPU profile under the load of the benchmark, as an SVG in `target/`.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use inferno::collapse::Collapse;
use inferno::collapse::perf::Folder;
use inferno::flamegraph::{Options as Drawing, from_reader};

use crate::bench::load::{self, Load};
use crate::bench::subject::{Options, Testbed, USER, fill};
use crate::gateway::{GatewayConfig, RunningProgram};
use crate::machine::find_program;
use crate::repository::{cargo, run as run_command, target_dir};
use crate::tests::Io;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The area whose load to profile
    #[arg(value_enum)]
    area: Area,
    /// Protocol of pgbench
    #[arg(long, default_value = "simple", value_parser = ["simple", "extended", "prepared"])]
    protocol: String,
    /// I/O mode
    #[arg(long, default_value = "io_uring")]
    io: Io,
    /// Seconds to record
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    #[command(flatten)]
    stage: Options,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Area {
    Gateway,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let Area::Gateway = arguments.area;
    let perf = find_program("perf").context("perf is not installed; install Debian's package linux-perf")?;
    let pgbench = load::pgbench()?;
    let named = arguments.stage.tidegate.clone();
    let binary = named.map_or_else(|| build_with_frame_pointers(&target_dir()?.join("flamegraph")), Ok)?;
    let stage = Testbed::set(&arguments.stage.clone().without_proxies())?;
    fill(&stage.postgres, &pgbench)?;
    let config = GatewayConfig {
        mode: "transaction",
        auth: "trust",
        io: Some(arguments.io),
        pool_size: 20,
        postgres_port: stage.postgres.port(),
        user: USER,
        database: USER,
        tls: None,
        journal: None,
    };
    let gateway = RunningProgram::gateway(&binary, stage.dir.path(), "tidegate", &config)?;
    let mut command = load_command(&pgbench, gateway.port, arguments, stage.dir.path());
    let mut load = command.stdout(Stdio::null()).spawn().context("start pgbench")?;
    let recorded = record(&perf, gateway.pid(), arguments.seconds, stage.dir.path());
    load.wait().context("wait for pgbench")?;
    let svg = target_dir()?.join(format!("flamegraph-gateway-{}-{}.svg", arguments.protocol, arguments.io.name()));
    draw(&perf, &recorded?, &svg)?;
    println!("{}", svg.display());
    Ok(())
}

/// A separate build with frame pointers, so that the kernel can walk the stacks. It is slightly slower.
fn build_with_frame_pointers(target: &Path) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["build", "--profile", "dist", "-p", "tidegate", "--bin", "tidegate", "--target-dir"]).arg(target);
    run_command(command.env("RUSTFLAGS", "-C force-frame-pointers=yes"))?;
    Ok(target.join("dist/tidegate"))
}

fn load_command(pgbench: &Path, port: u16, arguments: &Arguments, dir: &Path) -> Command {
    let protocol = ["simple", "extended", "prepared"].into_iter().find(|name| *name == arguments.protocol);
    let load = Load {
        protocol: protocol.unwrap_or("simple"),
        clients: 32,
        // The recording starts shortly after the load and must end before it.
        seconds: arguments.seconds + 2,
        script: None,
        logged_share: 0.01,
    };
    load::command(pgbench, (port, USER), &load, dir)
}

fn record(perf: &Path, pid: u32, seconds: u32, dir: &Path) -> Result<PathBuf> {
    let data = dir.join("perf.data");
    let mut command = Command::new(perf);
    command.args(["record", "--quiet", "-F", "997", "--call-graph", "fp", "-p", &pid.to_string(), "-o"]).arg(&data);
    run_command(command.args(["--", "sleep", &seconds.to_string()]))?;
    Ok(data)
}

fn draw(perf: &Path, data: &Path, svg: &Path) -> Result<()> {
    let script = data.with_extension("script");
    let out = File::create(&script).context("create a file for perf script")?;
    run_command(Command::new(perf).args(["script", "--force", "-i"]).arg(data).stdout(out))?;
    let folded = data.with_extension("folded");
    let reader = BufReader::new(File::open(&script).context("open the output of perf")?);
    let writer = BufWriter::new(File::create(&folded).context("create a file for stacks")?);
    Folder::default().collapse(reader, writer).context("fold the stacks")?;
    let stacks = BufReader::new(File::open(&folded).context("open the stacks")?);
    let picture = BufWriter::new(File::create(svg).with_context(|| format!("create {}", svg.display()))?);
    let mut drawing = Drawing::default();
    drawing.title = "tidegate".to_owned();
    from_reader(&mut drawing, stacks, picture).context("draw the stacks")
}
