//! Tokenizers of the shapes that models publish, against Hugging Face's own `tokenizers` for Python
//! (`tests/data/make_tokenizers.py`). That GGUF's names mean the same is tested in `model-files`.

use crate::support::hugging_face;
use dynamo_text::Detokenizer;
use serde_json::Value;
use std::sync::{Arc, LazyLock};

static SHAPES: LazyLock<Value> = LazyLock::new(|| {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokenizers.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
});

fn shapes() -> &'static [Value] {
    SHAPES["shapes"].as_array().unwrap()
}

#[test]
fn every_published_shape_gives_the_references_tokens_and_text() {
    let mut compared = 0;
    for shape in shapes() {
        let name = &shape["name"];
        let tokenizer = hugging_face(&shape["json"].to_string());
        let (texts, ids) = (shape["texts"].as_array().unwrap(), shape["ids"].as_array().unwrap());
        for ((text, ids), decoded) in texts.iter().zip(ids).zip(shape["decoded"].as_array().unwrap()) {
            let text = text.as_str().unwrap();
            let ids: Vec<u32> = serde_json::from_value(ids.clone()).unwrap();
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids, "{name}: {text:?}");
            for (decoded, skip) in decoded.as_array().unwrap().iter().zip([false, true]) {
                let decoded = decoded.as_str().unwrap();
                assert_eq!(tokenizer.decode(&ids, skip), decoded, "{name}: {text:?} {ids:?}");
                let mut detokenizer = Detokenizer::new(Arc::clone(&tokenizer), skip);
                let mut pieces = String::new();
                ids.iter().for_each(|&id| detokenizer.push(id, &mut pieces));
                detokenizer.finish(&mut pieces);
                assert_eq!(pieces, decoded, "{name}, in pieces: {text:?}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 1500, "{compared}");
}
