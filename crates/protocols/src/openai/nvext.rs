//! `nvext`: what clients of this kind of system may ask for besides (behaviour.md 1.7).
//!
//! Unlike the rest of a body it is strict: it is written for systems like this one, so a name nobody knows is a typing
//! error, and says which name was meant.

use super::common::{Result, conflict, other, unsupported};
use crate::json::{Reader, echo};
use crate::limits::{self, Routes};
use dynamo_types::{Error, nearest::nearest};

/// What to add to the answer (`extra_fields`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraFields {
    pub worker_id: bool,
    pub timing: bool,
    pub stop_reason: bool,
    pub completion_token_ids: bool,
    pub prompt_token_ids: bool,
    pub prompt_logprobs: bool,
}

impl ExtraFields {
    pub fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// False for a name that stands for nothing here.
    fn add(&mut self, name: &str) -> bool {
        let field = match name {
            "worker_id" => &mut self.worker_id,
            "timing" => &mut self.timing,
            "stop_reason" => &mut self.stop_reason,
            "completion_token_ids" => &mut self.completion_token_ids,
            "prompt_token_ids" => &mut self.prompt_token_ids,
            "prompt_logprobs" => &mut self.prompt_logprobs,
            _ => return false,
        };
        *field = true;
        true
    }
}

/// Events of their own in a stream (`annotations`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// The id of the request.
    pub request_id: bool,
    /// The text that was tokenised.
    pub formatted_prompt: bool,
    /// Its token ids.
    pub token_ids: bool,
    /// Token counts, at the end.
    pub llm_metrics: bool,
}

impl Annotations {
    fn add(&mut self, name: &str) -> bool {
        let event = match name {
            "request_id" => &mut self.request_id,
            "formatted_prompt" => &mut self.formatted_prompt,
            "token_ids" => &mut self.token_ids,
            "llm_metrics" => &mut self.llm_metrics,
            _ => return false,
        };
        *event = true;
        true
    }
}

/// The object as it was read.
#[derive(Debug, Default)]
pub(crate) struct Extensions {
    pub(crate) greedy: bool,
    pub(crate) ignore_eos: bool,
    pub(crate) raw_prompt: bool,
    pub(crate) token_data: Option<Vec<u32>>,
    /// `backend_instance_id` and `decode_worker_id` are two names of one thing.
    backend: Option<u64>,
    decode: Option<u64>,
    pub(crate) prefill: Option<u64>,
    pub(crate) rank: Option<u32>,
    pub(crate) prefill_rank: Option<u32>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) priority: Option<i32>,
    pub(crate) strict_priority: Option<u32>,
    pub(crate) expected_output_tokens: Option<u32>,
    pub(crate) thinking_tokens: Option<u32>,
    pub(crate) fields: ExtraFields,
    pub(crate) annotations: Annotations,
}

impl Extensions {
    /// # Errors
    /// 400 that names the field, and for an unknown one the nearest known; 501 for what would change the answer and
    /// is not built.
    pub(crate) fn read(reader: &mut Reader<'_>, route: Routes) -> Result<Self> {
        let mut extensions = Self::default();
        reader.object("an object", |reader, key| extensions.field(reader, key, route))?;
        Ok(extensions)
    }

    /// Reads nothing but the salt, which keeps caches apart and is no wish about routing.
    ///
    /// # Errors
    /// 400 for what is no object, or no salt.
    pub(crate) fn read_salt(reader: &mut Reader<'_>) -> Result<Self> {
        let mut extensions = Self::default();
        reader.object("an object", |reader, key| {
            match key {
                "cache_salt" => extensions.cache_salt = Some(reader.text(&limits::CACHE_SALT)?),
                _ => {
                    reader.raw()?;
                }
            }
            Ok(())
        })?;
        Ok(extensions)
    }

    fn field(&mut self, reader: &mut Reader<'_>, key: &str, route: Routes) -> Result<()> {
        match key {
            "greed_sampling" => self.greedy = reader.boolean()?,
            "ignore_eos" => self.ignore_eos = reader.boolean()?,
            "use_raw_prompt" => self.raw_prompt = reader.boolean()?,
            "token_data" => {
                let ids = reader.token_ids(&limits::TOKEN_ID)?;
                if ids.is_empty() {
                    return Err(reader.refuse("must not be empty"));
                }
                self.token_data = Some(ids);
            }
            "backend_instance_id" => self.backend = Some(reader.whole(&limits::WORKER)?),
            "decode_worker_id" => self.decode = Some(reader.whole(&limits::WORKER)?),
            "prefill_worker_id" => self.prefill = Some(reader.whole(&limits::WORKER)?),
            "dp_rank" => self.rank = Some(reader.whole(&limits::RANK)?),
            "prefill_dp_rank" => self.prefill_rank = Some(reader.whole(&limits::RANK)?),
            "cache_salt" => self.cache_salt = Some(reader.text(&limits::CACHE_SALT)?),
            "max_thinking_tokens" if !Routes::COMPLETIONS.covers(route) => {
                self.thinking_tokens = Some(reader.whole(&limits::MAX_THINKING_TOKENS)?);
            }
            "agent_hints" => reader.object("an object", |reader, key| self.hint(reader, key, route))?,
            "routing_constraints" => {
                reader.object("an object", |reader, key| {
                    named(reader, "nvext.routing_constraints.", key, route)
                })?;
            }
            "router" => {
                reader.object("an object", |reader, key| named(reader, "nvext.router.", key, route))?;
            }
            "extra_fields" if is_told(route) => {
                let fields = &mut self.fields;
                *fields = ExtraFields::default();
                names(reader, &limits::EXTRA_FIELDS, |reader, name| {
                    if !fields.add(name) {
                        reader.ineffective();
                    }
                    Ok(())
                })?;
            }
            "annotations" if is_told(route) => {
                let annotations = &mut self.annotations;
                *annotations = Annotations::default();
                names(reader, &limits::ANNOTATIONS, |reader, name| annotate(annotations, reader, name))?;
            }
            _ => named(reader, "nvext.", key, route)?,
        }
        Ok(())
    }

    fn hint(&mut self, reader: &mut Reader<'_>, key: &str, route: Routes) -> Result<()> {
        match key {
            "priority" => self.priority = Some(reader.whole(&limits::PRIORITY)?),
            "strict_priority" => self.strict_priority = Some(reader.whole(&limits::STRICT_PRIORITY)?),
            "osl" => self.expected_output_tokens = Some(reader.whole(&limits::OSL)?),
            _ => named(reader, "nvext.agent_hints.", key, route)?,
        }
        Ok(())
    }

    /// The worker that is to decode, under either name.
    ///
    /// # Errors
    /// 400 if the names name two.
    pub(crate) fn worker(&self) -> Result<Option<u64>> {
        match (self.backend, self.decode) {
            (Some(backend), Some(decode)) if backend != decode => Err(conflict(
                "nvext.decode_worker_id",
                format_args!(
                    "({decode}) must be the worker that `nvext.backend_instance_id` names ({backend})"
                ),
            )),
            (backend, decode) => Ok(backend.or(decode)),
        }
    }
}

/// Only these two APIs have a place for what is asked for.
fn is_told(route: Routes) -> bool {
    Routes::CHAT.and(Routes::COMPLETIONS).covers(route)
}

fn names(
    reader: &mut Reader<'_>,
    rule: &limits::Rule,
    mut take: impl FnMut(&mut Reader<'_>, &str) -> Result<()>,
) -> Result<()> {
    reader.array("an array of strings", |reader, index| {
        rule.check_len(rule.field, index + 1)?;
        let name = reader.string()?;
        take(reader, &name)
    })?;
    Ok(())
}

fn annotate(annotations: &mut Annotations, reader: &mut Reader<'_>, name: &str) -> Result<()> {
    // A client that asks where a request would run does not want it to run.
    if name.split(':').next() == Some("query_instance_id") {
        return Err(unsupported("nvext.annotations", "`query_instance_id` is not implemented"));
    }
    if !annotations.add(name) {
        reader.ineffective();
    }
    Ok(())
}

/// A field without a parser: the table knows what becomes of it, or nobody knows it at all.
fn named(reader: &mut Reader<'_>, parent: &str, key: &str, route: Routes) -> Result<()> {
    let path = format!("{parent}{key}");
    if limits::find(route, &path).is_some() {
        return other(reader, &path, route);
    }
    Err(unknown(&path, parent, key, route))
}

fn unknown(path: &str, parent: &str, key: &str, route: Routes) -> Error {
    let siblings = limits::TABLE
        .iter()
        .filter(|rule| rule.routes.covers(route))
        .filter_map(|rule| rule.field.strip_prefix(parent))
        .filter(|name| !name.contains(['.', '[']));
    // A name as long as a body is no typing error, and would take long to compare.
    let meant = (key.len() <= 64).then(|| nearest(key, siblings)).flatten();
    let hint = meant.map_or_else(String::new, |name| format!("; did you mean `{name}`?"));
    let place = parent.trim_end_matches('.');
    Error::invalid(format!("`{}` is not a field of `{place}`{hint}", echo(key)))
        .with_param(echo(path))
        .with_code("unknown_parameter")
}
