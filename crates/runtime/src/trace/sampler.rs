//! Which traces are recorded. Names and meaning are those of OpenTelemetry's `OTEL_TRACES_SAMPLER`.

use dynamo_types::TraceId;
use serde::{Deserialize, Serialize};

/// The rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplerKind {
    AlwaysOn,
    AlwaysOff,
    /// By trace id, whatever the caller decided.
    Traceidratio,
    ParentbasedAlwaysOn,
    ParentbasedAlwaysOff,
    /// As the caller decided; by trace id if there is none.
    #[default]
    ParentbasedTraceidratio,
    /// One that other programs have. Refused when spans are to be exported.
    #[serde(other)]
    Other,
}

/// The rule with its share.
#[derive(Clone, Copy, Debug)]
pub struct Sampler {
    pub kind: SamplerKind,
    /// 0 to 1.
    pub ratio: f64,
}

impl Sampler {
    /// Is this trace recorded? `parent`: what the caller decided, if there is one.
    pub fn decides(self, trace: TraceId, parent: Option<bool>) -> bool {
        match (self.kind, parent) {
            (
                SamplerKind::ParentbasedAlwaysOn
                | SamplerKind::ParentbasedAlwaysOff
                | SamplerKind::ParentbasedTraceidratio,
                Some(parent),
            ) => parent,
            (SamplerKind::AlwaysOn | SamplerKind::ParentbasedAlwaysOn, _) => true,
            (SamplerKind::AlwaysOff | SamplerKind::ParentbasedAlwaysOff | SamplerKind::Other, _) => false,
            (SamplerKind::Traceidratio | SamplerKind::ParentbasedTraceidratio, _) => self.by_id(trace),
        }
    }

    /// From the id alone, so that every process that sees the trace decides alike: the lower 63 bits below the ratio.
    fn by_id(self, trace: TraceId) -> bool {
        const WHOLE: f64 = (1u64 << 63) as f64;
        let bits = (trace.0 as u64) >> 1;
        self.ratio >= 1.0 || (bits as f64) < self.ratio.max(0.0) * WHOLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::draw;

    #[test]
    fn the_share_of_new_traces_is_the_ratio_and_depends_on_the_id_only() {
        for (ratio, low, high) in [(0.0, 0, 0), (0.25, 2300, 2700), (1.0, 10_000, 10_000)] {
            let sampler = Sampler { kind: SamplerKind::ParentbasedTraceidratio, ratio };
            let ids = || (0..10_000).map(|n| TraceId(u128::from(draw::bits(1, n))));
            let taken = ids().filter(|id| sampler.decides(*id, None)).count();
            assert!((low..=high).contains(&taken), "{ratio}: {taken}");
            assert!(ids().all(|id| sampler.decides(id, None) == sampler.decides(id, None)));
        }
    }

    #[test]
    fn parents_decide_where_the_rule_says_so() {
        let decides = |kind, parent| Sampler { kind, ratio: 0.0 }.decides(TraceId(7), parent);
        for kind in [
            SamplerKind::ParentbasedAlwaysOn,
            SamplerKind::ParentbasedAlwaysOff,
            SamplerKind::ParentbasedTraceidratio,
        ] {
            assert!(decides(kind, Some(true)) && !decides(kind, Some(false)), "{kind:?}");
        }
        assert!(decides(SamplerKind::AlwaysOn, Some(false)) && !decides(SamplerKind::AlwaysOff, Some(true)));
        assert!(!decides(SamplerKind::Traceidratio, Some(true)));
        assert!(decides(SamplerKind::ParentbasedAlwaysOn, None));
    }
}
