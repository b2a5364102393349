//! Pages that repeat what the code says are compared with it.

use dynamo_protocols::limits::{self, Routes};
use std::fs;
use std::path::Path;

/// Set to have the generated parts written instead of compared.
const WRITE: &str = "DYNAMO_WRITE_DOCS";

#[test]
fn the_field_tables_are_the_enforced_ones() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let mut page = fs::read_to_string(&path).unwrap();
    let writes = std::env::var_os(WRITE).is_some();
    for (name, expected) in [
        ("fields".to_owned(), limits::markdown()),
        table(Routes::MESSAGES.and(Routes::COUNT_TOKENS)),
        table(Routes::RESPONSES.and(Routes::INPUT_TOKENS)),
    ] {
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
        let (before, rest) = page.split_once(&begin).expect("the table has a beginning");
        let (found, after) = rest.split_once(&end).expect("the table has an end");
        assert!(writes || found == expected, "docs/api.md is out of date: run this test with {WRITE}=1");
        page = format!("{before}{begin}{expected}{end}{after}");
    }
    if writes {
        fs::write(&path, page).unwrap();
    }
}

/// A table of the fields of some routes, and its name in the page.
fn table(routes: Routes) -> (String, String) {
    (format!("fields {}", routes.names()), limits::markdown_of(routes))
}
