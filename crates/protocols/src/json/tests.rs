use super::*;
use proptest::prelude::*;

fn read(text: &str) -> Result<Value> {
    let mut reader = Reader::new(text);
    let value = reader.value()?;
    reader.end()?;
    Ok(value)
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1e9..1e9f64).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[a-z\"\\\\\n]{0,4}", inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Reads strings with the reader's own code, not with serde's.
fn tree(reader: &mut Reader<'_>) -> Result<Value> {
    Ok(match reader.peek()? {
        Kind::String => Value::from(reader.string()?.into_owned()),
        Kind::Array => {
            let mut items = Vec::new();
            reader.array("", |reader, _| {
                items.push(tree(reader)?);
                Ok(())
            })?;
            Value::from(items)
        }
        Kind::Object => {
            let mut map = serde_json::Map::new();
            reader.object("", |reader, key| {
                map.insert(key.into(), tree(reader)?);
                Ok(())
            })?;
            Value::Object(map)
        }
        _ => reader.value()?,
    })
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(
            map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), without_nulls(v))).collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

proptest! {
    #[test]
    fn reads_what_serde_reads(value in json(), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
        // serde_json itself reads some numbers back one bit off.
        let value: Value = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(&read(&text).unwrap(), &value);
        prop_assert_eq!(tree(&mut Reader::new(&text)).unwrap(), without_nulls(&value));
    }

    #[test]
    fn refuses_what_serde_refuses(value in json(), cut in any::<prop::sample::Index>(), put in "[\\]\\[{}\",:0-9a-z.eE+\\\\ -]{0,2}") {
        let mut text = serde_json::to_string(&value).unwrap();
        let at = (0..=cut.index(text.len() + 1)).rev().find(|&i| text.is_char_boundary(i)).unwrap();
        let end = (at..=text.len()).nth(1).filter(|&i| text.is_char_boundary(i)).unwrap_or(at);
        text.replace_range(at..end, &put);
        let theirs = serde_json::from_str::<Value>(&text);
        let ours = read(&text);
        prop_assert_eq!(theirs.is_ok(), ours.is_ok(), "{}: {:?} {:?}", text, theirs, ours);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = document(&bytes, |reader, _| reader.unknown());
    }

    #[test]
    fn token_ids_are_read_exactly(ids in prop::collection::vec(any::<u32>(), 0..50), pretty in any::<bool>()) {
        let text = if pretty { serde_json::to_string_pretty(&ids) } else { serde_json::to_string(&ids) }.unwrap();
        prop_assert_eq!(Reader::new(&text).token_ids(&crate::limits::TOKEN_ID).unwrap(), ids);
    }
}

#[test]
fn escapes_are_decoded() {
    let mut reader = Reader::new(r#""a\n\"\\\/\u00e9\ud83d\ude00\u2028""#);
    assert_eq!(reader.string().unwrap(), "a\n\"\\/é😀\u{2028}");
    for bad in
        [r#""\ud83d""#, r#""\ude00""#, r#""\ud83dx""#, r#""\u12g4""#, r#""\x""#, "\"a\nb\"", "\"a", r#""\"#]
    {
        assert!(Reader::new(bad).string().is_err(), "{bad}");
    }
}

#[test]
fn nesting_is_bounded() {
    for open in ["[", r#"{"a":"#] {
        let deep = open.repeat(100_000);
        let error = document(format!("{{\"a\":{deep}").as_bytes(), |reader, _| reader.unknown()).unwrap_err();
        assert!(error.message().contains("nested more than 96 levels"), "{error}");
    }
    let fine = format!("{}{}", "[".repeat(90), "]".repeat(90));
    assert!(read(&fine).is_ok());
}

#[test]
fn syntax_errors_have_a_place_and_no_body() {
    let body = format!("{{\n  \"a\": \"{}\" x}}", "secret".repeat(100));
    let error = document(body.as_bytes(), |reader, _| reader.unknown()).unwrap_err();
    assert_eq!(
        error.message(),
        "the body is not valid JSON: expected ',' or '}' at line 2, column 611 (byte 612)"
    );
    let error = document(b"{\"a\":\"\xff\"}", |reader, _| reader.unknown()).unwrap_err();
    assert_eq!(error.message(), "the body is not valid UTF-8 at byte 6");
    let error = document(b"", |reader, _| reader.unknown()).unwrap_err();
    assert!(error.message().contains("empty"), "{error}");
    let error = document(b"[1]", |reader, _| reader.unknown()).unwrap_err();
    assert_eq!(error.message(), "the request body: expected a JSON object, found an array");
}

#[test]
fn names_of_dropped_fields_are_bounded() {
    let fields: Vec<String> = (0..1000).map(|i| format!("\"{}{i}\":1", "k\\n".repeat(500))).collect();
    let body = format!("{{{}}}", fields.join(","));
    let dropped = document(body.as_bytes(), |reader, _| reader.unknown()).unwrap();
    assert!(dropped.len() <= MAX_DROPPED);
    assert!(dropped.iter().all(|name| name.len() < 80 && !name.contains('\n')));
}

#[test]
fn the_last_duplicate_that_is_not_null_wins() {
    let value = tree(&mut Reader::new(r#"{"a":1,"a":2,"a":null}"#)).unwrap();
    assert_eq!(value, serde_json::json!({"a": 2}));
}
