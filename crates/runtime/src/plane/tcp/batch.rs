//! Reads batch frames, by hand: there is one for every step of every worker, and serde's general way took a tenth of all
//! that a frontend does for a token. Only the usual form is read here, new tokens and an end. An item in any other form,
//! one with fields from the future among them, is left to serde as a whole, so both ways know the same language.

use super::Error;
use super::frame::{self, Batch, Item};
use super::pack::Bytes;
use dynamo_types::{Delta, FinishReason};
use serde::Deserialize;
use serde::de::value::{BorrowedStrDeserializer, Error as NoSuchVariant};

/// Items for which memory is kept between two batches.
const KEPT_ITEMS: usize = 1024;

/// Reads batches into memory that is used again.
#[derive(Default)]
pub(super) struct Batches {
    items: Vec<Item>,
}

impl Batches {
    /// The items of a batch frame.
    ///
    /// # Errors
    /// It is no batch. Nothing of it is handed out.
    pub(super) fn read(&mut self, body: &[u8]) -> Result<impl Iterator<Item = Item> + '_, Error> {
        self.items.clear();
        self.items.shrink_to(KEPT_ITEMS);
        match begin(body) {
            Some((count, items)) => read_items(count, items, &mut self.items)?,
            None => self.items = frame::parse::<Batch>(body)?.items,
        }
        Ok(self.items.drain(..))
    }
}

/// How many items there are, and what follows; `None`: ask serde.
fn begin(body: &[u8]) -> Option<(usize, Bytes<'_>)> {
    let mut bytes = Bytes::new(body);
    if bytes.map()? != 1 || bytes.text()? != b"items" {
        return None;
    }
    Some((bytes.list()?, bytes))
}

fn read_items(count: usize, mut bytes: Bytes<'_>, items: &mut Vec<Item>) -> Result<(), Error> {
    for _ in 0..count {
        let (mut ahead, mut item) = (bytes, Item { stream: 0, delta: Delta::default(), error: None });
        if ahead.item(&mut item).is_some() {
            bytes = ahead;
        } else {
            // Takes the bytes of one value and leaves the rest.
            item =
                rmp_serde::from_read(bytes.left_mut()).map_err(|error| Error::Decode(error.to_string()))?;
        }
        items.push(item);
    }
    Ok(())
}

impl Bytes<'_> {
    /// Fills a fresh item.
    fn item(&mut self, item: &mut Item) -> Option<()> {
        let (mut stream, mut is_told) = (None, false);
        for _ in 0..self.map()? {
            let name = self.text()?;
            if is(name, b"stream") && stream.is_none() {
                stream = Some(self.number()?);
            } else if is(name, b"delta") && !is_told {
                is_told = true;
                self.delta(&mut item.delta)?;
            } else {
                return None;
            }
        }
        item.stream = stream?;
        Some(())
    }

    fn delta(&mut self, delta: &mut Delta) -> Option<()> {
        for _ in 0..self.map()? {
            let name = self.text()?;
            if is(name, b"tokens") && delta.tokens.is_empty() {
                delta.tokens = self.tokens()?;
            } else if is(name, b"cached_tokens") && delta.cached_tokens.is_none() {
                delta.cached_tokens = Some(self.small_number()?);
            } else if is(name, b"finish") && delta.finish.is_none() {
                delta.finish = Some(self.finish()?);
            } else {
                return None;
            }
        }
        Some(())
    }

    fn finish(&mut self) -> Option<FinishReason> {
        let name = std::str::from_utf8(self.text()?).ok()?;
        FinishReason::deserialize(BorrowedStrDeserializer::<NoSuchVariant>::new(name)).ok()
    }
}

/// Of known length, names are compared in place and not by a call.
#[inline]
fn is<const N: usize>(found: &[u8], name: &[u8; N]) -> bool {
    found.len() == N && found.first_chunk() == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_types::{Error as Fault, TokenLogprob};
    use proptest::prelude::*;
    use serde::Serialize;

    /// An item as workers of any age may write it.
    #[derive(Clone, Debug, Serialize)]
    struct Newer {
        stream: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        colour: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        delta: Option<Delta>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<Fault>,
    }

    #[derive(Debug, Serialize)]
    struct NewerBatch {
        #[serde(skip_serializing_if = "Option::is_none")]
        step: Option<u64>,
        items: Vec<Newer>,
    }

    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![0u64..300, 60_000u64..70_000, any::<u64>()]
    }

    fn finish() -> impl Strategy<Value = FinishReason> {
        prop_oneof![
            Just(FinishReason::Stop),
            Just(FinishReason::Length),
            Just(FinishReason::ToolCalls),
            Just(FinishReason::ContentFilter),
        ]
    }

    fn delta() -> impl Strategy<Value = Delta> {
        let logprob = TokenLogprob { token: 3, logprob: -0.5, top: vec![(4, -1.5)] };
        (
            prop::collection::vec(number().prop_map(|number| number as u32), 0..20),
            prop::option::weighted(0.2, number().prop_map(|number| number as u32)),
            prop::option::weighted(0.2, finish()),
            prop::option::weighted(0.1, Just(vec![1.5f32, -2.0])),
            prop::collection::vec(Just(logprob), 0..2),
        )
            .prop_map(|(tokens, cached_tokens, finish, embedding, logprobs)| Delta {
                tokens,
                cached_tokens,
                finish,
                embedding,
                logprobs,
                ..Delta::default()
            })
    }

    fn batch() -> impl Strategy<Value = NewerBatch> {
        let item = (
            number(),
            prop::option::weighted(0.1, Just("green")),
            prop::option::weighted(0.9, delta()),
            prop::option::weighted(0.1, Just(Fault::engine("it broke").with_detail("oh"))),
        )
            .prop_map(|(stream, colour, delta, error)| Newer { stream, colour, delta, error });
        (prop::option::weighted(0.1, number()), prop::collection::vec(item, 0..40))
            .prop_map(|(step, items)| NewerBatch { step, items })
    }

    fn by_hand(body: &[u8]) -> Result<Vec<(u64, Delta, Option<Fault>)>, Error> {
        let mut batches = Batches::default();
        let items = batches.read(body)?;
        Ok(items.map(|item| (item.stream, item.delta, item.error)).collect())
    }

    fn by_serde(body: &[u8]) -> Result<Vec<(u64, Delta, Option<Fault>)>, Error> {
        let items = frame::parse::<Batch>(body)?.items;
        Ok(items.into_iter().map(|item| (item.stream, item.delta, item.error)).collect())
    }

    proptest! {
        /// Both ways read the same out of whole frames, of any age.
        #[test]
        fn it_reads_what_serde_reads(batch in batch(), as_list in any::<bool>()) {
            let body = if as_list { rmp_serde::to_vec(&batch) } else { rmp_serde::to_vec_named(&batch) }.unwrap();
            let expected = by_serde(&body);
            prop_assert!(as_list || expected.is_ok());
            prop_assert_eq!(by_hand(&body).ok(), expected.ok());
        }

        /// What is cut or damaged is refused by both or read alike by both.
        #[test]
        fn damage_is_judged_as_serde_judges_it(batch in batch(), at in any::<usize>(), byte in any::<u8>()) {
            let body = rmp_serde::to_vec_named(&batch).unwrap();
            let cut = &body[..at % body.len()];
            prop_assert!(by_serde(cut).is_err() && by_hand(cut).is_err());
            let mut damaged = body.clone();
            damaged[at % body.len()] = byte;
            if let Ok(expected) = by_serde(&damaged) {
                // NaN is never equal to itself, so texts are compared.
                prop_assert_eq!(format!("{:?}", by_hand(&damaged)), format!("{:?}", Ok::<_, Error>(expected)));
            }
        }
    }

    #[test]
    fn a_step_of_plain_tokens_needs_no_serde() {
        let delta = Delta { tokens: vec![70_000, 5], cached_tokens: Some(64), ..Delta::default() };
        let last = Delta { tokens: vec![1], finish: Some(FinishReason::Length), ..Delta::default() };
        let item = |stream, delta| Item { stream, delta, error: None };
        let body = rmp_serde::to_vec_named(&Batch { items: vec![item(1, delta), item(300, last)] }).unwrap();
        let (count, mut bytes) = begin(&body).unwrap();
        assert_eq!(count, 2);
        let mut read = Item { stream: 0, delta: Delta::default(), error: None };
        assert!(bytes.item(&mut read).is_some());
        read.delta = Delta::default();
        assert!(bytes.item(&mut read).is_some() && bytes.left() == 0);
        assert_eq!((read.stream, &*read.delta.tokens), (300, &[1][..]));
    }

    #[test]
    fn an_announced_length_allocates_nothing() {
        let mut body = rmp_serde::to_vec_named(&Batch { items: Vec::new() }).unwrap();
        body.pop();
        body.extend_from_slice(&[0xdd, 0xff, 0xff, 0xff, 0xff]);
        assert!(by_hand(&body).is_err());
        assert_eq!(Bytes::new(&[0xdd, 0xff, 0xff, 0xff, 0xff, 1]).tokens(), None);
    }
}
