//! R36 over random prompts: what a block is depends on all that its contents depend on, and on nothing else.

use dynamo_types::draw;
use dynamo_types::hash::{Scope, local_hash_with_media, local_hashes, sequence_hashes};

const CASES: u64 = 1000;

/// Where one row of hashes begins to differ from another of the same length.
fn differ_from(one: &[u64], other: &[u64]) -> Option<usize> {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).position(|(one, other)| one != other)
}

#[test]
fn r36_a_block_is_its_tokens_adapter_tenant_and_media() {
    for case in 0..CASES {
        let draw = |at: u64, len: usize| draw::index(case, at, len);
        let block_size = [4, 16, 64][draw(0, 3)];
        let blocks = 1 + draw(1, 8);
        let tokens: Vec<u32> = (0..(blocks * block_size + draw(2, block_size)) as u64)
            .map(|at| draw::bits(case ^ 0xA5, at) as u32)
            .collect();
        let names = ["", "a", "b", "tenant", "tenantA"];
        let scope = |at: u64| Scope { lora: Some(names[draw(at, 5)]), salt: Some(names[draw(at + 1, 5)]) };
        let (one, other) = (scope(3), scope(5));
        let plain = local_hashes(&tokens, block_size, &Scope::default());
        assert_eq!(plain.len(), blocks, "only whole blocks have a hash");
        let (of_one, of_other) =
            (local_hashes(&tokens, block_size, &one), local_hashes(&tokens, block_size, &other));
        let same = (one.lora, one.salt) == (other.lora, other.salt);
        assert_eq!(differ_from(&of_one, &of_other), (!same).then_some(0), "case {case}: {one:?} {other:?}");
        assert!(same || of_one.iter().zip(&of_other).all(|(one, other)| one != other), "case {case}");
        let nothing = Scope { lora: Some(""), salt: Some("") };
        assert_eq!(local_hashes(&tokens, block_size, &nothing), plain, "case {case}: empty is none");
        // A picture in one block: those before it are shared, it and those behind it are not.
        let at = draw(7, blocks);
        let with_media = |media: &[u64]| {
            let mut locals = of_one.clone();
            locals[at] =
                local_hash_with_media(&tokens[at * block_size..(at + 1) * block_size], media, one.seed());
            sequence_hashes(&locals)
        };
        let chain = sequence_hashes(&of_one);
        let (cat, dog) = (1 + draw::bits(case, 100), 1 + draw::bits(case, 101));
        assert_eq!(with_media(&[]), chain, "case {case}: no picture is the plain hash");
        assert_eq!(differ_from(&with_media(&[cat]), &chain), Some(at), "case {case}");
        assert_eq!(differ_from(&with_media(&[cat]), &with_media(&[dog])), Some(at), "case {case}");
        assert_eq!(with_media(&[cat, dog]), with_media(&[dog, cat]), "case {case}: in no order");
        // One token changes its own block and all behind it.
        let changed = draw(8, blocks * block_size);
        let mut edited = tokens.clone();
        edited[changed] = edited[changed].wrapping_add(1);
        let edited = sequence_hashes(&local_hashes(&edited, block_size, &one));
        assert_eq!(differ_from(&edited, &chain), Some(changed / block_size), "case {case}");
        // It is a function of these alone.
        assert_eq!(sequence_hashes(&local_hashes(&tokens, block_size, &one)), chain);
    }
}
