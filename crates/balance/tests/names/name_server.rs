//! A name server whose answers the test sets.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// Answer to a query.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Records(u32, Vec<RData>),
    Code(ResponseCode),
    None,
}

pub(crate) fn addresses(ttl: u32, list: &[&str]) -> Answer {
    let data = list.iter().map(|text| match text.parse().expect("an address") {
        IpAddr::V4(address) => RData::A(A(address)),
        IpAddr::V6(address) => RData::AAAA(AAAA(address)),
    });
    Answer::Records(ttl, data.collect())
}

pub(crate) fn srv(priority: u16, weight: u16, port: u16, target: &str) -> RData {
    RData::SRV(SRV::new(priority, weight, port, Name::from_ascii(target).expect("a name")))
}

type Answers = Arc<Mutex<HashMap<(String, RecordType), Answer>>>;

pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    answers: Answers,
    /// Names with A queries.
    queried: Arc<Mutex<HashSet<String>>>,
    serving: JoinHandle<()>,
}

impl NameServer {
    pub(crate) async fn start() -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into()).await.expect("a port")
    }

    pub(crate) async fn start_at(address: SocketAddr) -> std::io::Result<Self> {
        let socket = UdpSocket::bind(address).await?;
        let address = socket.local_addr().expect("bound");
        let (answers, queried) = (Answers::default(), Arc::default());
        let serving = tokio::spawn(serve(socket, Arc::clone(&answers), Arc::clone(&queried)));
        Ok(Self { address, answers, queried, serving })
    }

    /// Sets an answer. A name without an answer does not exist.
    pub(crate) fn set(&self, name: &str, kind: RecordType, answer: Answer) {
        self.answers.lock().expect("not poisoned").insert((name.to_owned(), kind), answer);
    }

    /// Number of names with A queries.
    pub(crate) fn names(&self) -> usize {
        self.queried.lock().expect("not poisoned").len()
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(socket: UdpSocket, answers: Answers, queried: Arc<Mutex<HashSet<String>>>) {
    let mut buffer = [0; 4096];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        let Ok(question) = Message::from_vec(&buffer[..length]) else { continue };
        let names = question.queries.iter().filter(|query| query.query_type() == RecordType::A);
        queried.lock().expect("not poisoned").extend(names.map(|query| query.name().to_ascii().to_ascii_lowercase()));
        if let Some(answer) = answer(&question, &answers) {
            let _ = socket.send_to(&answer, from).await;
        }
    }
}

fn answer(question: &Message, answers: &Answers) -> Option<Vec<u8>> {
    let query = question.queries.first()?;
    let name = query.name().to_ascii().trim_end_matches('.').to_ascii_lowercase();
    let answer = answers.lock().expect("not poisoned").get(&(name, query.query_type())).cloned();
    let mut message = Message::response(question.metadata.id, OpCode::Query);
    message.metadata.recursion_available = true;
    message.add_query(query.clone());
    match answer.unwrap_or(Answer::Code(ResponseCode::NXDomain)) {
        Answer::None => return None,
        Answer::Code(code) => message.metadata.response_code = code,
        Answer::Records(ttl, list) => {
            for data in list {
                message.add_answer(Record::from_rdata(query.name().clone(), ttl, data));
            }
        }
    }
    message.to_vec().ok()
}
