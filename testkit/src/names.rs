//! A DNS server for tests, with configurable records and failures.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};

/// The failure mode of a name server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// SERVFAIL.
    ServFail,
    /// NXDOMAIN: the name does not exist.
    NxDomain,
    /// NOERROR without records.
    NoData,
    /// No reply.
    NoResponse,
}

#[derive(Default)]
struct State {
    records: HashMap<(String, RecordType), Vec<RData>>,
    outage: Option<Outage>,
    stopped: bool,
}

/// A running name server. Dropping it stops it. All records have a TTL of 0.
pub struct NameServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    queries: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NameServer {
    /// Starts a server without records.
    pub fn start() -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into()).expect("a port is free")
    }

    /// Starts a server without records on this address.
    ///
    /// # Errors
    /// If the address is in use, or needs a privilege.
    pub fn start_at(address: SocketAddr) -> std::io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let address = socket.local_addr().expect("a bound socket has an address");
        let (state, queries): (Arc<Mutex<State>>, Arc<AtomicU64>) = Default::default();
        let (thread_state, thread_queries) = (Arc::clone(&state), Arc::clone(&queries));
        let thread = Some(std::thread::spawn(move || serve(&socket, &thread_state, &thread_queries)));
        Ok(Self { address, state, queries, thread })
    }

    /// The UDP address on which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces the addresses of a name.
    pub fn set_addresses(&self, name: &str, list: &[Ipv4Addr]) {
        let data = list.iter().map(|address| RData::A(A(*address))).collect();
        lock(&self.state).records.insert((name.to_owned(), RecordType::A), data);
    }

    /// Replaces the services of a name: priority, weight, port and target each.
    pub fn set_services(&self, name: &str, list: &[(u16, u16, u16, &str)]) {
        let record = |&(priority, weight, port, target): &(u16, u16, u16, &str)| {
            let target = Name::from_ascii(target).expect("a target is a name");
            RData::SRV(SRV::new(priority, weight, port, target))
        };
        lock(&self.state).records.insert((name.to_owned(), RecordType::SRV), list.iter().map(record).collect());
    }

    /// Sets or clears the failure mode.
    pub fn set_outage(&self, outage: Option<Outage>) {
        lock(&self.state).outage = outage;
    }

    /// The number of queries received so far.
    pub fn queries(&self) -> u64 {
        self.queries.load(Ordering::Acquire)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        lock(&self.state).stopped = true;
        // Wakes the thread. If that fails, the thread runs until the process exits; no code waits for it then.
        let woken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.send_to(b"end", self.address));
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn serve(socket: &UdpSocket, state: &Mutex<State>, queries: &AtomicU64) {
    let mut buffer = [0; 4096];
    loop {
        let received = socket.recv_from(&mut buffer);
        if lock(state).stopped {
            return;
        }
        let Ok((length, from)) = received else { continue };
        let Ok(request) = Message::from_vec(&buffer[..length]) else { continue };
        let reply = reply(&request, &lock(state));
        // A resolver that closed its socket does not need the reply.
        let _ = reply.map(|reply| socket.send_to(&reply, from));
        queries.fetch_add(1, Ordering::Release);
    }
}

fn reply(request: &Message, state: &State) -> Option<Vec<u8>> {
    let query = request.queries.first()?;
    let name = query.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
    let mut message = Message::response(request.metadata.id, OpCode::Query);
    message.metadata.recursion_available = true;
    message.add_query(query.clone());
    match state.outage {
        Some(Outage::NoResponse) => return None,
        Some(Outage::ServFail) => message.metadata.response_code = ResponseCode::ServFail,
        Some(Outage::NxDomain) => message.metadata.response_code = ResponseCode::NXDomain,
        Some(Outage::NoData) => {}
        None => match state.records.get(&(name.clone(), query.query_type())) {
            Some(list) => {
                for data in list {
                    message.add_answer(Record::from_rdata(query.name().clone(), 0, data.clone()));
                }
            }
            // The name exists with records of another type: NOERROR without records.
            None if state.records.keys().any(|(known, _)| *known == name) => {}
            None => message.metadata.response_code = ResponseCode::NXDomain,
        },
    }
    message.to_vec().ok()
}
