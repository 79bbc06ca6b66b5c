//! A name server of the tests' own: answers what it was told, and fails as it was told to.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};

/// What a name server does instead of answering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// It says that it failed.
    ServFail,
    /// It says that no such name exists.
    NxDomain,
    /// It says that the name has no records.
    Empty,
    /// It says nothing.
    Silence,
}

#[derive(Default)]
struct Told {
    records: HashMap<(String, RecordType), Vec<RData>>,
    outage: Option<Outage>,
    stopped: bool,
}

/// A running name server; dropping it ends it. Its answers live for no time.
pub struct NameServer {
    address: SocketAddr,
    told: Arc<Mutex<Told>>,
    asked: Arc<AtomicU64>,
    serving: Option<JoinHandle<()>>,
}

fn lock(told: &Mutex<Told>) -> MutexGuard<'_, Told> {
    told.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NameServer {
    /// Starts one that knows nothing.
    pub fn start() -> Self {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into()).expect("a port is free")
    }

    /// The same at this address.
    ///
    /// # Errors
    /// When it is taken, or needs a privilege.
    pub fn start_at(address: SocketAddr) -> std::io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        let address = socket.local_addr().expect("it is bound");
        let (told, asked): (Arc<Mutex<Told>>, Arc<AtomicU64>) = Default::default();
        let (its_told, its_asked) = (Arc::clone(&told), Arc::clone(&asked));
        let serving = Some(std::thread::spawn(move || serve(&socket, &its_told, &its_asked)));
        Ok(Self { address, told, asked, serving })
    }

    /// Where it listens, for UDP alone.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on the name has exactly these addresses.
    pub fn addresses(&self, name: &str, list: &[Ipv4Addr]) {
        let data = list.iter().map(|address| RData::A(A(*address))).collect();
        lock(&self.told).records.insert((name.to_owned(), RecordType::A), data);
    }

    /// From now on the name has exactly these services: priority, weight, port and target each.
    pub fn services(&self, name: &str, list: &[(u16, u16, u16, &str)]) {
        let of = |&(priority, weight, port, target): &(u16, u16, u16, &str)| {
            let target = Name::from_ascii(target).expect("a target is a name");
            RData::SRV(SRV::new(priority, weight, port, target))
        };
        lock(&self.told).records.insert((name.to_owned(), RecordType::SRV), list.iter().map(of).collect());
    }

    /// From now on it fails so, or not any more.
    pub fn fail(&self, outage: Option<Outage>) {
        lock(&self.told).outage = outage;
    }

    /// How many questions have arrived so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        lock(&self.told).stopped = true;
        // Wakes the thread. If that fails, the thread stays until the process ends: nothing waits for it then.
        let woken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.send_to(b"end", self.address));
        if let (Ok(_), Some(serving)) = (woken, self.serving.take()) {
            let _ = serving.join();
        }
    }
}

fn serve(socket: &UdpSocket, told: &Mutex<Told>, asked: &AtomicU64) {
    let mut buffer = [0; 4096];
    loop {
        let received = socket.recv_from(&mut buffer);
        if lock(told).stopped {
            return;
        }
        let Ok((length, from)) = received else { continue };
        let Ok(question) = Message::from_vec(&buffer[..length]) else { continue };
        let answer = answer(&question, &lock(told));
        // An asker that is gone is as good as one that has read it.
        let _ = answer.map(|answer| socket.send_to(&answer, from));
        asked.fetch_add(1, Ordering::Release);
    }
}

fn answer(question: &Message, told: &Told) -> Option<Vec<u8>> {
    let query = question.queries.first()?;
    let name = query.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
    let mut message = Message::response(question.metadata.id, OpCode::Query);
    message.metadata.recursion_available = true;
    message.add_query(query.clone());
    match told.outage {
        Some(Outage::Silence) => return None,
        Some(Outage::ServFail) => message.metadata.response_code = ResponseCode::ServFail,
        Some(Outage::NxDomain) => message.metadata.response_code = ResponseCode::NXDomain,
        Some(Outage::Empty) => {}
        None => match told.records.get(&(name.clone(), query.query_type())) {
            Some(list) => {
                for data in list {
                    message.add_answer(Record::from_rdata(query.name().clone(), 0, data.clone()));
                }
            }
            // A name that has records of another kind exists.
            None if told.records.keys().any(|(known, _)| *known == name) => {}
            None => message.metadata.response_code = ResponseCode::NXDomain,
        },
    }
    message.to_vec().ok()
}
