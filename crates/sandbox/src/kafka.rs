//! An Apache Kafka broker for a test or a bench (feature `kafka`).
//!
//! [`Broker`] is a real Apache Kafka in KRaft mode: broker and controller in one process, in a temporary folder, on
//! free ports of this machine. It needs a JDK; the jars are downloaded once through Maven into the cache. Dropping the
//! value, or the death of its process, stops the broker and removes its folder.
//!
//! ```no_run
//! use tidegate_sandbox::kafka::Broker;
//!
//! let broker = Broker::builder().start()?;
//! broker.create_topic("orders", 3, &[])?;
//! broker.fill("orders", (0..1_000).map(|n| (format!("key-{}", n % 10), n.to_string())))?;
//! println!("bootstrap.servers={}", broker.bootstrap());
//! broker.stop()?;
//! # Ok::<(), tidegate_sandbox::kafka::Error>(())
//! ```

mod broker;
mod error;
mod jars;
mod java;
mod properties;
mod topics;

pub use broker::{Broker, BrokerBuilder};
pub use error::Error;
