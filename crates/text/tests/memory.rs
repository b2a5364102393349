//! What a rendering holds on to, measured: each template in a process of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use dynamo_text::{RenderInput, Template};
use dynamo_types::{ChatTemplate, Class, SpecialTokens};
use serde_json::{Map, json};
use std::process::Command;

/// The child is told which template.
const CASE: &str = "DYNAMO_TEMPLATE_CASE";
/// What the child says before the number of bytes.
const TOOK: &str = "took ";

/// Above the size from on which more may be done.
const INPUT_BYTES: usize = 150_000;
/// What a rendering with so much may hold: 64 bytes for each of a million units and for each byte above 128 KiB.
const MOST_BYTES: u64 = 64 * (1_000_000 + (INPUT_BYTES as u64 + 1000 - (128 << 10)));

/// Values that are put on a list, again and again, in all ways that make much of little.
const VALUES: [&str; 19] = [
    "'x' * 60000",
    "c ~ a",
    "c ~ c ~ c ~ c ~ a",
    "c + c",
    "('y' * 9999) | replace('y', 'x' * 99)",
    "('y' * 9999).replace('y', 'x' * 99)",
    "('x' * 9999).join(['y'] * 99)",
    "[c, c, c] | join(c)",
    "'%60000d' % a",
    "'%s%s' % (c, c)",
    "'{:>60000}{}'.format(a, c)",
    "'x'.ljust(60000)",
    "c | indent(60000, true)",
    "c | upper",
    "c | list",
    "c.split('x')",
    "c | batch(2) | list",
    "[c] * 5000",
    "range(90000) | list",
];

/// Whole templates.
const TEMPLATES: [&str; 6] = [
    "{% set ns = namespace(s='x') %}{% for a in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for a in range(99999) %}{% set ns.s = ns.s ~ c %}{% endfor %}",
    "{% set ns = namespace(s='x') %}{% for a in range(99999) %}{% set s %}{{ ns.s }}{{ c }}{% endset %}{% set ns.s = s %}{% endfor %}",
    "{% for a in range(99999) %}{{ c }}{% endfor %}",
    "{% for a in range(99999) %}{{ 'x' * 60000 }}{% endfor %}",
    "{% macro m(n) %}{{ c }}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(20) }}",
];

fn source(case: usize) -> String {
    // Not for what a template is tried with when it is compiled: memory that was had before would not count.
    let begin = "{% set c = messages[0].content %}{% if c | length > 1000 %}";
    let source = match VALUES.get(case) {
        Some(value) => format!(
            "{begin}{{% set ns = namespace(l=[]) %}}{{% for a in range(99999) %}}{{% set ns.l = ns.l + [{value}] %}}{{% endfor %}}"
        ),
        None => format!("{begin}{}", TEMPLATES[case - VALUES.len()]),
    };
    source + "{% endif %}"
}

/// The most memory that this process had.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Renders what it is told to; by itself the first.
#[test]
fn one_rendering() {
    let case = std::env::var(CASE).map_or(0, |case| case.parse().unwrap());
    let template =
        Template::compile(&ChatTemplate { source: source(case).into() }, &SpecialTokens::default());
    let messages = [json!({"role": "user", "content": "x".repeat(INPUT_BYTES)})];
    let input = RenderInput {
        messages: &messages,
        tools: None,
        add_generation_prompt: false,
        continue_final_message: false,
        kwargs: &Map::new(),
        now_unix_s: 0,
    };
    let before = peak_bytes();
    let error = template.unwrap().render(&input).unwrap_err();
    println!("{TOOK}{}", peak_bytes() - before);
    assert_eq!(error.class(), Class::Invalid, "{}", error.message());
    assert!(error.message().contains("chat template"), "{}", error.message());
}

#[test]
fn what_a_rendering_holds_is_bounded_by_its_input() {
    let mut above = Vec::new();
    for case in 0..VALUES.len() + TEMPLATES.len() {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "one_rendering", "--nocapture", "--test-threads=1"])
            .env(CASE, case.to_string());
        let output = child.output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{}: {told} {errors}", source(case));
        let took = told.lines().find_map(|line| line.split_once(TOOK)).unwrap().1;
        let took: u64 = took.trim().parse().unwrap();
        println!("{:>4} MB  {}", took >> 20, source(case));
        if took > MOST_BYTES {
            above.push(format!("{took} bytes: {}", source(case)));
        }
    }
    assert!(above.is_empty(), "above {MOST_BYTES} bytes:\n{}", above.join("\n"));
}
