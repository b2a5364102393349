//! What clients ask: each case has one right answer, whoever gives it and however often it moves.

use crate::client::Manner;
use crate::dice::Dice;
use crate::schedule::Group;
use serde_json::{Value, json};
use std::time::Duration;

/// Names under which the workers of each group serve.
pub(crate) const MOCK_MODEL: &str = "mock";
pub(crate) const REAL_MODEL: &str = "model";

/// Different requests to each group. Some of them begin alike, so that workers have prefixes in their caches.
const MOCK_CASES: usize = 40;
const REAL_CASES: usize = 16;

/// Of so many streams one goes to a real model, which costs a hundred times as much.
const REAL_ONE_IN: usize = 20;

const WORDS: &[&str] = &[
    "river", "stone", "light", "seven", "paper", "green", "winter", "story", "engine", "silver", "garden",
    "letter",
];

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) path: &'static str,
    pub(crate) body: Value,
    /// By the rules it may end with an error once it has begun.
    pub(crate) may_end: bool,
    pub(crate) group: Group,
}

/// All cases of a seed for the groups that are there.
pub(crate) fn cases(seed: u64, has_mock: bool, has_real: bool) -> Vec<Case> {
    let mut dice = Dice::new(seed, 2);
    let mock = (0..if has_mock { MOCK_CASES } else { 0 }).map(|number| (Group::MockWorkers, number));
    let real = (0..if has_real { REAL_CASES } else { 0 }).map(|number| (Group::ModelWorkers, number));
    mock.chain(real).map(|(group, number)| case(&mut dice, group, number)).collect()
}

fn case(dice: &mut Dice, group: Group, number: usize) -> Case {
    let is_real = group == Group::ModelWorkers;
    let tokens = if is_real { dice.between(16, 64) } else { dice.between(40, 240) };
    let text = prompt(dice, if is_real { 24 } else { 160 });
    let mut body = json!({
        "model": if is_real { REAL_MODEL } else { MOCK_MODEL },
        "max_tokens": tokens,
        "temperature": 0,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    // Some end where the model ends, most are held to their length.
    if !number.is_multiple_of(4) {
        body["min_tokens"] = tokens.into();
    }
    // The mock engine says what the seed says, at any temperature.
    if !is_real {
        body["seed"] = dice.between(0, 1 << 20).into();
    }
    let path = if number.is_multiple_of(2) {
        body["messages"] = json!([{"role": "user", "content": text}]);
        "/v1/chat/completions"
    } else {
        body["prompt"] = text.into();
        "/v1/completions"
    };
    let mut may_end = false;
    match number % 8 {
        kind @ (5 | 6) => {
            if kind == 5 {
                body["n"] = 2.into();
            }
            body["temperature"] = 1.into();
            body["seed"] = dice.between(0, 1 << 20).into();
        }
        2 if is_real => {
            body["min_tokens"] = 0.into();
            body["response_format"] = json!({"type": "json_schema", "json_schema": {"name": "things", "schema": {
                "type": "object",
                "properties": {"things": {"type": "array", "minItems": 3, "maxItems": 6,
                    "items": {"enum": WORDS}}},
                "required": ["things"], "additionalProperties": false,
            }}});
            may_end = true;
        }
        _ => {}
    }
    Case { path, body, may_end, group }
}

fn prompt(dice: &mut Dice, longest: u64) -> String {
    let mut words = vec!["Tell", "me", "a", "story", "about"];
    // Shared by many.
    words.extend(WORDS.iter().copied().cycle().take(dice.index(4) * WORDS.len()));
    for _ in 0..dice.between(1, longest) {
        words.push(WORDS[dice.index(WORDS.len())]);
    }
    words.join(" ")
}

/// One client: when it comes, what it asks whom, and how it reads.
#[derive(Clone, Debug)]
pub(crate) struct Visit {
    pub(crate) at: Duration,
    pub(crate) case: usize,
    pub(crate) frontend: usize,
    pub(crate) manner: Manner,
}

/// All clients of a seed, in the order in which they come.
pub(crate) fn visits(
    seed: u64,
    cases: &[Case],
    frontends: usize,
    streams: usize,
    duration: Duration,
) -> Vec<Visit> {
    let mut dice = Dice::new(seed, 3);
    let of = |group: Group| -> Vec<usize> {
        (0..cases.len()).filter(|index| cases[*index].group == group).collect()
    };
    let (mock, real) = (of(Group::MockWorkers), of(Group::ModelWorkers));
    (0..streams)
        .map(|number| {
            let is_real = mock.is_empty() || (!real.is_empty() && dice.one_in(REAL_ONE_IN));
            let group = if is_real { &real } else { &mock };
            let manner = match dice.index(8) {
                0 => Manner::Leaves(dice.index(30)),
                1 => Manner::Slow(Duration::from_millis(dice.between(50, 400))),
                _ => Manner::Plain,
            };
            Visit {
                at: duration.mul_f64(number as f64 / streams.max(1) as f64),
                case: group.get(dice.index(group.len())).copied().unwrap_or_default(),
                frontend: dice.index(frontends),
                manner,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_crowd_of_all_kinds() {
        let cases = cases(3, true, true);
        let crowd = |seed| format!("{:?}", visits(seed, &cases, 3, 2000, Duration::from_secs(240)));
        assert_eq!(crowd(3), crowd(3));
        assert_ne!(crowd(3), crowd(4));
        let all = visits(3, &cases, 3, 2000, Duration::from_secs(240));
        assert!(all.iter().any(|visit| matches!(visit.manner, Manner::Leaves(_))));
        assert!(all.iter().any(|visit| matches!(visit.manner, Manner::Slow(_))));
        let asked = |wanted: fn(&Case) -> bool| all.iter().filter(|visit| wanted(&cases[visit.case])).count();
        assert!(asked(|case| case.may_end) > 3 && asked(|case| case.body.get("n").is_some()) > 50);
        let real = asked(|case| case.group == Group::ModelWorkers);
        assert!(real > 40 && real < all.len() / 10, "{real}");
        assert!((0..3).all(|frontend| all.iter().any(|visit| visit.frontend == frontend)));
    }
}
