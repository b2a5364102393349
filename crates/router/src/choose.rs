//! Rules that pick one of several candidates, given what each is worth and a source of draws.
//!
//! Equals are chosen between at random, so no candidate is favoured for its place in a list (R37).

use dynamo_types::draw;

/// Reproducible draws: a seed and how many were made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws {
    seed: u64,
    position: u64,
}

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, position: 0 }
    }

    /// A uniform index below `len`.
    pub(crate) fn index(&mut self, len: usize) -> usize {
        draw::index(self.seed, self.next(), len)
    }

    /// Uniform in `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        draw::unit(self.seed, self.next())
    }

    fn next(&mut self) -> u64 {
        let position = self.position;
        self.position = position.wrapping_add(1);
        position
    }
}

/// The index of the least value, at random among equals. 0 if there are none.
pub(crate) fn cheapest(costs: &[f64], draws: &mut Draws) -> usize {
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let ties = costs.iter().filter(|cost| **cost == least).count();
    let nth = if ties > 1 { draws.index(ties) } else { 0 };
    let mut equals = costs.iter().enumerate().filter(|(_, cost)| **cost == least);
    equals.nth(nth).map_or(0, |(index, _)| index)
}

/// Softmax over costs normalised to 0..1: `p ~ exp(-(cost - min) / ((max - min) * temperature))`. The cheapest at
/// temperature 0.
pub(crate) fn by_temperature(costs: &[f64], temperature: f64, draws: &mut Draws) -> usize {
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let most = costs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if temperature <= 0.0 || most <= least {
        return cheapest(costs, draws);
    }
    let weight = |cost: &f64| (-(cost - least) / ((most - least) * temperature)).exp();
    let total: f64 = costs.iter().map(weight).sum();
    let mut left = draws.unit() * total;
    for (index, cost) in costs.iter().enumerate() {
        left -= weight(cost);
        if left < 0.0 {
            return index;
        }
    }
    // Rounding can leave a sliver behind the last one.
    costs.len().saturating_sub(1)
}

/// Two different ones at random, the one with the lesser load.
pub(crate) fn better_of_two(len: usize, load: impl Fn(usize) -> u32, draws: &mut Draws) -> usize {
    if len < 2 {
        return 0;
    }
    let first = draws.index(len);
    let mut second = draws.index(len - 1);
    second += usize::from(second >= first);
    // The order of the pair is random, so keeping the first on a tie is fair.
    if load(second) < load(first) { second } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(len: usize, mut choose: impl FnMut(&mut Draws) -> usize) -> Vec<u32> {
        let mut draws = Draws::new(11);
        let mut counts = vec![0; len];
        (0..10_000).for_each(|_| counts[choose(&mut draws)] += 1);
        counts
    }

    #[test]
    fn r37_cheapest_draws_among_equals_only() {
        let counts = frequencies(4, |draws| cheapest(&[2.0, 1.0, 1.0, 3.0], draws));
        assert_eq!((counts[0], counts[3]), (0, 0));
        assert!((4800..5200).contains(&counts[1]), "{counts:?}");
        assert_eq!(cheapest(&[], &mut Draws::new(1)), 0);
    }

    #[test]
    fn temperature_follows_the_formula() {
        let costs = [10.0, 15.0, 20.0];
        let weights: Vec<f64> = [0.0, 0.5, 1.0].iter().map(|x: &f64| (-x / 0.5).exp()).collect();
        let total: f64 = weights.iter().sum();
        let counts = frequencies(3, |draws| by_temperature(&costs, 0.5, draws));
        for (count, weight) in counts.iter().zip(weights) {
            let expected = 10_000.0 * weight / total;
            assert!((f64::from(*count) - expected).abs() < 200.0, "{counts:?} {expected}");
        }
        assert_eq!(frequencies(3, |draws| by_temperature(&costs, 0.0, draws)), [10_000, 0, 0]);
        let equal = frequencies(2, |draws| by_temperature(&[4.0, 4.0], 0.7, draws));
        assert!((4800..5200).contains(&equal[0]), "{equal:?}");
    }

    #[test]
    fn better_of_two_never_takes_the_busiest_and_is_fair_among_equals() {
        let loads = [5, 1, 1, 9];
        let counts = frequencies(4, |draws| better_of_two(4, |index| loads[index], draws));
        assert_eq!(counts[3], 0);
        // 0 wins against 3 only: one pair of six.
        assert!((1500..1850).contains(&counts[0]), "{counts:?}");
        assert!((3900..4450).contains(&counts[1]) && (3900..4450).contains(&counts[2]), "{counts:?}");
    }
}
