//! What must hold for any input, as functions from bytes. A fuzzer (`fuzz/`) looks for bytes that break one; a test
//! (`tests/corpus.rs`) replays all it has found and kept, so that the two can never disagree about what is proven.
//!
//! It must never know who calls it: bytes in, a panic if a law is broken. Only [`files`] touches a disk, because what
//! it proves something about reads one.

mod bodies;
mod files;
mod guides;
mod input;
mod kserve;
mod parsers;
mod sse;
mod templates;
mod tokenizers;

/// One law, under the name of its fuzz target and of its folder of inputs.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: &[Target] = &[
    Target { name: "bodies", run: bodies::bodies },
    Target { name: "sse", run: sse::sse },
    Target { name: "kserve", run: kserve::kserve },
    Target { name: "template_messages", run: templates::messages },
    Target { name: "template_source", run: templates::source },
    Target { name: "tool_parsers", run: parsers::tool },
    Target { name: "reasoning_parsers", run: parsers::reasoning },
    Target { name: "parser_chains", run: parsers::chain },
    Target { name: "tokenizer_text", run: tokenizers::text },
    Target { name: "tokenizer_ids", run: tokenizers::ids },
    Target { name: "guides", run: guides::guides },
    Target { name: "gguf", run: files::gguf },
    Target { name: "safetensors", run: files::safetensors },
];

/// Runs the law `name` on `data`.
///
/// # Panics
/// If the law is broken, or if there is none of that name.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    assert!(target.is_some(), "no fuzz target {name}");
    if let Some(target) = target {
        (target.run)(data);
    }
}
