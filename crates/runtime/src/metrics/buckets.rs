//! Histogram edges (behaviour.md 11.2 "Buckets").

/// Logarithmic edges from `min` to `max`, after a leading 0 that counts, rounded to two significant digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buckets {
    pub min: f64,
    pub max: f64,
    pub count: usize,
}

/// More edges than this make a family dearer to scrape than it is worth.
const MAX_COUNT: usize = 512;

impl Buckets {
    pub const REQUEST_DURATION: Self = Self::new(1.0, 512.0, 10);
    pub const TTFT: Self = Self::new(0.001, 480.0, 18);
    pub const ITL: Self = Self::new(0.001, 80.0, 20);
    /// Also of cached tokens.
    pub const INPUT_SEQUENCE: Self = Self::new(50.0, 128_000.0, 12);
    pub const OUTPUT_SEQUENCE: Self = Self::new(50.0, 32_000.0, 10);

    pub const fn new(min: f64, max: f64, count: usize) -> Self {
        Self { min, max, count }
    }

    /// The same, unless all of `DYN_METRICS_<kind>_MIN`, `_MAX` and `_COUNT` that are set make valid edges. One bad
    /// value reverts all three, and the text says which.
    pub fn configured(
        self,
        kind: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, (Self, String)> {
        let mut buckets = self;
        let names = ["MIN", "MAX", "COUNT"].map(|part| format!("DYN_METRICS_{kind}_{part}"));
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
                    "DYN_METRICS_{kind}_*: expected 0 < MIN < MAX and COUNT from 1 to {MAX_COUNT}, found {} {} {}",
                    buckets.min, buckets.max, buckets.count
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
        for buckets in [Buckets::TTFT, Buckets::ITL, Buckets::INPUT_SEQUENCE, Buckets::OUTPUT_SEQUENCE] {
            let edges = buckets.edges();
            assert_eq!(edges.len(), buckets.count);
            assert!(edges.is_sorted_by(|a, b| a < b), "{edges:?}");
            assert_eq!(edges[1], buckets.min);
        }
        assert_eq!(Buckets::new(1.0, 1.1, 10).edges(), [0.0, 1.0, 1.1]);
        assert_eq!(Buckets::new(1.0, 9.0, 1).edges(), [0.0]);
    }

    #[test]
    fn one_bad_value_reverts_all_three() {
        let env = |pairs: &'static [(&'static str, &'static str)]| {
            move |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string())
        };
        let good = env(&[("DYN_METRICS_TTFT_MIN", "0.5"), ("DYN_METRICS_TTFT_COUNT", "4")]);
        assert_eq!(Buckets::TTFT.configured("TTFT", &good), Ok(Buckets::new(0.5, 480.0, 4)));
        let bad: [&[(&str, &str)]; 3] = [
            &[("DYN_METRICS_TTFT_MIN", "0.5"), ("DYN_METRICS_TTFT_COUNT", "0")],
            &[("DYN_METRICS_TTFT_MAX", "many")],
            &[("DYN_METRICS_TTFT_MIN", "1000")],
        ];
        for pairs in bad {
            let (kept, reason) = Buckets::TTFT.configured("TTFT", &env(pairs)).unwrap_err();
            assert_eq!(kept, Buckets::TTFT);
            assert!(reason.contains("DYN_METRICS_TTFT"), "{reason}");
        }
    }
}
