//! The shared state of a journal and its producers.

use std::sync::{Arc, atomic::AtomicUsize};

use crate::{
    config::JournalConfig,
    memory_budget::MemoryBudget,
    producer_record::{Ack, ProducerRecord},
    stripe::Stripe,
    timer::WakeTimer,
};

/// The shared state of a journal and its producers.
pub(crate) struct JournalContext {
    pub(crate) config: Arc<JournalConfig>,
    pub(crate) budget: Arc<MemoryBudget>,
    pub(crate) stripes: Box<[Arc<Stripe>]>,
    pub(crate) timer: Arc<WakeTimer>,
    pub(crate) next_stripe: AtomicUsize,
}

impl JournalContext {
    pub(crate) fn stripe(&self, index: u16) -> &Stripe {
        &self.stripes[usize::from(index)]
    }

    /// The ack level of a record, its own or that of its class.
    pub(crate) fn ack(&self, record: &ProducerRecord<'_>) -> Ack {
        let class = self.config.classes.get(usize::from(record.class.index()));
        record.ack.or(class.map(|class| class.ack)).unwrap_or_default()
    }

    /// Wakes the timer because of a nearer deadline.
    pub(crate) fn wake_timer(&self) {
        self.timer.wake();
    }
}
