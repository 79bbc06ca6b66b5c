use super::*;

fn policy(text: &str) -> String {
    let config = ServiceConfig::from_json(text).expect(text);
    format!("{:?}", config.policy.expect("a policy"))
}

/// BA-61.
#[test]
fn first_known_policy_is_used() {
    let cases = [
        (r#"{"loadBalancingConfig":[{"round_robin":{}}]}"#, "RoundRobin"),
        (
            r#"{"loadBalancingConfig":[{"xds_new":{"x":1}},{"pick_first":{"shuffleAddressList":true}},{"round_robin":{}}]}"#,
            "PickFirst { shuffle: true }",
        ),
        (
            r#"{"loadBalancingConfig":[{"least_request_experimental":{"choiceCount":50}}]}"#,
            "LeastRequest { choices: 10 }",
        ),
        (r#"{"loadBalancingPolicy":"ROUND_ROBIN"}"#, "RoundRobin"),
        (
            r#"{"loadBalancingPolicy":"pick_first","loadBalancingConfig":[{"weighted_round_robin":{"blackoutPeriod":"10s"}}]}"#,
            "WeightedRoundRobin",
        ),
        (r#"{"loadBalancingConfig":[{"ring_hash_experimental":{}}]}"#, "RingHash { points_max: 4096 }"),
        (
            r#"{"loadBalancingConfig":[{"outlier_detection_experimental":{"childPolicy":[{"round_robin":{}}]}}]}"#,
            "RoundRobin",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(policy(text), expected, "{text}");
    }
}

/// BA-61.
#[test]
fn invalid_body_of_a_known_policy_is_an_error() {
    let invalid = [
        "{",
        r#"{"loadBalancingConfig":{"round_robin":{}}}"#,
        r#"{"loadBalancingConfig":[{"a":{},"b":{}}]}"#,
        r#"{"loadBalancingConfig":[{"unknown":{}}]}"#,
        r#"{"loadBalancingConfig":[{"least_request_experimental":{"choiceCount":1}},{"round_robin":{}}]}"#,
        r#"{"loadBalancingConfig":[{"pick_first":{"shuffleAddressList":"yes"}},{"round_robin":{}}]}"#,
        r#"{"loadBalancingConfig":[{"ring_hash_experimental":{"minRingSize":9000}}]}"#,
        r#"{"loadBalancingConfig":[{"outlier_detection_experimental":
            {"maxEjectionPercent":101,"childPolicy":[{"round_robin":{}}]}}]}"#,
        r#"{"loadBalancingConfig":[{"outlier_detection_experimental":{}}]}"#,
        r#"{"methodConfig":[{"name":[{"method":"x"}]}]}"#,
        r#"{"methodConfig":[{"name":[{},{}]}]}"#,
        r#"{"methodConfig":[{"name":[{}],"timeout":"1"}]}"#,
        r#"{"retryThrottling":{"maxTokens":0,"tokenRatio":1}}"#,
    ];
    for text in invalid {
        let error = ServiceConfig::from_json(text).expect_err(text).to_string();
        assert!(error.starts_with("the service config is refused"), "{error}");
    }
}

fn retry(fields: &str) -> Result<ServiceConfig, ServiceConfigError> {
    ServiceConfig::from_json(&format!(r#"{{"methodConfig":[{{"name":[{{}}],"retryPolicy":{{{fields}}}}}]}}"#))
}

#[test]
fn retry_policies_are_validated() {
    let good = r#""maxAttempts":9,"initialBackoff":"0.1s","maxBackoff":"1s","backoffMultiplier":2,
        "retryableStatusCodes":["unavailable",8]"#;
    let config = retry(good).unwrap();
    let policy = config.method("/a/b").and_then(|method| method.retry.clone()).unwrap();
    assert_eq!((policy.attempts_max, policy.codes), (5, vec![14, 8]));
    for (from, to) in
        [("9", "1"), ("0.1s", "0s"), (":2", ":0"), ("\"unavailable\",8", ""), ("unavailable", "gone"), (",8", ",17")]
    {
        assert!(retry(&good.replacen(from, to, 1)).is_err(), "{from} -> {to}");
    }
}

#[test]
fn method_config_precedes_service_and_default() {
    let text = r#"{"methodConfig":[{"name":[{}],"timeout":"3s"},{"name":[{"service":"a.B"}],"timeout":"2s"},
        {"name":[{"service":"a.B","method":"C"}],"timeout":"1s","waitForReady":true}]}"#;
    let config = ServiceConfig::from_json(text).unwrap();
    for (path, seconds) in [("/a.B/C", 1), ("/a.B/D", 2), ("/a.E/C", 3), ("", 3)] {
        assert_eq!(config.method(path).unwrap().timeout, Some(Duration::from_secs(seconds)), "{path}");
    }
}

#[test]
fn outlier_detection_is_read() {
    let text = r#"{"loadBalancingConfig":[{"outlier_detection_experimental":{"interval":"1s","maxEjectionPercent":30,
        "successRateEjection":{},"failurePercentageEjection":{"threshold":50,"enforcementPercentage":100},
        "childPolicy":[{"least_request_experimental":{}}]}}]}"#;
    let rules = ServiceConfig::from_json(text).unwrap().outlier_detection.unwrap();
    assert_eq!((rules.interval, rules.ejected_percent_max), (Duration::from_secs(1), 30));
    assert_eq!(rules.success_rate, Some(tidegate_balance::SuccessRateEjection::default()));
    assert_eq!(
        rules.failure_percentage.map(|rule| (rule.threshold_percent, rule.enforcement_percent)),
        Some((50, 100))
    );
}
