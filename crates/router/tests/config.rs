//! Configuration as users write it.

use dynamo_router::{Config, Mode};

#[test]
fn defaults_are_the_reference_ones() {
    let config = Config::default();
    assert_eq!(
        (config.overlap_score_credit, config.overlap_score_credit_decay, config.prefill_load_scale),
        (1.0, 0.0, 1.0)
    );
    assert_eq!((config.host_weight, config.disk_weight, config.shared_weight), (0.75, 0.25, 0.5));
    assert_eq!((config.decode_active_request_weight, config.temperature), (0.0, 0.0));
    assert!(config.assume_kv_reuse && !config.track_output_blocks);
    assert_eq!(config.validate(), Ok(()));
}

#[test]
fn modes_have_their_usual_names_everywhere() {
    for mode in Mode::ALL {
        assert_eq!(mode.name().parse::<Mode>(), Ok(mode));
        assert_eq!(serde_json::to_value(mode).unwrap(), mode.name());
        assert_eq!(mode.to_string(), mode.name());
    }
    let error = "kvv".parse::<Mode>().unwrap_err();
    assert!(error.contains("'kvv'") && error.contains("power-of-two"), "{error}");
}

#[test]
fn unknown_keys_and_meaningless_weights_are_refused_by_name() {
    let config: Config = serde_json::from_str(r#"{"mode": "power-of-two", "temperature": 0.3}"#).unwrap();
    assert_eq!((config.mode, config.temperature, config.host_weight), (Mode::PowerOfTwo, 0.3, 0.75));
    let unknown = serde_json::from_str::<Config>(r#"{"temprature": 0.3}"#).unwrap_err();
    assert!(unknown.to_string().contains("temprature"), "{unknown}");
    for (value, shown) in [(-1.0, "-1"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        let error = Config { disk_weight: value, ..Config::default() }.validate().unwrap_err();
        assert!(error.contains("disk_weight") && error.contains(shown), "{error}");
    }
}
