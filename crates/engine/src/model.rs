//! What the engine's core needs of a model: a forward pass over a flat batch of paged sequences, and its KV blocks
//! as bytes.

use dynamo_blocks::BlockId;
use std::fmt;

/// What is wanted of the rows of a [`Segment`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logits {
    /// A prefill chunk that is not the last one.
    None,
    /// Only the last row: the next token is wanted.
    Last,
    /// Every row: prompt log-probabilities are wanted.
    All,
    /// No scores, but every row's hidden state after the final norm: the prompt is to be embedded.
    States,
}

impl Logits {
    /// Of how many rows of a segment of `tokens` tokens this asks for scores.
    pub fn rows(self, tokens: usize) -> usize {
        match self {
            Self::None | Self::States => 0,
            Self::Last => tokens.min(1),
            Self::All => tokens,
        }
    }

    /// The same for hidden states.
    pub fn states(self, tokens: usize) -> usize {
        match self {
            Self::States => tokens,
            Self::None | Self::Last | Self::All => 0,
        }
    }
}

/// A run of consecutive tokens of one sequence within a step.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The tokens to compute, at least one.
    pub tokens: &'a [u32],
    /// Position of `tokens[0]` in its sequence; everything before it is in `blocks` already.
    pub start: usize,
    /// The sequence's block table: block `i` holds positions `i * block_size..(i + 1) * block_size`. Must cover
    /// `start + tokens.len()` positions. Blocks that are written in this step belong to this segment alone.
    pub blocks: &'a [BlockId],
    pub logits: Logits,
}

/// A forward pass that cannot be done as asked. A fault of the caller, except for [`Error::Threads`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A segment without tokens.
    Empty,
    /// A token id the model does not have.
    Token { token: u32, vocab_size: usize },
    /// A segment reaches beyond the context length.
    Context { end: usize, context_length: usize },
    /// The block table is too short for the segment.
    Table { end: usize, blocks: usize, block_size: usize },
    /// A block id beyond the store.
    Block { block: u32, total_blocks: usize },
    /// A block's bytes have the wrong length.
    BlockBytes { expected: usize, found: usize },
    /// A block's bytes hold a number that is none, or infinite: a sequence that used it would lose all its scores.
    BlockContent { element: usize },
    /// Options that cannot be served.
    Options { message: String },
    /// The thread pool could not be started.
    Threads { message: String },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "a segment has no tokens"),
            Self::Token { token, vocab_size } => {
                write!(f, "token id {token} is outside the vocabulary of {vocab_size}")
            }
            Self::Context { end, context_length } => {
                write!(f, "a segment ends at position {end}, beyond the context length of {context_length}")
            }
            Self::Table { end, blocks, block_size } => write!(
                f,
                "a segment ends at position {end}, its table has only {blocks} blocks of {block_size} tokens"
            ),
            Self::Block { block, total_blocks } => {
                write!(f, "block id {block} is outside the store of {total_blocks} blocks")
            }
            Self::BlockBytes { expected, found } => {
                write!(f, "a KV block has {expected} bytes, {found} were given")
            }
            Self::BlockContent { element } => {
                write!(f, "element {element} of a KV block is not a finite number")
            }
            Self::Options { message } => f.write_str(message),
            Self::Threads { message } => write!(f, "cannot start the compute threads: {message}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for dynamo_types::Error {
    fn from(error: Error) -> Self {
        Self::engine("the engine could not compute this step").with_detail(error.to_string())
    }
}

/// A decoder whose KV cache is paged.
///
/// The scores and the state of a row are the same, bit for bit, whatever else is in the batch, however the sequence was cut into
/// segments, and whichever block ids hold it.
pub trait Model: Send {
    /// Scores per row.
    fn vocab_size(&self) -> usize;

    /// Highest number of positions of one sequence.
    fn context_length(&self) -> usize;

    /// Length of a row's hidden state; 0 if the model gives none away.
    fn hidden_size(&self) -> usize {
        0
    }

    /// Computes all segments, writing their keys and values into their blocks. `logits` is cleared and then receives
    /// [`Model::vocab_size`] floats for each row whose scores are wanted, in segment order, and behind them
    /// [`Model::hidden_size`] floats for each row whose state is.
    ///
    /// A segment may attend to blocks that another segment of the same call writes: in each layer all keys and values
    /// are written before any row attends.
    fn forward(&mut self, segments: &[Segment<'_>], logits: &mut Vec<f32>) -> Result<(), Error>;

    /// Size of one KV block over all layers.
    fn block_bytes(&self) -> usize;

    /// Copies a block out; `bytes` must have [`Model::block_bytes`] bytes.
    fn export_block(&self, block: BlockId, bytes: &mut [u8]) -> Result<(), Error>;

    /// Copies a block in; `bytes` must have [`Model::block_bytes`] bytes, all of them finite numbers. What is refused leaves
    /// the block as it was.
    fn import_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), Error>;
}
