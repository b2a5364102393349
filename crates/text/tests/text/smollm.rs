//! The default model's own tokenizer and template.

use crate::support::{any_text, corpus};
use dynamo_text::{Detokenizer, RenderInput, Template, Tokenizer};
use dynamo_types::{ChatTemplate, TokenizerSpec};
use proptest::prelude::*;
use serde_json::{Map, json};
use std::sync::{Arc, LazyLock};

struct Model {
    ours: Arc<Tokenizer>,
    theirs: tokenizers::Tokenizer,
    template: Template,
}

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let path = dynamo_model_files::testing::model_path();
    assert!(path.exists(), "no model at {}: run `make model`", path.display());
    let files = dynamo_model_files::open(&path).unwrap();
    let json = files.tokenizer_json();
    let source = files.chat_template().unwrap();
    Model {
        theirs: json.parse().unwrap(),
        ours: Arc::new(Tokenizer::from_spec(&TokenizerSpec::HuggingFace { json }).unwrap()),
        template: Template::compile(&ChatTemplate { source: source.into() }, &files.special()).unwrap(),
    }
});

fn assert_same(text: &str) {
    let expected = MODEL.theirs.encode_fast(text, true).unwrap();
    assert_eq!(MODEL.ours.encode(text, true).unwrap(), expected.get_ids(), "{text:?}");
}

fn joined(tokens: &[u32], skip_special: bool) -> String {
    let mut detokenizer = Detokenizer::new(Arc::clone(&MODEL.ours), skip_special);
    let mut text = String::new();
    tokens.iter().for_each(|&token| detokenizer.push(token, &mut text));
    detokenizer.finish(&mut text);
    text
}

#[test]
fn known_text_has_its_known_tokens() {
    assert!(MODEL.ours.is_native());
    assert_eq!(MODEL.ours.vocab_size(), 49_152);
    let tokens =
        MODEL.ours.encode("<|im_start|>user\nThe capital of France is 2026.<|im_end|>", false).unwrap();
    assert_eq!(MODEL.ours.token_text(tokens[0]), "<|im_start|>");
    assert!(MODEL.ours.is_special(tokens[0]));
    assert_eq!(MODEL.ours.decode(&tokens, true), "user\nThe capital of France is 2026.");
    for text in corpus() {
        assert_same(&text);
    }
}

#[test]
fn r12_its_own_template_renders() {
    let messages = [json!({"role": "user", "content": "Hi"})];
    let input = RenderInput {
        messages: &messages,
        tools: None,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: &Map::new(),
        now_unix_s: 0,
    };
    assert_eq!(
        MODEL.template.render(&input).unwrap(),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn r01_any_ids_detokenize_as_in_the_tokenizers_crate(
        tokens in prop::collection::vec(0u32..49_200, 0..40), skip in any::<bool>(),
    ) {
        prop_assert_eq!(joined(&tokens, skip), MODEL.theirs.decode(&tokens, skip).unwrap());
    }

    #[test]
    fn any_text_has_the_same_tokens_and_text(text in any_text()) {
        assert_same(&text);
        // Not always the text itself: this vocabulary lacks some bytes.
        let tokens = MODEL.ours.encode(&text, false).unwrap();
        prop_assert_eq!(joined(&tokens, false), MODEL.theirs.decode(&tokens, false).unwrap());
    }
}
