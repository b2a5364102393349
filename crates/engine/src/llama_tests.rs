use super::*;
use crate::testing::{tiny_config, tiny_weights};
use dynamo_types::draw;
use proptest::prelude::*;

const BLOCK_SIZE: usize = 16;
const BLOCKS: u32 = 64;

fn tiny(threads: usize, isa: Isa, block_size: usize) -> Llama {
    let options = KvOptions { block_size, total_blocks: BLOCKS as usize * BLOCK_SIZE / block_size };
    Llama::with_isa(tiny_weights(1).unwrap(), options, threads, isa).unwrap()
}

fn tokens(seed: u64, count: usize) -> Vec<u32> {
    (0..count as u64).map(|i| draw::index(seed, i, tiny_config().vocab_size) as u32).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// All rows of a sequence, computed at once and alone.
fn alone(model: &mut Llama, tokens: &[u32]) -> Vec<f32> {
    let blocks: Vec<BlockId> =
        (0..tokens.len().div_ceil(model.kv.layout().block_size) as u32).map(BlockId).collect();
    let mut logits = Vec::new();
    let segment = Segment { tokens, start: 0, blocks: &blocks, logits: Logits::All };
    model.forward(&[segment], &mut logits).unwrap();
    logits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Sequences of any lengths, cut into any chunks, mixed into any steps, in any blocks, on any number of threads:
    /// every row has the bits it has alone.
    #[test]
    fn rows_do_not_depend_on_the_batch(
        lengths in prop::collection::vec(1usize..120, 1..5), threads in 1usize..4, seed: u64,
    ) {
        let mut reference = tiny(1, Isa::detect(), BLOCK_SIZE);
        let mut model = tiny(threads, Isa::detect(), BLOCK_SIZE);
        let vocab = model.vocab_size();
        let sequences: Vec<Vec<u32>> =
            lengths.iter().enumerate().map(|(i, length)| tokens(seed ^ i as u64, *length)).collect();
        // Interleaved, descending block ids.
        let count = sequences.len() as u32;
        let tables: Vec<Vec<BlockId>> =
            (0..count).map(|s| (0..8).map(|b| BlockId(BLOCKS - 1 - (b * count + s))).collect()).collect();
        let mut found: Vec<Vec<f32>> = vec![Vec::new(); sequences.len()];
        let mut starts = vec![0; sequences.len()];
        let mut logits = Vec::new();
        for step in 0u64.. {
            let mut segments = Vec::new();
            let mut owners = Vec::new();
            for (s, sequence) in sequences.iter().enumerate() {
                let left = sequence.len() - starts[s];
                let take = (1 + draw::index(seed, step * 8 + s as u64, 40)).min(left);
                if take == 0 || draw::unit(seed ^ 5, step * 8 + s as u64) < 0.2 {
                    continue;
                }
                let tokens = &sequence[starts[s]..starts[s] + take];
                segments.push(Segment { tokens, start: starts[s], blocks: &tables[s], logits: Logits::All });
                owners.push(s);
                starts[s] += take;
            }
            model.forward(&segments, &mut logits).unwrap();
            let mut rows = logits.chunks_exact(vocab);
            for (segment, owner) in segments.iter().zip(owners) {
                for _ in segment.tokens {
                    found[owner].extend_from_slice(rows.next().unwrap());
                }
            }
            if starts.iter().zip(&sequences).all(|(start, sequence)| *start == sequence.len()) {
                break;
            }
        }
        for (sequence, found) in sequences.iter().zip(&found) {
            prop_assert_eq!(bits(&alone(&mut reference, sequence)), bits(found));
        }
    }
}

#[test]
fn instruction_sets_and_block_sizes_agree() {
    let tokens = tokens(3, 75);
    let expected = bits(&alone(&mut tiny(1, Isa::portable(), 16), &tokens));
    for isa in Isa::available() {
        for block_size in [16, 32, 64] {
            let found = alone(&mut tiny(1, isa, block_size), &tokens);
            assert_eq!(bits(&found), expected, "{} with blocks of {block_size}", isa.name());
        }
    }
}

#[test]
fn only_requested_rows_have_logits() {
    let mut model = tiny(1, Isa::detect(), 16);
    let (vocab, tokens) = (model.vocab_size(), tokens(4, 20));
    let all = alone(&mut model, &tokens);
    let (one, two): (Vec<_>, Vec<_>) = ((0..2).map(BlockId).collect(), (2..4).map(BlockId).collect());
    let segment = |blocks, logits| Segment { tokens: &tokens, start: 0, blocks, logits };
    let mut logits = vec![1.0; 3];
    model.forward(&[segment(&one, Logits::None), segment(&two, Logits::Last)], &mut logits).unwrap();
    assert_eq!(bits(&logits), bits(&all[19 * vocab..]));
    model.forward(&[segment(&one, Logits::None)], &mut logits).unwrap();
    assert!(logits.is_empty());
    model.forward(&[], &mut logits).unwrap();
    assert!(logits.is_empty());
}

/// A block computed by one engine and imported by another continues the sequence bit for bit.
#[test]
fn exported_blocks_continue_elsewhere() {
    let tokens = tokens(5, 33);
    let mut source = tiny(1, Isa::detect(), 16);
    let expected = alone(&mut source, &tokens);
    let mut target = tiny(1, Isa::detect(), 16);
    let mut bytes = vec![0; source.block_bytes()];
    for (from, to) in [(0, 40), (1, 7)] {
        source.export_block(BlockId(from), &mut bytes).unwrap();
        target.import_block(BlockId(to), &bytes).unwrap();
    }
    let blocks = [BlockId(40), BlockId(7), BlockId(9)];
    let mut logits = Vec::new();
    let segment = Segment { tokens: &tokens[32..], start: 32, blocks: &blocks, logits: Logits::Last };
    target.forward(&[segment], &mut logits).unwrap();
    assert_eq!(bits(&logits), bits(&expected[32 * target.vocab_size()..]));
}

#[test]
fn impossible_segments_are_refused() {
    let mut model = tiny(1, Isa::detect(), 16);
    let mut logits = Vec::new();
    let blocks = [BlockId(0)];
    let mut run = |tokens: &[u32], start, blocks: &[BlockId]| {
        let segment = Segment { tokens, start, blocks, logits: Logits::Last };
        model.forward(&[segment], &mut logits).unwrap_err()
    };
    assert_eq!(run(&[], 0, &blocks), Error::Empty);
    assert_eq!(run(&[300], 0, &blocks), Error::Token { token: 300, vocab_size: 300 });
    assert_eq!(run(&[1], 512, &blocks), Error::Context { end: 513, context_length: 512 });
    assert_eq!(run(&[1, 2], 15, &blocks), Error::Table { end: 17, blocks: 1, block_size: 16 });
    assert_eq!(run(&[1], 0, &[BlockId(64)]), Error::Block { block: 64, total_blocks: 64 });
    assert_eq!(run(&[1], usize::MAX, &blocks), Error::Context { end: usize::MAX, context_length: 512 });
}
