//! Model cards: of what model files say, and of engines that need no files. Limits are set by the engine.

use dynamo_model_files::ModelFiles;
use dynamo_text::Tokenizer;
use dynamo_types::{BlockContract, ChatTemplate, Error, ModelCard, SpecialTokens, Spelling, TokenizerSpec};
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
        limits_thinking: false,
        tool_parser: None,
        reasoning_parser: None,
        tasks: vec![dynamo_types::Task::Generate],
        embedding_size: None,
        created_s: now_s(),
    }
}

/// A card with all that the files say, and limits still to be set.
pub(crate) fn file_card(files: &ModelFiles, served_name: Option<&str>) -> ModelCard {
    let config = files.config();
    ModelCard {
        name: served_name.map_or_else(|| files.name(), Into::into).into(),
        aliases: Vec::new(),
        architecture: config.architecture.name().into(),
        context_length: clamp(config.context_length),
        vocab_size: clamp(config.vocab_size),
        tokenizer: TokenizerSpec::HuggingFace { json: files.tokenizer_json() },
        chat_template: files.chat_template().map(|source| ChatTemplate { source: source.into() }),
        special: files.special(),
        blocks: BlockContract::xxh3(0),
        layout: None,
        total_kv_blocks: 0,
        max_num_seqs: 0,
        max_num_batched_tokens: 0,
        kv_events: false,
        guided: false,
        limits_thinking: false,
        tool_parser: None,
        reasoning_parser: None,
        tasks: vec![dynamo_types::Task::Generate],
        embedding_size: None,
        created_s: now_s(),
    }
}

/// What the tokens of a model spell that has reasoning of a known family; others have nothing to limit.
///
/// # Errors
/// The card's tokenizer cannot be used.
pub(crate) fn spelling(card: &ModelCard) -> Result<Option<Arc<Spelling>>, Error> {
    if card.reasoning_parser.is_none() {
        return Ok(None);
    }
    let tokenizer = Tokenizer::from_spec(&card.tokenizer)?;
    let spell = |token, bytes: &mut Vec<u8>| bytes.extend_from_slice(tokenizer.token_bytes(token));
    Ok(Some(Arc::new(Spelling::new(card.vocab_size, spell))))
}

pub(crate) fn clamp(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

/// Unix seconds.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
