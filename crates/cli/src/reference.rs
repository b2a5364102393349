//! The generated pages under `docs/` are compared with the code; `DYNAMO_WRITE_DOCS=1` has them written instead.

mod theirs;

use crate::planes::Planes;
use crate::settings::{self, Settings};
use dynamo_runtime::config;
use std::fmt::Write;
use std::path::Path;

fn compare(page: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    if std::env::var_os("DYNAMO_WRITE_DOCS").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == expected,
        "docs/{page} is out of date: DYNAMO_WRITE_DOCS=1 cargo test --release -p dynamo-cli"
    );
}

#[test]
fn the_configuration_page_is_the_codes_own() {
    let table = config::reference::<Settings>(&settings::schema()).unwrap();
    let unexplained: Vec<&str> = table.lines().filter(|line| line.ends_with("|  |")).collect();
    assert!(unexplained.is_empty(), "keys without a meaning: {unexplained:?}");
    compare(
        "configuration.md",
        &format!(
            "# Configuration of `dynamo serve`\n\n\
             Layers, later ones win: defaults, the TOML file given with `--config`, the environment, flags. Any key can be given as\n\
             `--set KEY=VALUE`. `dynamo serve --print-config` shows the effective values and where each came from. `DYN_LOG` filters logs.\n\n\
             {table}"
        ),
    );
}

#[tokio::test]
async fn the_metrics_page_is_the_codes_own() {
    let mut settings = Settings::default();
    settings.frontend.port = 0;
    settings.trace.export = true;
    let planes = Planes::alone(&settings).unwrap();
    let _frontend = planes.frontend(&settings).await.unwrap();
    let _worker = planes.worker().unwrap();
    let mut table = String::from("| Family | Kind | Labels | Meaning |\n|---|---|---|---|\n");
    // `dynamo router` has some of its own; the rest it shares with frontends.
    settings.trace.export = false;
    settings.selection.port = 0;
    let alone = Planes::alone(&settings).unwrap();
    let _router = alone.router(&settings).await.unwrap();
    let mut families = planes.registry.families();
    let known: Vec<_> = families.iter().map(|family| family.name.clone()).collect();
    families.extend(alone.registry.families().into_iter().filter(|family| !known.contains(&family.name)));
    families.sort_by(|one, other| one.name.cmp(&other.name));
    for (start, names) in theirs::SHARED {
        for name in *names {
            let name = format!("{start}{name}");
            assert!(families.iter().any(|family| family.name == name), "{name} is not there any more");
        }
    }
    let mut absent = String::from("| Family | Why not |\n|---|---|\n");
    for (names, why) in theirs::ABSENT {
        let is_here = |name: &str| families.iter().any(|family| theirs::means(name, &family.name));
        let names: Vec<String> =
            names.iter().filter(|name| !is_here(name)).map(|name| format!("`{name}`")).collect();
        if names.is_empty() {
            continue;
        }
        writeln!(absent, "| {} | {why} |", names.join(", ")).unwrap();
    }
    for family in families {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(table, "| `{}` | {} | {} | {} |", family.name, family.kind, labels.join(", "), family.help)
            .unwrap();
    }
    compare(
        "metrics.md",
        &format!(
            "# Metrics\n\n\
             `GET /metrics` shows them in Prometheus' text format. A family with labels appears with its first series. \
             With `system.port` every role has them at a port of its own, beside `/health` and `/live`. \
             `DYN_METRICS_<kind>_MIN`, `_MAX` and `_COUNT` change the edges of histograms; the kinds are {}.\n\n{table}\n\
             ## Metrics of the reference without counterpart\n\n\
             Its other families are here under the same names. Answers' bytes are counted for the process, because a frame carries \
             those of all its workers.\n\n{absent}",
            dynamo_runtime::metrics::Buckets::KINDS
                .iter()
                .filter_map(|kind| kind.kind())
                .map(|kind| format!("`{kind}`"))
                .collect::<Vec<_>>()
                .join(", ")
        ),
    );
}
