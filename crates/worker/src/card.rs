//! Model cards of engines that need no model files.

use dynamo_types::{BlockContract, ChatTemplate, ModelCard, SpecialTokens, TokenizerSpec};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Ids below this are bytes; pieces follow.
pub(crate) const FIRST_PIECE: u32 = 256;

/// The plainest template that shows who said what.
const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant:{% endif %}";

/// A card with a byte tokenizer and these pieces, and limits still to be set.
pub(crate) fn byte_card(name: &str, architecture: &str, pieces: Vec<Vec<u8>>) -> ModelCard {
    ModelCard {
        name: name.into(),
        aliases: Vec::new(),
        architecture: architecture.into(),
        context_length: 0,
        vocab_size: FIRST_PIECE + pieces.len() as u32,
        tokenizer: TokenizerSpec::Bytes { pieces },
        chat_template: Some(ChatTemplate { source: Arc::from(TEMPLATE) }),
        special: SpecialTokens::default(),
        blocks: BlockContract::xxh3(16),
        layout: None,
        total_kv_blocks: 0,
        max_num_seqs: 0,
        max_num_batched_tokens: 0,
        kv_events: false,
        guided: false,
        tool_parser: None,
        reasoning_parser: None,
        created_s: now_s(),
    }
}

/// Unix seconds.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
