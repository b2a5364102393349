//! What can be set about traces. Defaults are OpenTelemetry's own where it has some.

use super::sampler::{Sampler, SamplerKind};
use serde::{Deserialize, Serialize};

/// How spans are written for the collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    #[default]
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
    #[serde(rename = "http/json")]
    HttpJson,
    /// Known, because it is another program's default, and refused when spans are to be exported.
    #[serde(rename = "grpc")]
    Grpc,
}

/// Settings of the export of traces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Off, nothing is recorded; trace ids are in the log all the same.
    pub export: bool,
    /// The collector; `/v1/traces` is added to its path.
    pub endpoint: String,
    /// The whole address, if it is another one.
    pub traces_endpoint: Option<String>,
    pub protocol: Protocol,
    pub sampler: SamplerKind,
    /// Share of the traces that begin here, 0 to 1, for samplers that go by trace id.
    pub sample_ratio: f64,
    pub service_name: String,
    /// Spans that wait for the collector; further ones are dropped and counted. About a kilobyte each.
    pub queue_spans: usize,
    /// Spans of one request to the collector.
    pub batch_spans: usize,
    /// Longest wait of a span for others to go with.
    pub delay_ms: u64,
    /// Longest request to the collector.
    pub timeout_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            export: false,
            endpoint: "http://localhost:4318".into(),
            traces_endpoint: None,
            protocol: Protocol::default(),
            sampler: SamplerKind::default(),
            sample_ratio: 1.0,
            service_name: "dynamo".into(),
            queue_spans: 2048,
            batch_spans: 512,
            delay_ms: 5000,
            timeout_ms: 10_000,
        }
    }
}

/// Most of [`Options::queue_spans`]: a gigabyte.
const MAX_QUEUE_SPANS: usize = 1 << 20;

impl Options {
    /// Refuses what cannot work. The message names the field, the limit and the value.
    pub fn validate(&self) -> Result<(), String> {
        if !(0.0..=1.0).contains(&self.sample_ratio) {
            return Err(format!("sample_ratio must be between 0 and 1, found {}", self.sample_ratio));
        }
        if !(1..=MAX_QUEUE_SPANS).contains(&self.queue_spans) {
            let found = self.queue_spans;
            return Err(format!("queue_spans must be between 1 and {MAX_QUEUE_SPANS}, found {found}"));
        }
        if !(1..=self.queue_spans).contains(&self.batch_spans) {
            let (found, most) = (self.batch_spans, self.queue_spans);
            return Err(format!("batch_spans must be between 1 and queue_spans ({most}), found {found}"));
        }
        if self.sampler == SamplerKind::Other {
            return Err(
                "sampler must be always_on, always_off, traceidratio or one of these after parentbased_, found another".into()
            );
        }
        if self.protocol == Protocol::Grpc {
            return Err("protocol must be http/protobuf or http/json, found grpc".into());
        }
        if self.timeout_ms == 0 {
            return Err("timeout_ms must be above 0, found 0".into());
        }
        Ok(())
    }

    pub(super) fn sampler(&self) -> Sampler {
        Sampler { kind: self.sampler, ratio: self.sample_ratio }
    }

    /// Where spans go.
    pub(super) fn address(&self) -> String {
        match &self.traces_endpoint {
            Some(whole) => whole.clone(),
            None => format!("{}/v1/traces", self.endpoint.trim_end_matches('/')),
        }
    }
}
