//! How the router decides. Names and defaults of the cost terms: behaviour.md 2.2.

use crate::thresholds::Thresholds;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The rule by which a worker is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// In turn over everything that can serve.
    RoundRobin,
    /// Shuffled rounds: uniform for each request, and each candidate once per round.
    Random,
    /// Fewest requests in flight.
    LeastLoaded,
    /// Two at random, the one with fewer requests in flight.
    PowerOfTwo,
    /// Least cost by cached prefix and load.
    #[default]
    Kv,
}

impl Mode {
    pub const ALL: [Self; 5] =
        [Self::RoundRobin, Self::Random, Self::LeastLoaded, Self::PowerOfTwo, Self::Kv];

    pub fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round-robin",
            Self::Random => "random",
            Self::LeastLoaded => "least-loaded",
            Self::PowerOfTwo => "power-of-two",
            Self::Kv => "kv",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = String;

    /// The error names what was found and what is known.
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            format!("router mode '{text}' is not known; known are {known}")
        })
    }
}

/// Weights and switches. All loads are in blocks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub mode: Mode,
    /// Blocks of prefill forgiven per block cached on the device.
    pub overlap_score_credit: f64,
    /// How fast the credit fades with prefill queued above the least busy candidate's; 0 never.
    pub overlap_score_credit_decay: f64,
    /// Blocks forgiven per block found in host memory, on disk, and in a cache that all workers share, each beyond the
    /// tier before it.
    pub host_weight: f64,
    pub disk_weight: f64,
    pub shared_weight: f64,
    /// Weight of a block to prefill against a block to decode.
    pub prefill_load_scale: f64,
    /// Cost of each request in flight.
    pub decode_active_request_weight: f64,
    /// 0 takes the cheapest. Above, the draw is softmax over costs normalised to 0..1.
    pub temperature: f64,
    /// Requests with a common prefix share its blocks on a worker.
    pub assume_kv_reuse: bool,
    /// Count a block each time an answer crosses a block boundary.
    pub track_output_blocks: bool,
    /// Routers of other processes know what this one has booked, and it counts what they have.
    pub replica_sync: bool,
    /// Faults in a row (R31: only those that count against the worker) after which a worker is suspended.
    pub breaker_failures: u32,
    /// For how long, in milliseconds.
    pub breaker_open_ms: u64,
    /// Share of faults, 0 to 1, from which a worker is an outlier, if the others have far fewer; 0: none is.
    pub outlier_error_rate: f64,
    /// Multiple of the others' time per token from which a worker is an outlier; 0: none is.
    pub outlier_latency_ratio: f64,
    /// Answers that a worker is judged by: those of the last milliseconds, and at least so many.
    pub outlier_window_ms: u64,
    pub outlier_min_requests: u32,
    /// Limits that hold for every model until it is given others: see [`Thresholds`].
    pub active_decode_blocks_threshold: Option<f64>,
    pub active_prefill_tokens_threshold: Option<u64>,
    pub active_prefill_tokens_threshold_frac: Option<f64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            mode: Mode::default(),
            overlap_score_credit: 1.0,
            overlap_score_credit_decay: 0.0,
            host_weight: 0.75,
            disk_weight: 0.25,
            shared_weight: 0.5,
            prefill_load_scale: 1.0,
            decode_active_request_weight: 0.0,
            temperature: 0.0,
            assume_kv_reuse: true,
            track_output_blocks: false,
            replica_sync: true,
            breaker_failures: 5,
            // Long enough for a crashed worker to be withdrawn by discovery, short enough to notice a recovery.
            breaker_open_ms: 10_000,
            // Below what the breaker sees as faults in a row.
            outlier_error_rate: 0.3,
            outlier_latency_ratio: 4.0,
            outlier_window_ms: 60_000,
            outlier_min_requests: 16,
            active_decode_blocks_threshold: None,
            active_prefill_tokens_threshold: None,
            active_prefill_tokens_threshold_frac: None,
        }
    }
}

impl Config {
    /// Refuses weights that would make costs meaningless. The message names the field and the value.
    pub fn validate(&self) -> Result<(), String> {
        let fields = [
            ("overlap_score_credit", self.overlap_score_credit),
            ("overlap_score_credit_decay", self.overlap_score_credit_decay),
            ("host_weight", self.host_weight),
            ("disk_weight", self.disk_weight),
            ("shared_weight", self.shared_weight),
            ("prefill_load_scale", self.prefill_load_scale),
            ("decode_active_request_weight", self.decode_active_request_weight),
            ("temperature", self.temperature),
            ("outlier_error_rate", self.outlier_error_rate),
            ("outlier_latency_ratio", self.outlier_latency_ratio),
        ];
        match fields.into_iter().find(|(_, value)| !(value.is_finite() && *value >= 0.0)) {
            Some((name, value)) => Err(format!("router {name} must be a finite number >= 0, found {value}")),
            None => self.thresholds().validate().map_err(|reason| format!("router {reason}")),
        }
    }

    /// The limits that models start with.
    pub fn thresholds(&self) -> Thresholds {
        Thresholds {
            active_decode_blocks_threshold: self.active_decode_blocks_threshold,
            active_prefill_tokens_threshold: self.active_prefill_tokens_threshold,
            active_prefill_tokens_threshold_frac: self.active_prefill_tokens_threshold_frac,
        }
    }
}
