//! Histogram edges (behaviour.md 11.2 "Buckets").

/// Logarithmic edges from `min` to `max`, after a leading 0 that counts, rounded to two significant digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buckets {
    /// The middle of the variables that change them, `DYN_METRICS_<kind>_MIN`; None: nothing does.
    kind: Option<&'static str>,
    pub min: f64,
    pub max: f64,
    pub count: usize,
}

/// More edges than this make a family dearer to scrape than it is worth.
const MAX_COUNT: usize = 512;

impl Buckets {
    pub const REQUEST_DURATION: Self = Self::of("REQUEST_DURATION", 1.0, 512.0, 10);
    pub const TTFT: Self = Self::of("TTFT", 0.001, 480.0, 18);
    pub const ITL: Self = Self::of("ITL", 0.001, 80.0, 20);
    /// Also of cached tokens.
    pub const INPUT_SEQUENCE: Self = Self::of("INPUT_SEQUENCE", 50.0, 128_000.0, 12);
    pub const OUTPUT_SEQUENCE: Self = Self::of("OUTPUT_SEQUENCE", 50.0, 32_000.0, 10);
    pub const EMBEDDING_LATENCY: Self = Self::of("EMBEDDING_LATENCY", 0.001, 10.0, 14);

    /// Those that the environment may change.
    pub const KINDS: [Self; 6] = [
        Self::REQUEST_DURATION,
        Self::TTFT,
        Self::ITL,
        Self::INPUT_SEQUENCE,
        Self::OUTPUT_SEQUENCE,
        Self::EMBEDDING_LATENCY,
    ];

    pub const fn new(min: f64, max: f64, count: usize) -> Self {
        Self { kind: None, min, max, count }
    }

    const fn of(kind: &'static str, min: f64, max: f64, count: usize) -> Self {
        Self { kind: Some(kind), min, max, count }
    }

    /// The middle of the variables that change them.
    pub const fn kind(&self) -> Option<&'static str> {
        self.kind
    }

    /// Are they of the same kind?
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.kind.is_some() && self.kind == other.kind
    }

    /// The variables that change them.
    pub fn variables(&self) -> Vec<String> {
        let of = |kind| ["MIN", "MAX", "COUNT"].map(|part| format!("DYN_METRICS_{kind}_{part}"));
        self.kind.map(of).into_iter().flatten().collect()
    }

    /// The same, unless all of `DYN_METRICS_<kind>_MIN`, `_MAX` and `_COUNT` that are set make valid edges. One bad
    /// value reverts all three, and the text says which.
    pub fn configured(self, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, (Self, String)> {
        let mut buckets = self;
        let names = self.variables();
        for (i, name) in names.iter().enumerate() {
            let Some(text) = env(name) else { continue };
            let parsed = match i {
                0 => text.trim().parse().map(|value| buckets.min = value).ok(),
                1 => text.trim().parse().map(|value| buckets.max = value).ok(),
                _ => text.trim().parse().map(|value| buckets.count = value).ok(),
            };
            if parsed.is_none() {
                return Err((self, format!("{name}: expected a number, found {text:?}")));
            }
        }
        let ordered = buckets.min > 0.0 && buckets.max > buckets.min && buckets.max.is_finite();
        if !ordered || !(1..=MAX_COUNT).contains(&buckets.count) {
            return Err((
                self,
                format!(
                    "DYN_METRICS_{}_*: expected 0 < MIN < MAX and COUNT from 1 to {MAX_COUNT}, found {} {} {}",
                    self.kind.unwrap_or_default(),
                    buckets.min,
                    buckets.max,
                    buckets.count
                ),
            ));
        }
        Ok(buckets)
    }

    /// The edges, growing. Edges that round to the same value are one.
    pub fn edges(&self) -> Vec<f64> {
        let logarithmic = self.count.saturating_sub(1);
        let mut edges = vec![0.0];
        for i in 0..logarithmic {
            let share = if logarithmic == 1 { 1.0 } else { i as f64 / (logarithmic - 1) as f64 };
            edges.push(two_digits(self.min * (self.max / self.min).powf(share)));
        }
        edges.dedup();
        edges
    }
}

/// `count` edges from `first` on, each `factor` times the one before.
pub fn powers(first: f64, factor: f64, count: i32) -> Vec<f64> {
    (0..count).map(|power| two_digits(first * factor.powi(power))).collect()
}

/// Edges of a share: 0 to 1 by twentieths.
pub fn shares() -> Vec<f64> {
    (0..=20).map(|twentieth| f64::from(twentieth) / 20.0).collect()
}

/// Rounds to two significant digits. By way of text, so that 0.0023 is the double a reader would write.
fn two_digits(value: f64) -> f64 {
    format!("{value:.1e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_as_documented() {
        assert_eq!(
            Buckets::REQUEST_DURATION.edges(),
            [0.0, 1.0, 2.2, 4.8, 10.0, 23.0, 49.0, 110.0, 230.0, 510.0]
        );
        for buckets in Buckets::KINDS {
            let edges = buckets.edges();
            assert_eq!(edges.len(), buckets.count);
            assert!(edges.is_sorted_by(|a, b| a < b), "{edges:?}");
            assert_eq!(edges[1], buckets.min);
        }
        assert_eq!(Buckets::new(1.0, 1.1, 10).edges(), [0.0, 1.0, 1.1]);
        assert_eq!(Buckets::new(1.0, 9.0, 1).edges(), [0.0]);
        assert_eq!(powers(0.01, 3.0, 4), [0.01, 0.03, 0.09, 0.27]);
        assert_eq!((shares().len(), shares()[1], shares()[20]), (21, 0.05, 1.0));
    }

    #[test]
    fn one_bad_value_reverts_all_three() {
        let env = |pairs: &'static [(&'static str, &'static str)]| {
            move |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        };
        let good = env(&[("DYN_METRICS_TTFT_MIN", "0.5"), ("DYN_METRICS_TTFT_COUNT", "4")]);
        assert_eq!(Buckets::TTFT.configured(&good), Ok(Buckets::of("TTFT", 0.5, 480.0, 4)));
        let bad: [&[(&str, &str)]; 3] = [
            &[("DYN_METRICS_TTFT_MIN", "0.5"), ("DYN_METRICS_TTFT_COUNT", "0")],
            &[("DYN_METRICS_TTFT_MAX", "many")],
            &[("DYN_METRICS_TTFT_MIN", "1000")],
        ];
        for pairs in bad {
            let (kept, reason) = Buckets::TTFT.configured(&env(pairs)).unwrap_err();
            assert_eq!(kept, Buckets::TTFT);
            assert!(reason.contains("DYN_METRICS_TTFT"), "{reason}");
        }
    }
}
