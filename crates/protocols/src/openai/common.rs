//! The fields that all APIs share which generate text.

use crate::json::Reader;
use crate::limits::{self, Effect, Limits, Routes};
use crate::options::Options;
use dynamo_types::{Class, Error, Guide, InstanceId, RoutingHints, Sampling};
use std::sync::Arc;

use super::nvext::{Annotations, Extensions, ExtraFields};
use super::response_format::Guides;

pub(super) type Result<T, E = Error> = std::result::Result<T, E>;

/// APIs that show log-probabilities.
const CHAT_OR_COMPLETIONS: Routes = Routes::CHAT.and(Routes::COMPLETIONS);

/// Validated, with defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Common {
    /// Name or alias of the model, as the client wrote it.
    pub model: String,
    /// Choices per prompt.
    pub n: u32,
    pub stream: bool,
    /// One last chunk with the token counts (R05).
    pub include_usage: bool,
    /// Token counts on every chunk.
    pub continuous_usage: bool,
    pub temperature: f32,
    pub top_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    /// None: the frontend draws one.
    pub seed: Option<u64>,
    /// Sorted by token id.
    pub logit_bias: Vec<(u32, f32)>,
    /// None: up to the context limit.
    pub max_tokens: Option<u32>,
    pub min_tokens: u32,
    pub ignore_eos: bool,
    /// What the answer must look like.
    pub guide: Option<Guide>,
    /// Texts that end the answer; none is empty.
    pub stop: Vec<String>,
    /// Token ids that end the answer, those given inside `stop` included.
    pub stop_token_ids: Vec<u32>,
    pub include_stop_str_in_output: bool,
    pub skip_special_tokens: bool,
    /// Alternatives to report with each answer token; None: no log-probabilities.
    pub logprobs: Option<u32>,
    pub user: Option<String>,
    /// Never empty.
    pub cache_salt: Option<Arc<str>>,
    /// Higher goes first, whatever `priority` says.
    pub strict_priority: u32,
    /// Higher goes first.
    pub priority: i32,
    /// Pinned worker, and rank: of that worker, or of any.
    pub worker: Option<InstanceId>,
    pub rank: Option<u32>,
    /// The same for the prefill, where that has workers of its own.
    pub prefill_worker: Option<InstanceId>,
    pub prefill_rank: Option<u32>,
    /// The messages' text is the prompt, without a template.
    pub raw_prompt: bool,
    /// The prompt as token ids, in place of the one in the body; never empty.
    pub token_data: Option<Vec<u32>>,
    /// Parts of the answer's own `nvext`.
    pub extra_fields: ExtraFields,
    /// Extra SSE events asked for.
    pub annotations: Annotations,
    /// Tokens of log-probabilities are shown as `token_id:<id>`.
    pub tokens_as_ids: bool,
    /// How long the client expects the answer to be.
    pub expected_output_tokens: Option<u32>,
}

impl Common {
    /// How tokens are chosen. The seed is 0 when the client gave none: the caller draws one.
    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            seed: self.seed.unwrap_or(0),
            logit_bias: self.logit_bias.clone(),
        }
    }

    /// What the body says about placement. Headers may overrule it.
    pub fn routing(&self) -> RoutingHints {
        RoutingHints {
            worker: self.worker,
            rank: self.rank,
            salt: self.cache_salt.clone(),
            lora: None,
            strict_priority: self.strict_priority,
            priority: self.priority,
        }
    }
}

/// The shared fields while a body is being read.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    model: Option<String>,
    n: Option<u32>,
    stream: bool,
    stream_options: StreamOptions,
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    seed: Option<u64>,
    logit_bias: Vec<(u32, f32)>,
    pub(crate) max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    min_tokens: Option<u32>,
    ignore_eos: bool,
    stop: Stop,
    stop_token_ids: Vec<u32>,
    include_stop_str_in_output: bool,
    skip_special_tokens: Option<bool>,
    pub(crate) user: Option<String>,
    cache_salt: Option<String>,
    priority: Option<i32>,
    extensions: Extensions,
    tokens_as_ids: bool,
    pub(crate) guides: Guides,
}

#[derive(Debug, Default)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage: Option<bool>,
}

#[derive(Debug, Default)]
struct Stop {
    texts: Vec<String>,
    tokens: Vec<u32>,
}

impl Draft {
    /// Reads the value of `key`, which is any key the route does not know by itself.
    pub(crate) fn field(
        &mut self,
        reader: &mut Reader<'_>,
        key: &str,
        route: Routes,
        options: &Options,
    ) -> Result<()> {
        let limits = &options.limits;
        match key {
            "model" => self.model = Some(reader.text(&limits::MODEL)?),
            "n" => self.n = Some(reader.whole(&limits::N.with_max(limits.n))?),
            "stream" => self.stream = reader.boolean()?,
            "stream_options" => self.stream_options = StreamOptions::read(reader)?,
            "temperature" => self.temperature = Some(reader.number(&limits::TEMPERATURE)?),
            "top_p" => self.top_p = Some(reader.number(&limits::TOP_P)?),
            // -1 and 0 both keep all.
            "top_k" => self.top_k = Some(u32::try_from(reader.integer(&limits::TOP_K)?).unwrap_or(0)),
            "min_p" => self.min_p = Some(reader.number(&limits::MIN_P)?),
            "repetition_penalty" => {
                self.repetition_penalty = Some(reader.number(&limits::REPETITION_PENALTY)?);
            }
            "frequency_penalty" => self.frequency_penalty = Some(reader.number(&limits::FREQUENCY_PENALTY)?),
            "presence_penalty" => self.presence_penalty = Some(reader.number(&limits::PRESENCE_PENALTY)?),
            "seed" => self.seed = Some(seed(reader)?),
            "logit_bias" => self.logit_bias = logit_bias(reader)?,
            "max_tokens" => self.max_tokens = Some(reader.whole(&limits::MAX_TOKENS)?),
            "max_completion_tokens" => {
                self.max_completion_tokens = Some(reader.whole(&limits::MAX_COMPLETION_TOKENS)?);
            }
            "min_tokens" => self.min_tokens = Some(reader.whole(&limits::MIN_TOKENS)?),
            "ignore_eos" => self.ignore_eos = reader.boolean()?,
            "stop" => self.read_stop(reader, limits)?,
            "stop_token_ids" => {
                self.stop_token_ids = reader.token_ids(&limits::TOKEN_ID)?;
                limits::STOP_TOKEN_IDS.check_len("stop_token_ids", self.stop_token_ids.len())?;
            }
            "include_stop_str_in_output" => self.include_stop_str_in_output = reader.boolean()?,
            "skip_special_tokens" => self.skip_special_tokens = Some(reader.boolean()?),
            "user" => self.user = Some(reader.text(&limits::USER)?),
            "cache_salt" => self.cache_salt = Some(reader.text(&limits::CACHE_SALT)?),
            "priority" => self.priority = Some(reader.whole(&limits::PRIORITY)?),
            "nvext" if options.ignores_nvext => self.extensions = Extensions::read_salt(reader)?,
            "nvext" => self.extensions = Extensions::read(reader, route)?,
            "return_tokens_as_token_ids" if CHAT_OR_COMPLETIONS.covers(route) => {
                self.tokens_as_ids = reader.boolean()?;
            }
            _ if self.guides.read(reader, key)? => {}
            _ => other(reader, key, route)?,
        }
        Ok(())
    }

    /// Most tokens of thinking, and the field that says so.
    pub(crate) fn thinking_budget(&self) -> Option<(&'static str, u32)> {
        self.extensions.thinking_tokens.map(|tokens| ("nvext.max_thinking_tokens", tokens))
    }

    /// Reads texts that end the answer.
    pub(crate) fn read_stop(&mut self, reader: &mut Reader<'_>, limits: &Limits) -> Result<()> {
        self.stop = Stop::read(reader, limits)?;
        Ok(())
    }

    /// Checks what single fields cannot tell and fills in the defaults.
    pub(crate) fn finish(self, logprobs: Option<u32>) -> Result<Common> {
        let model = self.model.ok_or_else(|| missing("model"))?;
        if !self.stream
            && (self.stream_options.include_usage.is_some() || self.stream_options.continuous_usage.is_some())
        {
            return Err(conflict("stream_options", "is only allowed with `stream: true`"));
        }
        let extensions = self.extensions;
        let worker = extensions.worker()?;
        let temperature = if extensions.greedy { 0.0 } else { self.temperature.unwrap_or(1.0) };
        let n = self.n.unwrap_or(1);
        if n > 1 && temperature <= 0.0 {
            return Err(conflict("n", format_args!("must be 1 when `temperature` is 0, got {n}")));
        }
        let max_tokens = self.max_completion_tokens.or(self.max_tokens);
        let min_tokens = self.min_tokens.unwrap_or(0);
        if let Some(max) = max_tokens.filter(|&max| min_tokens > max) {
            return Err(conflict(
                "min_tokens",
                format_args!("must be at most `max_tokens` ({max}), got {min_tokens}"),
            ));
        }
        let mut stop_token_ids = self.stop_token_ids;
        stop_token_ids.extend(self.stop.tokens);
        // Empty means absent (behaviour.md 1.7).
        let salt = |text: Option<String>| text.filter(|text| !text.is_empty());
        Ok(Common {
            model,
            n,
            stream: self.stream,
            include_usage: self.stream_options.include_usage.unwrap_or(false),
            continuous_usage: self.stream_options.continuous_usage.unwrap_or(false),
            temperature,
            top_p: self.top_p.unwrap_or(1.0),
            top_k: self.top_k.unwrap_or(0),
            min_p: self.min_p.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            seed: self.seed,
            logit_bias: self.logit_bias,
            max_tokens,
            min_tokens,
            ignore_eos: self.ignore_eos || extensions.ignore_eos,
            guide: self.guides.finish()?,
            stop: self.stop.texts,
            stop_token_ids,
            include_stop_str_in_output: self.include_stop_str_in_output,
            skip_special_tokens: self.skip_special_tokens.unwrap_or(true),
            logprobs,
            user: self.user,
            cache_salt: salt(extensions.cache_salt).or(salt(self.cache_salt)).map(Arc::from),
            strict_priority: extensions.strict_priority.unwrap_or(0),
            priority: extensions.priority.or(self.priority).unwrap_or(0),
            worker: worker.map(InstanceId),
            rank: extensions.rank,
            prefill_worker: extensions.prefill.map(InstanceId),
            prefill_rank: extensions.prefill_rank,
            raw_prompt: extensions.raw_prompt,
            token_data: extensions.token_data,
            extra_fields: extensions.fields,
            annotations: extensions.annotations,
            tokens_as_ids: self.tokens_as_ids,
            expected_output_tokens: extensions.expected_output_tokens,
        })
    }
}

/// A field that no parser here reads: named among the dropped, or refused when leaving it out would change the answer.
pub(crate) fn other(reader: &mut Reader<'_>, key: &str, route: Routes) -> Result<()> {
    let Some(rule) = limits::find(route, key) else { return reader.unknown() };
    let neutral = |raw: &str| {
        let dense: String = raw.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        rule.neutral.contains(&dense.as_str())
    };
    match rule.effect {
        Effect::Refused => {
            let raw = reader.raw()?;
            if neutral(raw) { Ok(()) } else { Err(unsupported(key, format_args!("is {}", rule.text))) }
        }
        Effect::None | Effect::Used => reader.unknown_unless(neutral),
    }
}

/// 400 for a required field.
pub(crate) fn missing(field: &str) -> Error {
    Error::invalid(format!("`{field}` is required")).with_param(field).with_code("missing_required_parameter")
}

/// 400 for fields that do not go together.
pub(crate) fn conflict(field: &str, problem: impl std::fmt::Display) -> Error {
    Error::invalid(format!("`{field}` {problem}")).with_param(field).with_code("invalid_value")
}

/// 501 for what is understood but not built.
pub(crate) fn unsupported(field: &str, problem: impl std::fmt::Display) -> Error {
    Error::client(Class::NotImplemented, format!("`{field}` {problem}"))
        .with_param(field)
        .with_code("unsupported_parameter")
}

/// Signed and unsigned 64-bit seeds are both around; only the bits matter.
fn seed(reader: &mut Reader<'_>) -> Result<u64> {
    let value = reader.integer(&limits::SEED)?;
    let signed = i64::try_from(value).map(i64::cast_unsigned);
    signed.or_else(|_| u64::try_from(value)).map_err(|_| reader.refuse("must fit 64 bits"))
}

fn logit_bias(reader: &mut Reader<'_>) -> Result<Vec<(u32, f32)>> {
    let mut biases = Vec::new();
    reader.object("an object that maps token ids to numbers", |reader, key| {
        let digits = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_digit());
        let token = key.parse::<u32>().ok().filter(|_| digits);
        let Some(token) = token else { return Err(reader.refuse("has a key that is not a token id")) };
        biases.push((token, reader.number(&limits::LOGIT_BIAS_VALUE)?));
        limits::LOGIT_BIAS.check_len("logit_bias", biases.len())
    })?;
    // Of duplicates the last one wins, as everywhere.
    biases.reverse();
    biases.sort_by_key(|&(token, _)| token);
    biases.dedup_by_key(|&mut (token, _)| token);
    Ok(biases)
}

impl StreamOptions {
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let mut options = Self::default();
        reader.object("an object", |reader, key| {
            match key {
                "include_usage" => options.include_usage = Some(reader.boolean()?),
                "continuous_usage_stats" => options.continuous_usage = Some(reader.boolean()?),
                // Padding against size side channels; harmless to leave out.
                "include_obfuscation" => reader.unknown_unless(|raw| raw == "false")?,
                _ => reader.unknown()?,
            }
            Ok(())
        })?;
        Ok(options)
    }
}

impl Stop {
    fn read(reader: &mut Reader<'_>, limits: &Limits) -> Result<Self> {
        use crate::json::Kind;
        let mut stop = Self::default();
        match reader.peek()? {
            Kind::String => stop.texts.push(reader.text(&limits::STOP_TEXT)?),
            Kind::Array => {
                let count = reader.array("an array", |reader, index| {
                    // Beyond the limit entries are only counted, for the message.
                    if index >= limits.stop as usize {
                        return reader.raw().map(|_| ());
                    }
                    match reader.peek()? {
                        Kind::Number => stop.tokens.push(reader.whole(&limits::TOKEN_ID)?),
                        Kind::String => stop.texts.push(reader.text(&limits::STOP_TEXT)?),
                        _ => return Err(reader.wrong_type("a string or a token id")),
                    }
                    Ok(())
                })?;
                limits::STOP.with_max(limits.stop).check_len(reader.path(), count)?;
            }
            _ => return Err(reader.wrong_type("a string or an array of strings")),
        }
        Ok(stop)
    }
}
