//! Options of TCP sockets.

use std::{io, net::SocketAddr, time::Duration};

use socket2::TcpKeepalive;

/// Sets `TCP_NODELAY` and keep-alive. Accepted connections inherit them from their listener. `address` is that of the
/// peer, or the bound one.
pub(crate) fn set_tcp_options(socket: &socket2::Socket, address: Option<SocketAddr>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if address.is_some_and(|address| address.ip().is_loopback()) {
        // A loopback connection has no congestion. Reno does the least work of all controls, and every kernel has it;
        // the default of the system may be BBR, which measures and paces.
        let _ = socket.set_tcp_congestion(b"reno");
    }
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));
    socket.set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use socket2::{Domain, SockRef, Type};

    use super::*;

    fn congestion(socket: &impl AsFd) -> Vec<u8> {
        let name = SockRef::from(socket).tcp_congestion().expect("TCP_CONGESTION");
        name.into_iter().take_while(|byte| *byte != 0).collect()
    }

    #[test]
    fn loopback_uses_reno() {
        let usual = congestion(&socket2::Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket"));
        for (address, expected) in [("127.0.0.1:1", &b"reno"[..]), ("192.0.2.1:1", &usual)] {
            let socket = socket2::Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            set_tcp_options(&socket, Some(address.parse().expect("an address"))).expect("a TCP socket");
            assert_eq!(congestion(&socket), expected, "{address}");
        }
    }

    #[test]
    fn accepted_sockets_inherit_the_options() {
        let listener = crate::Listener::tcp("127.0.0.1:0".parse().expect("an address"), 1).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let client = std::net::TcpStream::connect(address).expect("a client");
        let accepted = SockRef::from(&listener).accept().expect("a connection").0;
        assert_eq!(congestion(&accepted), b"reno");
        drop(client);
    }
}
