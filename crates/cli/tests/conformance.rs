//! Which tests stand for which of the users' rules: read from the sources, kept in docs/conformance.md.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// Set to have the page written instead of compared.
const WRITE: &str = "DYNAMO_WRITE_DOCS";

/// The rules of text, streams, tools, dialects, cancellation, fleets and routing.
const RULES: [&str; 38] = [
    "characters are whole, however tokens cut them",
    "text that may become a stop string is held back",
    "the earliest stop wins",
    "stop strings are the frontend's job; counts stay what was sampled",
    "usage in streams: once, and where asked for",
    "streams always end",
    "error text cannot break framing",
    "client mistakes are 4xx and reach no engine",
    "null means absent",
    "unknown fields have a policy",
    "template refusals are 400 in the template's words",
    "templates render as the model expects",
    "streamed and unary answers agree",
    "parallel tool calls are all calls",
    "a cut-off call leaks no markup and stays cut",
    "long arguments are linear and live",
    "split reasoning markers are markers",
    "reasoning is parsed once and kept",
    "Anthropic's blocks come in order",
    "size limits line up",
    "leaving before the first token reaches the engine",
    "leaving frees everything on every route",
    "cancelling returns blocks",
    "a lost lease heals itself",
    "a restart rebuilds the whole view, and nobody blocks it",
    "a missed delete is repaired",
    "who ends gets no new work",
    "readiness tells the truth",
    "a drain finishes what runs",
    "a failed dispatch tries elsewhere",
    "breakers count server faults only",
    "gaps in events are recovered, once each",
    "a publisher that begins anew voids what it said",
    "the prefix index is bounded by live blocks",
    "one contract for blocks and hashes",
    "a block's hash carries its identity",
    "ties are broken fairly, and load is booked at selection",
    "bookings never leak",
];

/// Generated cases that the issue asks for.
const LEAST_CASES: u64 = 10_000;

/// Rules whose tests are examples, as many as there are ways to break them.
const BY_EXAMPLE: [usize; 2] = [28, 29];

/// Fewer examples than this are none of a class.
const LEAST_EXAMPLES: usize = 4;

/// What proptest runs where nothing else is said.
const PROPTEST_CASES: u64 = 256;

#[derive(Debug)]
struct Test {
    rules: Vec<usize>,
    place: String,
    name: String,
    /// 0: examples, or all of a finite set.
    cases: u64,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().into()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
            found.push(path);
        }
    }
}

/// The number that `text` starts with; `_` may part its digits.
fn number(text: &str) -> Option<u64> {
    let digits: String = text
        .trim_start()
        .chars()
        .take_while(|c| c.is_ascii_digit() || *c == '_')
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

/// `r13_r19_name` stands for rules 13 and 19.
fn rules_of(name: &str) -> Vec<usize> {
    name.split('_')
        .map_while(|part| part.strip_prefix('r').filter(|rest| rest.len() == 2)?.parse().ok())
        .collect()
}

/// Cases that the body of a test generates: `cases("name", 600)`, `const CASES: u64 = 600`, or proptest's.
fn count(before: &str, body: &str) -> u64 {
    let calls = body.match_indices("cases(\"").filter_map(|(at, _)| number(body[at..].split_once(", ")?.1));
    let called: u64 = calls.sum();
    if called > 0 {
        return called;
    }
    if body.contains("..CASES") {
        return before.split_once("const CASES: u64 = ").and_then(|(_, rest)| number(rest)).unwrap_or(0);
    }
    match before.rsplit_once("proptest! {") {
        // A block ends with a brace at the margin.
        Some((_, inside)) if !inside.contains("\n}\n") => {
            let config = inside.split_once("with_cases(").or_else(|| inside.split_once("cases: "));
            config.and_then(|(_, rest)| number(rest)).unwrap_or(PROPTEST_CASES)
        }
        _ => 0,
    }
}

fn tests_in(path: &Path) -> Vec<Test> {
    let source = fs::read_to_string(path).unwrap();
    let place = path.strip_prefix(root()).unwrap().display().to_string();
    let word = if place.ends_with(".py") { "def test_" } else { "fn " };
    let starts: Vec<usize> = source.match_indices(word).map(|(at, _)| at).collect();
    let mut list = Vec::new();
    for (index, &at) in starts.iter().enumerate() {
        let name: String = source[at + word.len()..]
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
            .collect();
        let rules: Vec<usize> =
            rules_of(&name).into_iter().filter(|rule| (1..=RULES.len()).contains(rule)).collect();
        if rules.is_empty() {
            continue;
        }
        let end = starts.get(index + 1).copied().unwrap_or(source.len());
        let cases = count(&source[..at], &source[at..end]);
        list.push(Test { rules, place: place.clone(), name, cases });
    }
    list
}

fn tests() -> Vec<Test> {
    let mut files = Vec::new();
    for folder in ["crates", "tests/sdk"] {
        sources(&root().join(folder), &mut files);
    }
    files.iter().filter(|path| !path.ends_with("conformance.rs")).flat_map(|path| tests_in(path)).collect()
}

fn page(tests: &[Test]) -> String {
    let mut by_rule: BTreeMap<usize, Vec<&Test>> = BTreeMap::new();
    for test in tests {
        for &rule in &test.rules {
            by_rule.entry(rule).or_default().push(test);
        }
    }
    let total: u64 = tests.iter().map(|test| test.cases).sum();
    let over_http: u64 =
        tests.iter().filter(|test| test.place.starts_with("crates/frontend")).map(|test| test.cases).sum();
    let mut page = format!(
        "# Conformance\n\nThe rules that users of such systems have taught, and the tests that hold them: {total} generated cases, \
         {over_http} of them whole requests through the HTTP server. Generated from the sources; \
         `{WRITE}=1 cargo test --release -p dynamo-cli` writes it.\n\n\
         A test that generates prints its seed, and the number of the case when it fails; `DYNAMO_TEST_SEED` sets another seed \
         for those in `crates/frontend/tests/rules/laws`. A dash in the last column: examples, or every member of a finite set.\n\n\
         R23 speaks of blocks that move between workers. None do yet; its test cancels at every moment there is on one worker.\n\n\
         | Rule | Test | Where | Generated cases |\n|---|---|---|---|\n"
    );
    for (rule, text) in (1..).zip(RULES) {
        for (index, test) in by_rule.get(&rule).into_iter().flatten().enumerate() {
            let title = if index == 0 { format!("**R{rule:02}** {text}") } else { String::new() };
            let cases = if test.cases == 0 { "-".to_owned() } else { test.cases.to_string() };
            let prefix = if test.place.ends_with(".py") { "test_" } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(page, "| {title} | `{prefix}{}` | `{}` | {cases} |", test.name, test.place);
        }
    }
    page
}

#[test]
fn every_rule_has_tests_over_its_class_and_the_list_is_true() {
    let tests = tests();
    for rule in 1..=RULES.len() {
        let generated: u64 =
            tests.iter().filter(|test| test.rules.contains(&rule)).map(|test| test.cases).sum();
        if BY_EXAMPLE.contains(&rule) {
            let examples = tests.iter().filter(|test| test.rules.contains(&rule)).count();
            assert!(examples >= LEAST_EXAMPLES, "R{rule:02} has {examples} tests");
        } else {
            assert!(generated >= 200, "R{rule:02} has {generated} generated cases");
        }
    }
    let over_http: u64 =
        tests.iter().filter(|test| test.place.starts_with("crates/frontend")).map(|test| test.cases).sum();
    assert!(over_http >= LEAST_CASES, "{over_http} cases go through the server");
    let (path, page) = (root().join("docs/conformance.md"), page(&tests));
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, page).unwrap();
    } else {
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == page, "docs/conformance.md is out of date: run this test with {WRITE}=1");
    }
}

#[test]
fn the_scan_counts_what_is_there() {
    assert_eq!(rules_of("r13_r19_any_pieces"), [13, 19]);
    assert_eq!(rules_of("r1_x"), [0usize; 0]);
    assert_eq!(count("", "for draws in cases(\"r01\", 1_200) {"), 1200);
    assert_eq!(count("const CASES: u64 = 1500;\n", "for case in 0..CASES {"), 1500);
    assert_eq!(count("proptest! {\n    #![proptest_config(ProptestConfig::with_cases(6000))]\n", "x"), 6000);
    assert_eq!(count("proptest! {\n", "x"), PROPTEST_CASES);
    assert_eq!(count("proptest! {\n    x\n}\n", "x"), 0);
}
