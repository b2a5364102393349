//! `GET /`: the page for people. It shows `/status.json` and talks to `/v1/chat/completions`; nothing in it comes from
//! anywhere else, and it has no data of its own, so it is open to all.

use crate::http::{self, Body};
use crate::shared::Shared;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};

const PAGE: &str = include_str!("page.html");
/// Stands in the page where the nonce goes.
const NONCE: &str = "{nonce}";

pub(crate) fn page(_: &Shared, _: &str) -> Response<Body> {
    let nonce = nonce();
    let body = PAGE.replace(NONCE, &nonce);
    let mut response =
        http::typed(StatusCode::OK, HeaderValue::from_static("text/html; charset=utf-8"), body);
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&policy(&nonce)) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(
        HeaderName::from_static("cross-origin-opener-policy"),
        HeaderValue::from_static("same-origin"),
    );
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Puts the page and what it reads into the OpenAPI document.
pub(crate) fn describe(document: &mut Value) {
    let status =
        json!({ "type": "object", "description": "Models and workers with their counters since the start." });
    for (path, summary, kind, schema) in [
        ("/", "A page for people", "text/html", json!({ "type": "string" })),
        ("/status.json", "What the page shows", "application/json", status),
    ] {
        let answer = json!({ "description": "As it is now.", "content": { kind: { "schema": schema } } });
        document["paths"][path] = json!({ "get": { "summary": summary, "responses": { "200": answer } } });
    }
}

/// Only the page's own style and script run, they reach this server only, and no text can become markup.
fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
}

/// Not to be guessed: keyed hashes under keys that the standard library draws and nobody sees.
fn nonce() -> String {
    format!("{:016x}{:016x}", RandomState::new().hash_one(0), RandomState::new().hash_one(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_makes_no_markup_of_text() {
        assert_eq!(PAGE.matches(NONCE).count(), 2, "one style, one script");
        for risky in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "http://", "https://"]
        {
            assert!(!PAGE.contains(risky), "{risky}");
        }
        for inline in [" style=\"", " onclick=", " onload=", " src=\"", "@import", "url("] {
            assert!(!PAGE.contains(inline), "{inline}");
        }
    }

    #[test]
    fn every_answer_has_its_own_nonce() {
        let (one, two) = (nonce(), nonce());
        assert_eq!((one.len(), two.len()), (32, 32));
        assert_ne!(one, two);
        assert!(policy(&one).contains(&one));
    }
}
