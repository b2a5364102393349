//! The shape of the workspace, checked against what cargo and the sources say, so that ARCHITECTURE.md cannot rot:
//! who may depend on whom, what pure crates may not touch, and the house rules that no lint covers.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The crate graph: crate, whether it is pure, and the crates of ours that its code (not its tests) builds on. The
/// table is exact: a new edge and a dropped one are both a change of architecture.
const GRAPH: &[(&str, Kind, &[&str])] = &[
    ("types", Kind::Pure, &[]),
    ("protocols", Kind::Pure, &["types"]),
    ("text", Kind::Pure, &["types"]),
    ("kv-index", Kind::Pure, &["types"]),
    ("explore", Kind::Pure, &[]),
    ("guide", Kind::Pure, &["types"]),
    ("router", Kind::Pure, &["kv-index", "types"]),
    ("blocks", Kind::Pure, &["types"]),
    ("scheduler", Kind::Pure, &["blocks", "types"]),
    ("mocker", Kind::Pure, &["blocks", "scheduler", "types"]),
    ("model-files", Kind::Shell, &["types"]),
    ("runtime", Kind::Shell, &["types"]),
    ("engine", Kind::Shell, &["blocks", "guide", "model-files", "scheduler", "types"]),
    ("worker", Kind::Shell, &["engine", "guide", "mocker", "model-files", "runtime", "text", "types"]),
    ("frontend", Kind::Shell, &["protocols", "router", "runtime", "text", "types"]),
    ("chaos", Kind::Whole, &["types"]),
    ("proofs", Kind::Whole, &["guide", "model-files", "protocols", "text", "types"]),
    (
        "cli",
        Kind::Whole,
        &[
            "engine",
            "frontend",
            "kv-index",
            "mocker",
            "model-files",
            "protocols",
            "router",
            "runtime",
            "text",
            "types",
            "worker",
        ],
    ),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Functions and state machines over plain data.
    Pure,
    /// Does I/O, decides nothing.
    Shell,
    /// Nothing depends on it.
    Whole,
}

/// What a pure crate may not have anywhere below it: reactors, sockets, TLS, clients, clocks.
const IMPURE_CRATES: &[&str] = &[
    "async-io",
    "async-std",
    "chrono",
    "curl",
    "h2",
    "hyper",
    "hyper-util",
    "mio",
    "native-tls",
    "polling",
    "reqwest",
    "rustls",
    "signal-hook",
    "smol",
    "socket2",
    "time",
    "tokio",
    "tokio-util",
    "ureq",
    "web-time",
];

/// What the code of a pure crate may not name.
const IMPURE_CODE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::io::stdin",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime",
];

/// A file longer than this is more than one idea.
const MAX_LINES: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/cli has a root above it").into()
}

fn cargo(args: &[&str]) -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output =
        Command::new(cargo).args(args).arg("--locked").current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("cargo writes UTF-8")
}

fn short(package: &str) -> Option<&str> {
    package.strip_prefix("dynamo-")
}

fn pure_crates() -> impl Iterator<Item = &'static str> {
    GRAPH.iter().filter(|(_, kind, _)| *kind == Kind::Pure).map(|(name, _, _)| *name)
}

fn files(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> =
        fs::read_dir(folder).expect("readable").map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, extension, found);
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
}

fn rust_files(below: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let folder = root().join(below);
    if folder.is_dir() {
        files(&folder, "rs", &mut found);
    }
    found
}

fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// Ours only, normal dependencies only, as cargo sees them.
fn actual_graph() -> BTreeMap<String, BTreeSet<String>> {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--format-version", "1", "--no-deps"]))
        .expect("cargo writes JSON");
    let text = |value: &Value| value.as_str().map(str::to_owned).unwrap_or_default();
    let mut graph = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = text(&package["name"]);
        let edges = package["dependencies"]
            .as_array()
            .expect("dependencies")
            .iter()
            .filter(|dependency| dependency["kind"].is_null())
            .filter_map(|dependency| short(dependency["name"].as_str()?).map(str::to_owned))
            .collect();
        // A package outside the naming scheme keeps its name, which then is in no table.
        graph.insert(short(&name).unwrap_or(&name).to_owned(), edges);
    }
    graph
}

#[test]
fn the_crate_graph_is_the_one_in_the_table() {
    let expected: BTreeMap<String, BTreeSet<String>> = GRAPH
        .iter()
        .map(|(name, _, edges)| ((*name).to_owned(), edges.iter().map(|edge| (*edge).to_owned()).collect()))
        .collect();
    let actual = actual_graph();
    let mut faults = Vec::new();
    for name in expected.keys().chain(actual.keys()).collect::<BTreeSet<_>>() {
        match (expected.get(name), actual.get(name)) {
            (Some(_), None) => faults.push(format!("{name} is in the table, but not in the workspace")),
            (None, Some(_)) => faults.push(format!("{name} is in the workspace, but not in the table")),
            (Some(table), Some(found)) => {
                faults.extend(found.difference(table).map(|edge| format!("{name} -> {edge} is not allowed")));
                faults.extend(
                    table.difference(found).map(|edge| format!("{name} -> {edge} is gone: update the table")),
                );
            }
            (None, None) => {}
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn pure_crates_build_on_pure_crates_only() {
    let kinds: BTreeMap<&str, Kind> = GRAPH.iter().map(|(name, kind, _)| (*name, *kind)).collect();
    for (name, kind, edges) in GRAPH {
        for edge in *edges {
            let below = kinds[edge];
            assert!(below != Kind::Whole, "{name} -> {edge}: nothing depends on a whole");
            assert!(*kind != Kind::Pure || below == Kind::Pure, "{name} is pure, {edge} is not");
        }
    }
}

#[test]
fn pure_crates_have_no_reactor_socket_or_clock_below_them() {
    for name in pure_crates() {
        let package = format!("dynamo-{name}");
        let tree = cargo(&[
            "tree",
            "--package",
            &package,
            "--edges",
            "no-dev,no-build,no-proc-macro",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ]);
        let below: BTreeSet<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert!(below.contains(package.as_str()), "cargo tree printed something else: {tree}");
        let impure: Vec<_> = IMPURE_CRATES.iter().filter(|banned| below.contains(**banned)).collect();
        assert!(impure.is_empty(), "{name} is pure, but builds on {impure:?}");
    }
}

/// The lines of a source file that are compiled into the crate: without comments and without its test module.
fn product_lines(source: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut lines = source.lines().enumerate().peekable();
    std::iter::from_fn(move || {
        loop {
            let (index, line) = lines.next()?;
            if line.trim_start().starts_with("#[cfg(test)]") {
                let (_, item) = lines.next()?;
                if item.trim_start().starts_with("mod ") && item.trim_end().ends_with('{') {
                    return None;
                }
                continue;
            }
            let code = line.split("//").next().unwrap_or_default();
            if !code.trim().is_empty() {
                return Some((index + 1, code));
            }
        }
    })
}

#[test]
fn pure_crates_take_time_and_files_as_arguments() {
    let mut faults = Vec::new();
    for name in pure_crates() {
        for path in rust_files(&format!("crates/{name}/src")) {
            if path.to_string_lossy().ends_with("tests.rs") {
                continue;
            }
            let source = fs::read_to_string(&path).unwrap();
            for (line, code) in product_lines(&source) {
                for banned in IMPURE_CODE.iter().filter(|banned| code.contains(**banned)) {
                    faults.push(format!("{}:{line}: {banned}", shown(&path)));
                }
            }
        }
    }
    assert!(faults.is_empty(), "pure crates are given what these fetch:\n{}", faults.join("\n"));
}

#[test]
fn the_scan_sees_code_and_not_tests_or_comments() {
    let source = "use std::fs; // std::net\n#[cfg(test)]\nmod helper;\nlet a = 1;\n#[cfg(test)]\nmod tests {\nstd::env";
    let seen: Vec<_> = product_lines(source).map(|(line, code)| (line, code.trim())).collect();
    assert_eq!(seen, [(1, "use std::fs;"), (4, "let a = 1;")]);
}

#[test]
fn every_crate_obeys_the_workspace_lints() {
    for (name, _, _) in GRAPH {
        let manifest = fs::read_to_string(root().join(format!("crates/{name}/Cargo.toml"))).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let obeys =
            manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(toml::Value::as_bool);
        assert_eq!(obeys, Some(true), "crates/{name}/Cargo.toml lacks `[lints] workspace = true`");
    }
}

#[test]
fn every_library_says_what_it_is_and_what_it_must_never_know() {
    let mut faults = Vec::new();
    for (name, kind, _) in GRAPH {
        if *kind == Kind::Whole {
            continue;
        }
        let source = fs::read_to_string(root().join(format!("crates/{name}/src/lib.rs"))).unwrap();
        let doc: Vec<&str> = source.lines().take_while(|line| line.starts_with("//!")).collect();
        let purpose: usize = doc.iter().take_while(|line| line.trim() != "//!").map(|line| line.len()).sum();
        if purpose < 20 {
            faults.push(format!("crates/{name}/src/lib.rs opens with no paragraph on its purpose"));
        }
        if !doc.join(" ").to_lowercase().contains("must never know") {
            faults.push(format!("crates/{name}/src/lib.rs does not say what the crate must never know"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_source_file_is_too_long() {
    let mut faults = Vec::new();
    for path in rust_files("crates") {
        let lines = fs::read_to_string(&path).unwrap().lines().count();
        if lines > MAX_LINES {
            faults.push(format!("{}: {lines} lines, at most {MAX_LINES}", shown(&path)));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Files that git would ship, read from the tree so that an archive without `.git` can be tested too.
fn shipped_texts() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    for folder in ["crates", "scripts", "tests", "bench", "docs", ".ci"] {
        let folder = root().join(folder);
        if folder.is_dir() {
            for extension in ["rs", "toml", "sh", "py", "md", "txt", "json"] {
                files(&folder, extension, &mut paths);
            }
        }
    }
    paths.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "Makefile", "Cargo.toml", ".ci/run"]
            .map(|p| root().join(p)),
    );
    paths.iter().filter_map(|path| Some((shown(path), fs::read_to_string(path).ok()?))).collect()
}

#[test]
fn no_package_registry_is_named() {
    // In two halves, so that this file passes its own test.
    let hosts = [
        ("crates", ".io"),
        ("pypi", ".org"),
        ("pythonhosted", ".org"),
        ("npmjs", ".com"),
        ("deb.debian", ".org"),
    ];
    for (name, text) in shipped_texts() {
        for (host, suffix) in hosts {
            let host = format!("{host}{suffix}");
            assert!(
                !text.contains(&host),
                "{name} names {host}: clients find registries by their own settings"
            );
        }
    }
}

/// `name version features` of every third-party package in a resolved tree.
fn third_party(edges: &str) -> BTreeMap<String, String> {
    cargo(&["tree", "--workspace", "--edges", edges, "--prefix", "none", "--format", "{p}|{f}"])
        .lines()
        .filter_map(|line| line.trim_end_matches(" (*)").split_once('|'))
        .filter(|(package, _)| !package.starts_with("dynamo-"))
        .map(|(package, features)| (package.to_owned(), features.to_owned()))
        .collect()
}

#[test]
fn tests_and_binary_share_one_build_of_the_dependencies() {
    let binary = third_party("normal,build");
    let tests = third_party("normal,build,dev");
    assert!(binary.keys().any(|package| package.starts_with("serde ")), "cargo tree printed something else");
    for (package, features) in &binary {
        assert_eq!(
            tests.get(package),
            Some(features),
            "{package} has other features once a dev-dependency asks for them, so `make test` compiles it again"
        );
    }
}

/// `code` spans and code blocks of a page.
fn code_of(page: &str) -> Vec<String> {
    page.split('`').skip(1).step_by(2).map(str::to_owned).chain(fenced(page)).collect()
}

fn fenced(page: &str) -> Vec<String> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in page.lines() {
        if line.starts_with("```") {
            inside = !inside;
        } else if inside {
            lines.push(line.to_owned());
        }
    }
    lines
}

/// The words that follow `command` at the start of a code line.
fn words_after(pages: &[(String, String)], command: &str) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    for (_, page) in pages {
        for line in code_of(page) {
            let mut parts = line.split_whitespace();
            if parts.next() == Some(command)
                && let Some(word) = parts.next()
                && word.starts_with(|c: char| c.is_ascii_lowercase())
            {
                words.insert(word.to_owned());
            }
        }
    }
    words
}

fn pages() -> Vec<(String, String)> {
    shipped_texts().into_iter().filter(|(name, _)| name.ends_with(".md")).collect()
}

#[test]
fn every_make_target_in_the_pages_exists() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: BTreeSet<&str> =
        makefile.lines().filter_map(|line| line.split_once(':').map(|(name, _)| name)).collect();
    let named = words_after(&pages(), "make");
    assert!(named.contains("serve") && named.contains("test"), "README.md shows the two commands: {named:?}");
    for target in named {
        assert!(
            targets.contains(target.as_str()),
            "`make {target}` is written down, but is not in the Makefile"
        );
    }
}

#[test]
fn every_dynamo_command_in_the_pages_exists() {
    for command in words_after(&pages(), "dynamo") {
        let output = Command::new(env!("CARGO_BIN_EXE_dynamo")).args([&command, "--help"]).output().unwrap();
        assert!(output.status.success(), "`dynamo {command}` is written down, but there is no such command");
    }
}

#[test]
fn every_path_in_the_pages_exists() {
    for (name, page) in pages() {
        for code in code_of(&page) {
            let path = code.trim_end_matches('/');
            let ours = ["crates/", "scripts/", "tests/", "bench/", "docs/"]
                .iter()
                .any(|start| path.starts_with(start));
            if ours && !path.contains(|c: char| c.is_whitespace() || "*{}<>$".contains(c)) {
                assert!(root().join(path).exists(), "{name} names {path}, which is not there");
            }
        }
    }
}
