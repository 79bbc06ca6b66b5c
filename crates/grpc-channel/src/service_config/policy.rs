//! `loadBalancingConfig`: the first policy with a known name.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tidegate_balance::{
    FailurePercentageEjection, LeastRequest, OutlierDetection, PeakEwma, PickFirst, RingHash, RoundRobin,
    SuccessRateEjection, WeightedRoundRobin,
};

use super::duration::ProtoDuration;
use super::{ServiceConfig, ServiceConfigError};

type PolicyList = Vec<Map<String, Value>>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawPickFirst {
    shuffle_address_list: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawLeastRequest {
    choice_count: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawRingHash {
    min_ring_size: Option<u64>,
    max_ring_size: Option<u64>,
    request_hash_header: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawOutlierDetection {
    interval: Option<ProtoDuration>,
    base_ejection_time: Option<ProtoDuration>,
    max_ejection_time: Option<ProtoDuration>,
    max_ejection_percent: Option<u32>,
    success_rate_ejection: Option<RawSuccessRate>,
    failure_percentage_ejection: Option<RawFailurePercentage>,
    child_policy: Option<PolicyList>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawSuccessRate {
    stdev_factor: Option<u32>,
    enforcement_percentage: Option<u32>,
    minimum_hosts: Option<usize>,
    request_volume: Option<u32>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawFailurePercentage {
    threshold: Option<u32>,
    enforcement_percentage: Option<u32>,
    minimum_hosts: Option<usize>,
    request_volume: Option<u32>,
}

/// Maximum ring size, as in grpc-go.
const RING_MAX: u64 = 8 * 1024 * 1024;

/// Reads the policy. The deprecated single name is used only without a list.
pub(super) fn choose(
    config: &mut ServiceConfig,
    list: Option<PolicyList>,
    name: Option<&str>,
) -> Result<(), ServiceConfigError> {
    match (list, name) {
        (Some(list), _) => from_list(config, &list),
        (None, Some(name)) => {
            // An unknown name is ignored. Names can be in lower or upper case.
            let body = Value::Object(Map::new());
            read(config, &name.to_ascii_lowercase(), &body).map(drop)
        }
        (None, None) => Ok(()),
    }
}

fn from_list(config: &mut ServiceConfig, list: &PolicyList) -> Result<(), ServiceConfigError> {
    for candidate in list {
        let mut entries = candidate.iter();
        let (Some((name, body)), None) = (entries.next(), entries.next()) else {
            return Err(ServiceConfigError::new("each entry of loadBalancingConfig must have one name"));
        };
        if read(config, name, body)? {
            return Ok(());
        }
    }
    if list.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = list.iter().flat_map(Map::keys).map(String::as_str).collect();
    Err(ServiceConfigError::new(format!("no policy of {names:?} is known; add round_robin as the last")))
}

/// Returns false if the name is unknown.
fn read(config: &mut ServiceConfig, name: &str, body: &Value) -> Result<bool, ServiceConfigError> {
    match name {
        "pick_first" => {
            let raw: RawPickFirst = body_of(name, body)?;
            config.policy = Some(Arc::new(PickFirst { shuffle: raw.shuffle_address_list }));
        }
        "round_robin" => config.policy = Some(Arc::new(RoundRobin)),
        // Weights are those of the resolver: load reports, which grpc-go uses, are not read.
        "weighted_round_robin" => config.policy = Some(Arc::new(WeightedRoundRobin)),
        "least_request_experimental" => config.policy = Some(Arc::new(least_request(name, body)?)),
        "peak_ewma_experimental" => config.policy = Some(Arc::new(PeakEwma)),
        "ring_hash_experimental" => ring_hash(config, name, body)?,
        "outlier_detection_experimental" => outlier_detection(config, name, body)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn body_of<B: DeserializeOwned>(name: &str, body: &Value) -> Result<B, ServiceConfigError> {
    serde_json::from_value(body.clone()).map_err(|error| ServiceConfigError::new(format!("{name}: {error}")))
}

fn least_request(name: &str, body: &Value) -> Result<LeastRequest, ServiceConfigError> {
    let raw: RawLeastRequest = body_of(name, body)?;
    match raw.choice_count.unwrap_or(2) {
        0 | 1 => Err(ServiceConfigError::new(format!("{name}: choiceCount must be 2 or more"))),
        count => Ok(LeastRequest::new(count.min(10) as usize)),
    }
}

fn ring_hash(config: &mut ServiceConfig, name: &str, body: &Value) -> Result<(), ServiceConfigError> {
    let raw: RawRingHash = body_of(name, body)?;
    let (min, max) = (raw.min_ring_size.unwrap_or(1024), raw.max_ring_size.unwrap_or(4096).min(RING_MAX));
    if min == 0 || max == 0 || min > max {
        return Err(ServiceConfigError::new(format!("{name}: minRingSize must be from 1 to maxRingSize")));
    }
    // `minRingSize` has no effect: the points of an endpoint do not depend on the number of endpoints.
    config.policy = Some(Arc::new(RingHash::new(max as usize)));
    config.hash_header =
        raw.request_hash_header.filter(|header| !header.is_empty()).map(|header| header.to_lowercase());
    Ok(())
}

fn outlier_detection(config: &mut ServiceConfig, name: &str, body: &Value) -> Result<(), ServiceConfigError> {
    let raw: RawOutlierDetection = body_of(name, body)?;
    let default = OutlierDetection::default();
    let rules = OutlierDetection {
        interval: raw.interval.map_or(default.interval, |time| time.0),
        ejection_time: raw.base_ejection_time.map_or(default.ejection_time, |time| time.0),
        ejection_time_max: raw.max_ejection_time.map_or(default.ejection_time_max, |time| time.0),
        ejected_percent_max: raw.max_ejection_percent.unwrap_or(default.ejected_percent_max),
        success_rate: raw.success_rate_ejection.as_ref().map(RawSuccessRate::rule),
        failure_percentage: raw.failure_percentage_ejection.as_ref().map(RawFailurePercentage::rule),
        consecutive_failures: 0,
    };
    let percents = [
        Some(rules.ejected_percent_max),
        rules.success_rate.map(|rule| rule.enforcement_percent),
        rules.failure_percentage.map(|rule| rule.enforcement_percent),
        rules.failure_percentage.map(|rule| rule.threshold_percent),
    ];
    if percents.into_iter().flatten().any(|percent| percent > 100) {
        return Err(ServiceConfigError::new(format!("{name}: a percentage is more than 100")));
    }
    let Some(child) = raw.child_policy else {
        return Err(ServiceConfigError::new(format!("{name}: childPolicy is missing")));
    };
    from_list(config, &child)?;
    config.outlier_detection = Some(rules);
    Ok(())
}

impl RawSuccessRate {
    fn rule(&self) -> SuccessRateEjection {
        let default = SuccessRateEjection::default();
        SuccessRateEjection {
            stdev_factor: self.stdev_factor.unwrap_or(default.stdev_factor),
            enforcement_percent: self.enforcement_percentage.unwrap_or(default.enforcement_percent),
            endpoints_min: self.minimum_hosts.unwrap_or(default.endpoints_min),
            requests_min: self.request_volume.unwrap_or(default.requests_min),
        }
    }
}

impl RawFailurePercentage {
    fn rule(&self) -> FailurePercentageEjection {
        let default = FailurePercentageEjection::default();
        FailurePercentageEjection {
            threshold_percent: self.threshold.unwrap_or(default.threshold_percent),
            enforcement_percent: self.enforcement_percentage.unwrap_or(default.enforcement_percent),
            endpoints_min: self.minimum_hosts.unwrap_or(default.endpoints_min),
            requests_min: self.request_volume.unwrap_or(default.requests_min),
        }
    }
}
