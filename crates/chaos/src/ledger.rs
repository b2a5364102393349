//! What frontends say of the fleet when nobody asks anything any more.

use serde_json::Value;
use std::collections::BTreeMap;

/// Nothing of these may be left. Sums over all their series.
const EMPTY: &[&str] = &[
    "dynamo_frontend_active_requests",
    "dynamo_frontend_worker_active_requests",
    "dynamo_frontend_worker_active_decode_blocks",
    "dynamo_frontend_worker_active_prefill_tokens",
];

const REGISTERED: &str = "dynamo_component_router_worker_registered";

/// The families of a page of metrics, each as the sum of its series.
fn sums(page: &str) -> BTreeMap<&str, f64> {
    let mut sums = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let Some((series, value)) = line.rsplit_once(' ') else { continue };
        let family = series.split('{').next().unwrap_or_default();
        *sums.entry(family).or_default() += value.parse().unwrap_or(f64::NAN);
    }
    sums
}

/// What is held although everything is over.
pub(crate) fn unbalanced(metrics: &str, status: &Value) -> Vec<String> {
    let sums = sums(metrics);
    let mut faults = Vec::new();
    for family in EMPTY {
        match sums.get(family) {
            Some(0.0) => {}
            found => faults.push(format!("{family} is {found:?}, expected 0")),
        }
    }
    for worker in workers(status) {
        for path in ["/load/running", "/load/waiting", "/load/active_blocks", "/requests"] {
            if worker.pointer(path).and_then(Value::as_u64) != Some(0) {
                faults.push(format!("{path} of a worker is not 0: {worker}"));
            }
        }
    }
    faults
}

/// What of the fleet is not found, or does not serve.
pub(crate) fn unserved(metrics: &str, status: &Value, expected: usize) -> Vec<String> {
    let mut faults = Vec::new();
    let registered = sums(metrics).get(REGISTERED).copied().unwrap_or_default();
    let listed = workers(status).count();
    if registered as usize != expected || listed != expected {
        faults.push(format!("{registered} workers in the router, {listed} listed, expected {expected}"));
    }
    for worker in workers(status) {
        let is = |name: &str| worker.get(name).and_then(Value::as_bool) != Some(false);
        if is("draining") || is("suspended") {
            faults.push(format!("does not serve: {worker}"));
        }
    }
    for model in list(status, "models") {
        if model.get("state").and_then(Value::as_str) != Some("ready") {
            faults.push(format!("is not ready: {model}"));
        }
    }
    faults.extend(list(status, "refused").map(|refused| format!("refused: {refused}")));
    faults
}

fn workers(status: &Value) -> impl Iterator<Item = &Value> {
    list(status, "workers")
}

fn list<'a>(status: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    status.get(name).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn page(active: u32) -> String {
        let gauges: String =
            EMPTY.iter().map(|family| format!("{family}{{a=\"b c\"}} 0\n{family} {active}\n")).collect();
        format!("# HELP x y\n{gauges}{REGISTERED}{{w=\"1\"}} 1\n{REGISTERED}{{w=\"2\"}} 1\n")
    }

    fn status(running: u32, suspended: bool) -> Value {
        let load = |running| json!({"running": running, "waiting": 0, "active_blocks": 0});
        json!({"models": [{"state": "ready"}], "refused": [], "workers": [
            {"draining": false, "suspended": suspended, "requests": 0, "load": load(0)},
            {"draining": false, "suspended": false, "requests": 0, "load": load(running)},
        ]})
    }

    #[test]
    fn what_is_left_is_found() {
        let quiet = status(0, false);
        assert_eq!(unbalanced(&page(0), &quiet), Vec::<String>::new());
        assert_eq!(unbalanced(&page(1), &quiet).len(), EMPTY.len());
        assert_eq!(unbalanced("", &quiet).len(), EMPTY.len(), "a family that is not there is not 0");
        assert_eq!(unbalanced(&page(0), &status(1, false)).len(), 1);
        assert_eq!(unserved(&page(0), &quiet, 2), Vec::<String>::new());
        assert_eq!(unserved(&page(0), &quiet, 3).len(), 1);
        assert_eq!(unserved(&page(0), &status(0, true), 2).len(), 1);
    }
}
