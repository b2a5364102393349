//! Replays what the fuzzers keep in `fuzz/corpus` and what they once broke in `fuzz/regressions`.

#![expect(clippy::expect_used, clippy::print_stdout, reason = "a test fails by panicking and says on what")]

use dynamo_proofs::TARGETS;
use std::fs;
use std::path::{Path, PathBuf};

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.sort();
    files
}

fn replay(name: &str) {
    let corpus = files(&fuzz().join("corpus").join(name));
    assert!(corpus.len() >= 10, "fuzz/corpus/{name} has {} files", corpus.len());
    for path in corpus.into_iter().chain(files(&fuzz().join("regressions").join(name))) {
        // Shown only if the law breaks.
        println!("{}", path.display());
        dynamo_proofs::run(name, &fs::read(&path).expect("a readable file"));
    }
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(#[test] fn $name() { replay(stringify!($name)); })*
        const REPLAYED: &[&str] = &[$(stringify!($name)),*];
    };
}

targets![
    bodies,
    sse,
    kserve,
    template_messages,
    template_source,
    tool_parsers,
    reasoning_parsers,
    parser_chains,
    tokenizer_text,
    tokenizer_ids,
    guides,
    gguf,
    safetensors,
];

/// A target has a test, a fuzzer and a folder, under one name; and there are no others.
#[test]
fn every_target_is_fuzzed_and_replayed() {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    assert_eq!(names, REPLAYED);
    let stems = |folder: &str| -> Vec<String> {
        let list = files(&fuzz().join(folder));
        list.iter().filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
    };
    let mut sorted: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    sorted.sort();
    assert_eq!(stems("targets"), sorted, "fuzz/targets");
    assert_eq!(stems("corpus"), sorted, "fuzz/corpus");
    assert!(stems("regressions").iter().all(|name| sorted.contains(name)), "fuzz/regressions");
}
