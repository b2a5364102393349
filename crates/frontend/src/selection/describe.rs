//! The service's part of the OpenAPI document.

use super::ROUTES;
use crate::routes::with_common;
use serde_json::{Value, json};

/// The document of the selection service. `common`: the one of a frontend, of which it shares some routes.
pub(crate) fn document(mut common: Value) -> Value {
    if let Some(paths) = common["paths"].as_object_mut() {
        paths.retain(|path, _| with_common(ROUTES).any(|route| route.template == path));
    }
    for route in ROUTES {
        let method = route.method.as_str().to_ascii_lowercase();
        let path = &mut common["paths"][route.template];
        if path.get(&method).is_none() {
            path[&method] = operation(route.template, &method);
        }
        if route.template.contains("{id}") {
            let what = match route.template.starts_with("/workers") {
                true => "The worker's number, decimal.",
                false => "The reservation's selection_id.",
            };
            path["parameters"] = json!([{ "name": "id", "in": "path", "required": true,
                "schema": { "type": "string" }, "description": what }]);
        }
    }
    common
}

fn operation(template: &str, method: &str) -> Value {
    let answer = |description: &str| json!({ "description": description, "content": { "application/json": { "schema": { "type": ["object", "array"] } } } });
    let summary = match (template, method) {
        ("/select", _) => "Where a prompt would go",
        ("/select_and_reserve", _) => "Where a prompt goes, with its load booked there",
        ("/reservations", _) => "Book a selection, or a worker that was chosen otherwise",
        ("/workers", "post") => "Name a worker that does not register itself",
        ("/workers/{id}", "patch") => "Say more of a worker, or take it out: {\"schedulable\": false}",
        ("/workers/{id}", _) => "Forget a worker that was named by hand",
        ("/dump" | "/workers/{id}/dump", _) => "What the workers cache, as events",
        (_, "delete") => "Give a reservation back",
        ("/overlap_scores" | "/query" | "/query_by_hash", _) => "What the workers have of a prompt",
        ("/potential_loads", _) => "What the workers would carry with a prompt",
        ("/add", _) => "Book a worker that was chosen",
        ("/free", _) => "Give a reservation back, if there is one",
        ("/loads", _) => "What is booked",
        ("/workers", _) => "Workers, and why some get nothing",
        ("/ready", _) => "Can anything be selected?",
        (path, _) if path.ends_with("/output_block") => "The answer fills one more block",
        _ => "The first token is there",
    };
    let done = if matches!(template, "/reservations" | "/add") || (template, method) == ("/workers", "post") {
        "201"
    } else {
        "200"
    };
    json!({ "summary": summary, "responses": {
        done: answer("As asked."), "default": answer("`{\"error\": text}`: what is wrong.") } })
}
