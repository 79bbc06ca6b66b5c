//! `GET /metrics`.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpStream},
};

use tidegate_testkit::{PATIENCE, eventually};

use crate::bouncer::{Bouncer, Setup, free_port_of};

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it answers");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it ends");
    answer
}

#[test]
fn dashboards_find_their_figures() {
    // A range of its own: nobody but this test takes ports there.
    let port = free_port_of(30_000..32_000);
    let address = format!("127.0.0.1:{port}");
    let bouncer = Bouncer::with(&Setup {
        ini: "[databases]\nshop = $PG dbname=postgres pool_size=4\n[pgbouncer]\nmax_client_conn = 77\n",
        options: &["--metrics", &address],
        ..Setup::default()
    });
    let mut client = bouncer.client("shop");
    for _ in 0..3 {
        client.ok("select 1");
    }
    client.ok("begin");
    let page = get(port, "/metrics");
    assert!(page.starts_with("HTTP/1.1 200") && page.contains("text/plain"), "{page}");
    for line in [
        "pgbouncer_up 1",
        "pgbouncer_config_max_client_connections 77",
        "pgbouncer_pools_server_active_connections{database=\"shop\",user=\"postgres\"} 1",
        "pgbouncer_pools_client_active_connections{database=\"shop\",user=\"postgres\"} 1",
        "# TYPE pgbouncer_stats_totals_queries_pooled_total counter",
    ] {
        assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
    }
    let labels = format!("name=\"shop\",host=\"127.0.0.1\",port=\"{}\"", crate::bouncer::server().port());
    assert!(page.contains(&format!("pgbouncer_databases_pool_size{{{labels}")), "{page}");
    client.ok("commit");
    eventually("queries are counted", || {
        let page = get(port, "/metrics");
        let line = page
            .lines()
            .find(|line| line.starts_with("pgbouncer_stats_totals_queries_pooled_total{database=\"shop\"}"));
        line.and_then(|line| line.rsplit(' ').next())
            .and_then(|count| count.parse::<f64>().ok())
            .is_some_and(|count| count >= 5.0)
    });
    assert!(get(port, "/nothing").starts_with("HTTP/1.1 404"));
}
