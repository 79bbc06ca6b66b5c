//! Metrics of the gateway itself: readiness, reloads and certificates.

use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_proxy::plane::{CertificateExpiry, Configuration, Lifecycle, Phase};

use super::{
    MetricsPage,
    family::{MetricSample, MetricType},
};

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

impl MetricsPage {
    pub(super) fn state(&mut self, lifecycle: &Lifecycle, config: &Configuration) {
        let is_ready = matches!(lifecycle.phase(), Phase::Active | Phase::Paused);
        self.one("ready", "1 if GET /ready answers 200", &[], f64::from(u8::from(is_ready)));
        let reload = config.last_reload();
        let is_success = f64::from(u8::from(reload.is_success));
        self.one("config_last_reload_successful", "1 if the last reload succeeded", &[], is_success);
        let help = "Time of the last successful reload, or of the start";
        self.one("config_last_reload_success_timestamp_seconds", help, &[], seconds(reload.succeeded_at));
        let failures = MetricSample::number(MetricType::Counter, &[], reload.failures as f64);
        self.family("config_reload_failures_total", "Failed reloads", MetricType::Counter, vec![failures]);
        let lost = config.log.as_ref().map_or(0, |log| log.lost_lines());
        let lost = MetricSample::number(MetricType::Counter, &[], lost as f64);
        self.family("log_lost_lines_total", "Lines that log.file did not take", MetricType::Counter, vec![lost]);
        let sample = |expiry: &CertificateExpiry| {
            let file = expiry.file.display().to_string();
            let labels = [("file", file.as_str()), ("shown_to", expiry.shown_to)];
            MetricSample::number(MetricType::Gauge, &labels, expiry.until.as_secs_f64())
        };
        let samples = config.setup().expiries.iter().map(sample).collect();
        let help = "End of the validity of a certificate that the gateway shows";
        self.family("certificate_expiry_timestamp_seconds", help, MetricType::Gauge, samples);
    }
}
