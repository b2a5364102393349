//! What a template may cost: one that loops for ever, or asks for memory without end, is an error.

use crate::styles::render;
use dynamo_types::Class;
use serde_json::json;

#[test]
fn runaway_templates_are_stopped() {
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='x') %}{% for a in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 'x' * 9999999999 }}",
        "{% for a in range(9999) %}{{ 'x' * 99999 }}{% endfor %}",
    ] {
        let error = render(source, &json!([])).unwrap_err();
        assert_eq!(error.class(), Class::Invalid, "{source}");
    }
}

/// Two values that hold themselves twice, and so on: small in memory, without end when walked.
const TWINS: &str = "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(40) %}\
    {% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}";

#[test]
fn values_that_hold_themselves_twice_are_refused() {
    for use_of in [
        "{{ ns.x }}",
        "{{ ns.x ~ '' }}",
        "{{ ns.x == ns.y }}",
        "{{ ns.x in [ns.y] }}",
        "{{ [ns.x, ns.y] | sort }}",
        "{{ ns.x | tojson }}",
        "{{ '{}'.format(ns.x) }}",
        "{{ '%s' % ns.x }}",
    ] {
        let source = format!("{TWINS}{use_of}");
        assert_eq!(render(&source, &json!([])).unwrap_err().class(), Class::Invalid, "{use_of}");
    }
}

#[test]
fn one_expression_cannot_write_or_compare_without_end() {
    for source in [
        "{% set a = [[[[0] * 9999] * 9999] * 9999] %}",
        "{{ ([[[0] * 9999] * 9999] ~ '') | length }}",
        "{{ [[[[0] * 9999] * 9999] * 9999] == [[[[0] * 9999] * 9999] * 9999] }}",
        "{{ [[[0] * 9999] * 9999] | upper }}",
        "{{ [[[0] * 9999] * 9999] | join }}",
        "{{ '{}'.format([[[0] * 9999] * 9999]) }}",
        "{{ '%s' % [[[0] * 9999] * 9999] }}",
        "{{ '%s' | format([[[0] * 9999] * 9999]) }}",
        "{{ raise_exception([[[0] * 9999] * 9999]) }}",
        "{{ ('y' * 9999) | replace('y', 'x' * 999999) }}",
        "{{ ('x' * 999999).join(['y'] * 9999) }}",
    ] {
        assert_eq!(render(source, &json!([])).unwrap_err().class(), Class::Invalid, "{source}");
    }
}

#[test]
fn nesting_that_would_overflow_the_stack_is_refused() {
    for grown in ["[ns.x]", "{'a': ns.x}", "(ns.x,)", "ns.x | batch(1) | list", "namespace(a=ns.x)", "ns"] {
        let source = format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for i in range(9999) %}}{{% set ns.x = {grown} %}}{{% endfor %}}"
        );
        assert_eq!(render(&source, &json!([])).unwrap_err().class(), Class::Invalid, "{grown}");
    }
    let views = "{% set ns = namespace(x=[1]) %}{% for i in range(9999) %}{% set ns.x = ns.x[0:] %}\
        {% set ns.x = ns.x * 1 %}{% endfor %}{{ ns.x }}";
    assert_eq!(render(views, &json!([])).unwrap(), "[1]");
}

/// A text is walked through to find an index in it, and that is paid for. Without, the last three loops take minutes.
#[test]
fn looking_into_a_long_text_is_paid_for() {
    let text = "é".repeat(1 << 19);
    let messages = json!([{"role": "user", "content": text}]);
    for use_of in [
        "a[-1]",
        "a[-2:-1]",
        "a[300000]",
        "a.300000",
        "a[:1]",
        "a[i]",
        "a[-1:-2:-1]",
        "a is lower",
        "a[-1] ~ a[-2]",
    ] {
        let source = format!(
            "{{% set a = messages[0].content %}}{{% for i in range(99999) %}}{{% if {use_of} == 0 %}}{{% endif %}}{{% endfor %}}"
        );
        let error = render(&source, &messages).unwrap_err();
        assert!(error.message().contains("takes too long"), "{use_of}: {}", error.message());
    }
    let loops = "{% set a = messages[0].content %}{% for i in range(99999) %}{% for c in a %}{% break %}{% endfor %}{% endfor %}";
    assert!(render(loops, &messages).unwrap_err().message().contains("takes too long"));
}

/// Looking into lists and dictionaries costs the same however long they are.
#[test]
fn looking_into_a_long_list_is_free() {
    let many: Vec<_> = (0..10_000).map(|at| json!({"role": "user", "content": at.to_string()})).collect();
    let source = "{% for m in messages %}{% if messages[-1].content == m['content'] and messages[loop.index0][m.role] is undefined and messages[-2:] %}{{ m.content }}{% endif %}{% endfor %}";
    assert_eq!(render(source, &json!(many)).unwrap(), "9999");
}

#[test]
fn small_conversations_cannot_ask_for_much_memory() {
    let doubling = "{% set ns = namespace(s='x') %}{% for a in range(26) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s | length }}";
    assert_eq!(render(doubling, &json!([])).unwrap_err().class(), Class::Invalid);
    let lists = "{% set ns = namespace(l=[]) %}{% for a in range(2000) %}{% set ns.l = ns.l + ['x' * 60000] %}{% endfor %}{{ ns.l | length }}";
    assert_eq!(render(lists, &json!([])).unwrap_err().class(), Class::Invalid);
}

#[test]
fn filters_that_jinja2_lacks_are_unknown() {
    for filter in ["chain", "zip", "lines", "bool", "split"] {
        let error = render(&format!("{{{{ [1] | {filter} }}}}"), &json!([])).unwrap_err();
        assert!(error.message().contains("unknown"), "{}", error.message());
    }
}
