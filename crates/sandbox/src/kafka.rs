//! A Kafka of one's own, for a test or a bench (feature `kafka`).
//!
//! [`Broker`] is a real Apache Kafka in KRaft mode, broker and controller in one process, in a temporary folder and on
//! free ports of this machine. It needs a JDK; the jars are fetched once through Maven into the cache. It is gone, with
//! its folder, when the value is dropped or when the process that owns it dies.
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

pub use broker::{Broker, Builder};
pub use error::Error;
