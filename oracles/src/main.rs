//! Published parser crates as oracles: the fixtures of `dynamo-text`, and answers generated from them, through our
//! parsers and theirs, in one piece and character by character.
//!
//! Every difference must be covered by a row of `crates/text/tests/parsers/oracles.json`, which says who is right and
//! why; a row that covers nothing fails too, so the table stays true. Run it with `scripts/oracles.sh`; `--show` prints
//! every difference, `--seed N` draws other answers.

mod answer;
mod cases;
mod rules;
mod sides;

use rules::Rules;
use std::process::ExitCode;

/// Variants of every whole fixture.
const VARIANTS: usize = 12;
const SEED: u64 = 20_260_203;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let show = arguments.iter().any(|argument| argument == "--show");
    let seed =
        arguments.iter().position(|argument| argument == "--seed").and_then(|at| arguments.get(at + 1));
    let seed = seed.map_or(SEED, |seed| seed.parse().expect("a number after --seed"));
    std::panic::set_hook(Box::new(|_| {}));
    let mut cases = cases::fixtures();
    let fixtures = cases.len();
    cases.extend(cases::generated(&cases, VARIANTS, seed));
    let mut rules = Rules::read();
    let (mut compared, mut same) = (0, 0);
    for case in &cases {
        for (mode, whole) in [("whole", true), ("stream", false)] {
            let ours = sides::ours(case, whole);
            for (oracle, outcome) in
                [("dynamo", sides::dynamo(case, whole)), ("smg", sides::smg(case, whole))]
            {
                let Some(theirs) = outcome else { continue };
                compared += 1;
                let differences = match &theirs {
                    Ok(theirs) => ours.differences(theirs),
                    Err(_) => vec!["error"],
                };
                if differences.is_empty() {
                    same += 1;
                }
                for part in differences {
                    let explained = rules.explain(oracle, mode, &case.title, part);
                    if show || !explained {
                        let note = if explained { "explained" } else { "UNEXPLAINED" };
                        println!(
                            "{note}: {oracle} {mode} {} {part}\n  text   {:?}\n  ours   {ours:?}\n  theirs {theirs:?}",
                            case.title, case.text
                        );
                    }
                }
            }
        }
    }
    println!(
        "seed {seed}: {fixtures} fixtures, {} generated; {compared} comparisons, {same} equal",
        cases.len() - fixtures
    );
    if rules.summary() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
