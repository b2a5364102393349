//! `nvext` of an answer: what the client asked for in `nvext.extra_fields` (behaviour.md 1.7).

use super::logprobs::{TokenLogprob, json_number};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use std::sync::Arc;

/// One object per chunk, and per choice of a whole answer. Absent fields were not asked for, or are not known yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct AnswerExtensions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<WorkerIds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timing: Option<Timing>,
    /// What of the client's own ended the choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Sampled since the last chunk, hidden ones included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Arc<[u32]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// Puts what was asked for besides, one per choice, where clients look for it: an answer of one choice has it at its `root`,
/// as chunks do.
pub(crate) fn place<'a>(
    root: &mut Option<AnswerExtensions>,
    choices: impl ExactSizeIterator<Item = &'a mut Option<AnswerExtensions>>,
    mut each: Vec<Option<AnswerExtensions>>,
) {
    if choices.len() == 1 {
        *root = each.pop().flatten();
    } else {
        choices.zip(each).for_each(|(choice, nvext)| *choice = nvext);
    }
}

/// Who answers. Where one worker does both parts, both name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerIds {
    pub prefill_worker_id: u64,
    pub prefill_dp_rank: u32,
    pub decode_worker_id: u64,
    pub decode_dp_rank: u32,
}

/// Where the time of a choice went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Unix time.
    pub request_received_ms: u64,
    /// From there until it was sent to the worker that answers.
    pub prefill_wait_time_ms: f64,
    /// From there to the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_time_ms: Option<f64>,
    /// From receipt to the first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttft_ms: Option<f64>,
    /// From receipt to the end of the choice.
    pub total_time_ms: f64,
    /// Share of the prompt's blocks that the router found cached. Only of routers that look.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_hit_rate: Option<f64>,
}

/// The stop string, or the stop token's id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StopReason {
    Text(String),
    Token(u32),
}

/// One entry per prompt token: null for the first, which nothing predicts, else a map from token id to its
/// log-probability, the token itself and its likeliest rivals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptLogprobs(pub Vec<(u32, TokenLogprob, Vec<u32>)>);

#[derive(Serialize)]
struct Entry<'a> {
    logprob: f32,
    decoded_token: &'a str,
}

/// One prompt token with its rivals' ids.
struct Position<'a>(&'a (u32, TokenLogprob, Vec<u32>));

impl Serialize for Position<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (id, token, rivals) = self.0;
        let mut map = serializer.serialize_map(None)?;
        let logprob = json_number(token.logprob.unwrap_or_default());
        map.serialize_entry(id, &Entry { logprob, decoded_token: &token.token })?;
        for (rival, top) in rivals.iter().zip(&token.top).filter(|(rival, _)| *rival != id) {
            let entry = Entry { logprob: json_number(top.logprob), decoded_token: &top.token };
            map.serialize_entry(rival, &entry)?;
        }
        map.end()
    }
}

impl Serialize for PromptLogprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for position in &self.0 {
            let known = position.1.logprob.map(|_| Position(position));
            list.serialize_element(&known)?;
        }
        list.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::TopLogprob;
    use serde_json::json;

    #[test]
    fn only_what_is_known_is_written() {
        assert_eq!(json!(AnswerExtensions::default()), json!({}));
        let ids =
            WorkerIds { prefill_worker_id: u64::MAX, decode_worker_id: u64::MAX, ..WorkerIds::default() };
        let top = |token: &str, logprob| TopLogprob { token: token.into(), bytes: vec![], logprob };
        let first = TokenLogprob { token: "a".into(), ..TokenLogprob::default() };
        let second = TokenLogprob {
            token: "b".into(),
            logprob: Some(-0.5),
            top: vec![top("c", -0.25), top("b", -0.5), top("d", f32::NEG_INFINITY)],
            ..TokenLogprob::default()
        };
        let answer = AnswerExtensions {
            worker_id: Some(ids),
            stop_reason: Some(StopReason::Token(7)),
            completion_token_ids: Some(vec![]),
            prompt_token_ids: Some(Arc::from([1, 2])),
            prompt_logprobs: Some(PromptLogprobs(vec![(1, first, vec![]), (2, second, vec![3, 2, 4])])),
            timing: None,
        };
        let expected = json!({
            "worker_id": {"prefill_worker_id": u64::MAX, "prefill_dp_rank": 0, "decode_worker_id": u64::MAX, "decode_dp_rank": 0},
            "stop_reason": 7, "completion_token_ids": [], "prompt_token_ids": [1, 2],
            "prompt_logprobs": [null, {
                "2": {"logprob": -0.5, "decoded_token": "b"}, "3": {"logprob": -0.25, "decoded_token": "c"},
                "4": {"logprob": -9999.0, "decoded_token": "d"}}]
        });
        assert_eq!(json!(answer), expected);
        assert_eq!(json!(StopReason::Text("x".into())), json!("x"));
    }
}
