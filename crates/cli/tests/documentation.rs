//! Pages that repeat what the code says are compared with it.

use std::fs;
use std::path::Path;

/// Set to have the generated parts written instead of compared.
const WRITE: &str = "DYNAMO_WRITE_DOCS";

#[test]
fn the_field_table_is_the_enforced_one() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once("<!-- fields -->\n").expect("the table has a beginning");
    let (table, after) = rest.split_once("<!-- /fields -->").expect("the table has an end");
    let expected = dynamo_protocols::limits::markdown();
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, format!("{before}<!-- fields -->\n{expected}<!-- /fields -->{after}")).unwrap();
    } else {
        assert_eq!(table, expected, "docs/api.md is out of date: run this test with {WRITE}=1");
    }
}
