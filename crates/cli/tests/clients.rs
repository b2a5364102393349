//! Which test drives which route by which client, streaming and not: a page of its own, docs/clients.md. Every route of
//! the frontend's table has a line, and every test that is named exists, where it is said to and with that client.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Set to have the page written instead of compared.
const WRITE: &str = "DYNAMO_WRITE_DOCS";

/// Who asks, in the order of the page's columns, and what a test of it has in its source.
const CLIENTS: [(&str, &str); 5] = [
    ("`openai`", "openai"),
    ("`anthropic`", "anthropic"),
    ("`openai-agents`", "agents"),
    ("`tritonclient`", "tritonclient"),
    ("plain HTTP or gRPC", ""),
];
const OPENAI: usize = 0;
const ANTHROPIC: usize = 1;
const AGENTS: usize = 2;
const TRITON: usize = 3;
const PLAIN: usize = 4;

/// How the answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Whole,
    Streamed,
}
use Way::{Streamed, Whole};

const RULES: &str = "crates/frontend/tests/rules/";
const SDK: &str = "tests/sdk/";

/// Routes, client, way, folder, file, test.
type Row = (&'static [&'static str], usize, &'static [Way], &'static str, &'static str, &'static str);

const BOTH: &[Way] = &[Whole, Streamed];
const ONE: &[Way] = &[Whole];
const CHAT: &[&str] = &["POST /v1/chat/completions"];
const COMPLETIONS: &[&str] = &["POST /v1/completions"];
const RESPONSES: &[&str] = &["POST /v1/responses"];
const MESSAGES: &[&str] = &["POST /v1/messages"];
const CHAT_AND_RESPONSES: &[&str] = &["POST /v1/chat/completions", "POST /v1/responses"];
const CONVERSATIONS: &[&str] = &["POST /v1/chat/completions", "POST /v1/messages", "POST /v1/responses"];
const MODELS: &[&str] = &["GET /v1/models", "GET /v1/models/{id}"];
const KSERVE: &str = "inference.GRPCInferenceService/";
const HEALTH: &str = "grpc.health.v1.Health/";

static ROWS: &[Row] = &[
    (CHAT, OPENAI, BOTH, SDK, "test_openai.py", "test_a_stream_folds_into_the_unary_answer"),
    (COMPLETIONS, OPENAI, BOTH, SDK, "test_openai.py", "test_a_stream_folds_into_the_unary_answer"),
    (RESPONSES, OPENAI, BOTH, SDK, "test_responses.py", "test_a_stream_folds_into_the_unary_answer"),
    (&["POST /v1/responses/input_tokens"], OPENAI, ONE, SDK, "test_responses.py", "test_tokens_are_counted"),
    (
        &["POST /v1/embeddings"],
        OPENAI,
        ONE,
        SDK,
        "test_embeddings.py",
        "test_every_form_gives_the_same_vector",
    ),
    (MODELS, OPENAI, ONE, SDK, "test_openai.py", "test_models_are_listed_and_retrieved"),
    (
        &["POST /v1/images/generations", "POST /v1/audio/speech"],
        OPENAI,
        ONE,
        SDK,
        "test_responses.py",
        "test_what_no_worker_does_is_not_implemented",
    ),
    (MESSAGES, ANTHROPIC, BOTH, SDK, "test_anthropic.py", "test_a_stream_folds_into_the_unary_answer"),
    (
        &["POST /v1/messages/count_tokens"],
        ANTHROPIC,
        ONE,
        SDK,
        "test_anthropic.py",
        "test_tokens_are_counted",
    ),
    (CHAT_AND_RESPONSES, AGENTS, BOTH, SDK, "test_agent.py", "test_an_agent_calls_a_tool_and_answers"),
    (&["ModelInfer"], TRITON, ONE, SDK, "test_kserve.py", "test_infer_is_the_completion"),
    (&["ModelStreamInfer"], TRITON, &[Streamed], SDK, "test_kserve.py", "test_streams"),
    (
        &["ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelConfig"],
        TRITON,
        ONE,
        SDK,
        "test_kserve.py",
        "test_what_is_there",
    ),
    (&["ModelInfer"], PLAIN, ONE, RULES, "kserve.rs", "unary_is_the_fold_of_the_stream_however_both_are_cut"),
    (
        &["ModelStreamInfer"],
        PLAIN,
        &[Streamed],
        RULES,
        "kserve.rs",
        "unary_is_the_fold_of_the_stream_however_both_are_cut",
    ),
    (&["Check"], PLAIN, ONE, RULES, "health.rs", "health_follows_the_models_and_needs_no_key"),
    (&["Watch"], PLAIN, &[Streamed], RULES, "health.rs", "health_follows_the_models_and_needs_no_key"),
    (
        CONVERSATIONS,
        PLAIN,
        BOTH,
        RULES,
        "forced.rs",
        "r13_forced_calls_are_read_the_same_whatever_the_route_and_the_cuts",
    ),
    (COMPLETIONS, PLAIN, ONE, SDK, "test_http.py", "test_errors_have_the_official_shape"),
    (COMPLETIONS, PLAIN, &[Streamed], SDK, "test_http.py", "test_a_stream_is_server_sent_events"),
    (
        &["POST /v1/messages/count_tokens", "POST /v1/responses/input_tokens"],
        PLAIN,
        ONE,
        RULES,
        "forced.rs",
        "what_an_engine_cannot_be_held_to_is_501_and_can_be_counted",
    ),
    (
        &["POST /v1/embeddings", "POST /tokenize", "POST /detokenize"],
        PLAIN,
        ONE,
        SDK,
        "test_contract.py",
        "test_answers_are_what_the_document_says",
    ),
    (
        &["GET /busy_threshold", "POST /busy_threshold"],
        PLAIN,
        ONE,
        SDK,
        "test_observability.py",
        "test_limits_of_load_are_flags_and_can_be_changed",
    ),
    (MODELS, PLAIN, ONE, SDK, "test_cli.py", "test_served_model_name_and_one_worker"),
    (
        &["GET /v1/models/{id}/ready", "GET /health", "GET /live"],
        PLAIN,
        ONE,
        SDK,
        "test_http.py",
        "test_health_live_and_ready",
    ),
    (&["GET /metrics"], PLAIN, ONE, SDK, "test_http.py", "test_metrics_count_what_happened"),
    (&["GET /openapi.json"], PLAIN, ONE, SDK, "test_http.py", "test_openapi_names_the_routes"),
    (&["GET /"], PLAIN, ONE, SDK, "test_page.py", "test_the_page_shows_the_system_and_chats"),
    (&["GET /status.json"], PLAIN, ONE, RULES, "page.rs", "the_status_counts_what_happens"),
    (
        &[
            "POST /v1/images/generations",
            "POST /v1/images/edits",
            "POST /v1/videos",
            "POST /v1/videos/stream",
            "POST /v1/audio/speech",
            "GET /v1/realtime",
            "POST /v1/classify",
            "POST /v1/pooling",
            "POST /v1/rerank",
        ],
        PLAIN,
        ONE,
        RULES,
        "dialects.rs",
        "what_no_worker_does_is_501_with_what_is_missing",
    ),
];

const GRPC: [(&str, &[&str]); 2] = [
    (
        KSERVE,
        &[
            "ServerLive",
            "ServerReady",
            "ModelReady",
            "ServerMetadata",
            "ModelMetadata",
            "ModelConfig",
            "ModelInfer",
            "ModelStreamInfer",
        ],
    ),
    (HEALTH, &["Check", "Watch"]),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// All routes by the names that [`ROWS`] has for them, and how the page shows them.
fn routes() -> Vec<(String, String)> {
    let over_http = dynamo_frontend::routes().map(|(method, path)| {
        let name = format!("{method} {path}");
        (name.clone(), name)
    });
    let over_grpc = GRPC.iter().flat_map(|(service, methods)| {
        methods.iter().map(move |method| ((*method).to_owned(), format!("{service}{method}")))
    });
    over_http.chain(over_grpc).collect()
}

/// The source of a test, up to the next definition at its margin; None if there is none of this name.
fn source_of(file: &str, name: &str) -> Option<String> {
    let whole = fs::read_to_string(root().join(file)).ok()?;
    let start = ["def ", "fn "].iter().find_map(|word| whole.find(&format!("{word}{name}(")))?;
    let rest = &whole[start..];
    let end =
        ["\ndef ", "\n@", "\n#[", "\nasync fn ", "\nfn "].iter().filter_map(|next| rest.find(next)).min();
    Some(rest[..end.unwrap_or(rest.len())].to_owned())
}

#[test]
fn every_named_test_exists_with_its_client() {
    for (_, client, ways, folder, file, test) in ROWS {
        let path = format!("{folder}{file}");
        let Some(source) = source_of(&path, test) else { panic!("there is no {test} in {path}") };
        let whole = fs::read_to_string(root().join(&path)).unwrap();
        assert!(whole.contains(CLIENTS[*client].1), "{path} does not use {}", CLIENTS[*client].0);
        if ways.contains(&Streamed) {
            let is_streamed = ["stream", "watch", "Stream"].iter().any(|word| source.contains(word));
            assert!(is_streamed, "{path}: {test} streams nothing");
        }
    }
}

#[test]
fn every_route_has_a_line_and_every_line_a_route() {
    let routes: BTreeSet<String> = routes().into_iter().map(|(name, _)| name).collect();
    let driven: BTreeSet<String> =
        ROWS.iter().flat_map(|(routes, ..)| routes.iter().map(|route| (*route).to_owned())).collect();
    let missing: Vec<_> = routes.difference(&driven).collect();
    let unknown: Vec<_> = driven.difference(&routes).collect();
    assert!(missing.is_empty(), "routes that no test drives: {missing:?}");
    assert!(unknown.is_empty(), "tests for routes that are none: {unknown:?}");
    // An API for text is driven by its official client and by none, each way that it answers.
    for (route, official) in
        [(CHAT, OPENAI), (COMPLETIONS, OPENAI), (RESPONSES, OPENAI), (MESSAGES, ANTHROPIC)]
    {
        for client in [official, PLAIN] {
            for way in BOTH {
                assert!(!cell(route[0], client, *way).is_empty(), "{} {client} {way:?}", route[0]);
            }
        }
    }
}

fn cell(route: &str, client: usize, way: Way) -> Vec<String> {
    let rows = ROWS
        .iter()
        .filter(|(routes, of, ways, ..)| routes.contains(&route) && *of == client && ways.contains(&way));
    rows.map(|(.., folder, file, test)| {
        let place = if *folder == SDK { *file } else { &format!("rules/{file}") };
        format!("`{place}` `{test}`")
    })
    .collect()
}

#[test]
fn the_page_of_clients_is_up_to_date() {
    let mut page = String::from(
        "# Routes and clients\n\n\
         Generated from crates/cli/tests/clients.rs: which test drives which route by which client. Python tests stand in `tests/sdk`, those under `rules/` in\n\
         `crates/frontend/tests`. A client that is not named for a route has no call for it, or is not tested with it.\n\n\
         | Route | Client | Whole | Streamed |\n|---|---|---|---|\n",
    );
    for (name, shown) in routes() {
        for (client, (title, _)) in CLIENTS.iter().enumerate() {
            let [whole, streamed] = [Whole, Streamed].map(|way| cell(&name, client, way).join(", "));
            if whole.is_empty() && streamed.is_empty() {
                continue;
            }
            writeln!(page, "| `{shown}` | {title} | {whole} | {streamed} |").unwrap();
        }
    }
    let path = root().join("docs/clients.md");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/clients.md is out of date: run this test with {WRITE}=1");
}
