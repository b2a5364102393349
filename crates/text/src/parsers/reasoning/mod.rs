//! Reasoning styles by name.

mod channels;
mod tags;

pub(crate) use channels::{ChannelForm, Channels};

use super::{Options, Parser, Start};
use channels::{Route, harmony, inkling, muse, never, recipient, tool_name};
use dynamo_types::Reasoning;
use tags::{AppendOpener, TagForm, Tags};

/// How a family separates reasoning.
enum Style {
    Tags(&'static TagForm),
    Channels(&'static ChannelForm),
    /// Reasoning stays in the content, behind the opener that the prompt holds.
    Append(&'static str),
}

/// `<think>...</think>`, written out by the model.
const THINK: TagForm = TagForm {
    openers: &["<think>"],
    closers: &["</think>"],
    begins_inside: false,
    interrupts: &[],
    framing: &[],
    edges: &['\n'],
    label: "",
    content: "",
};

static BASIC: TagForm = THINK;
/// `...</think>`: the prompt opens it.
static FORCED: TagForm = TagForm { begins_inside: true, ..THINK };
static KIMI: TagForm = TagForm { openers: &["◁think▷"], closers: &["◁/think▷"], ..THINK };
static KIMI_K2: TagForm = TagForm {
    begins_inside: true,
    interrupts: &["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
    ..THINK
};
static KIMI_K3: TagForm = TagForm {
    openers: &["<|open|>think<|sep|>"],
    closers: &["<|close|>think<|sep|>"],
    interrupts: &["<|open|>tools<|sep|>"],
    framing: &[
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ],
    content: "<|open|>response<|sep|>",
    ..THINK
};
static DEEPSEEK_V4: TagForm =
    TagForm { interrupts: &["<｜DSML｜tool_calls>", "<｜DSML｜invoke "], ..THINK };
static DEEPSEEK_V41: TagForm =
    TagForm { interrupts: &["<｜DSML｜ calls>", "<｜DSML｜ invoke "], ..THINK };
static MINIMAX_M2: TagForm =
    TagForm { begins_inside: true, interrupts: &["<minimax:tool_call>", "<invoke "], ..THINK };
static MINIMAX_M3: TagForm = TagForm { openers: &["<mm:think>"], closers: &["</mm:think>"], ..THINK };
static MISTRAL: TagForm =
    TagForm { openers: &["[THINK]"], closers: &["[/THINK]"], begins_inside: true, ..THINK };
static GEMMA: TagForm =
    TagForm { openers: &["<|channel>"], closers: &["<channel|>"], label: "thought\n", ..THINK };
static GRANITE: TagForm = TagForm {
    openers: &["Here's my thought process:", "Here is my thought process:"],
    closers: &["Here's my response:", "Here is my response:"],
    edges: &[' ', '\n'],
    ..THINK
};

/// `<|start|>assistant<|channel|>analysis<|message|>...<|end|>`.
pub(crate) static HARMONY: ChannelForm = ChannelForm {
    openers: &["<|start|>", "<|channel|>"],
    header_ends: &[("<|message|>", None)],
    message_ends: &["<|end|>", "<|call|>", "<|return|>"],
    route: harmony,
    may_be_header: never,
    keeps_header: true,
    reasoning: "<|channel|>analysis<|message|>",
    then: "<|start|>assistant",
    content: "<|channel|>final<|message|>",
};
/// `<|start|>assistant to=self<|message|>...<|eom|>`.
pub(crate) static MUSE: ChannelForm = ChannelForm {
    openers: &["<|start|>"],
    header_ends: &[("<|message|>", None)],
    message_ends: &["<|eom|>", "<|eot|>", "<|end_of_text|>"],
    route: muse,
    may_be_header: recipient,
    keeps_header: false,
    reasoning: " to=self<|message|>",
    then: "<|start|>assistant",
    content: " to=user<|message|>",
};
/// `<|message_model|>NAME<|content_thinking|>...<|end_message|>`.
pub(crate) static INKLING: ChannelForm = ChannelForm {
    openers: &["<|message_model|>"],
    header_ends: &[
        ("<|content_thinking|>", Some(Route::Reasoning)),
        ("<|content_text|>", Some(Route::Content)),
        ("<|content_invoke_tool_json|>", Some(Route::Tool)),
        ("<|content_invoke_tool_text|>", Some(Route::Content)),
    ],
    message_ends: &["<|end_message|>", "<|content_model_end_sampling|>"],
    route: inkling,
    may_be_header: tool_name,
    keeps_header: false,
    reasoning: "<|content_thinking|>",
    then: "<|message_model|>",
    content: "<|content_text|>",
};

/// One entry for each style: its names and how it is written.
static TABLE: &[(&[&str], Style)] = &[
    (&["basic", "qwen3", "qwen3_coder", "glm45", "glm47", "nemotron_deci"], Style::Tags(&BASIC)),
    (
        &[
            "deepseek_r1",
            "deepseek_v3",
            "deepseek_v3_1",
            "deepseek_v3_2",
            "nemotron_nano",
            "nemotron3",
            "nemotron_v3",
            "step3",
        ],
        Style::Tags(&FORCED),
    ),
    (&["deepseek_v4", "deepseek-v4", "deepseekv4"], Style::Tags(&DEEPSEEK_V4)),
    (&["deepseek_v41"], Style::Tags(&DEEPSEEK_V41)),
    (&["gemma4", "gemma-4"], Style::Tags(&GEMMA)),
    (&["gpt_oss"], Style::Channels(&HARMONY)),
    (&["granite"], Style::Tags(&GRANITE)),
    (&["inkling"], Style::Channels(&INKLING)),
    (&["kimi"], Style::Tags(&KIMI)),
    (&["kimi_k2", "kimi_k25"], Style::Tags(&KIMI_K2)),
    (&["kimi_k3", "kimi-k3"], Style::Tags(&KIMI_K3)),
    (&["minimax_append_think"], Style::Append("<think>")),
    (&["minimax_m2"], Style::Tags(&MINIMAX_M2)),
    (&["minimax_m3", "minimax-m3"], Style::Tags(&MINIMAX_M3)),
    (&["mistral"], Style::Tags(&MISTRAL)),
    (&["muse", "muse_glimmer"], Style::Channels(&MUSE)),
];

fn style(name: &str) -> Option<&'static Style> {
    TABLE.iter().find(|(names, _)| names.contains(&name)).map(|(_, style)| style)
}

pub(crate) fn parser(name: &str, options: &Options) -> Option<Box<dyn Parser>> {
    Some(match style(name)? {
        // A forced call has no place for it in its content.
        Style::Append(_) if options.forced.is_some() => Box::new(Tags::new(&FORCED, options.start)),
        Style::Tags(form) => Box::new(Tags::new(form, options.start)),
        Style::Channels(form) => Box::new(Channels::new(form, options.start)),
        Style::Append(opener) => Box::new(AppendOpener::new(opener)),
    })
}

/// What a family writes around an answer to which a grammar holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surrounding {
    /// None: the answer has no reasoning in front of it.
    pub reasoning: Option<Reasoning>,
    /// Markers in front of the answer itself.
    pub head: &'static str,
}

/// What the family `name` writes around an answer that begins with `start`.
pub fn surrounding(name: &str, start: Start) -> Surrounding {
    let Some(style) = style(name) else { return Surrounding::default() };
    let list = |markers: &[&str]| markers.iter().map(|&marker| marker.into()).collect();
    let (openers, closers, begins_inside, then, head) = match style {
        Style::Tags(form) => (list(form.openers), list(form.closers), form.begins_inside, "", form.content),
        Style::Channels(form) => {
            (list(&[form.reasoning]), list(&form.message_ends[..1]), false, form.then, form.content)
        }
        Style::Append(opener) => (list(&[opener]), list(FORCED.closers), true, "", ""),
    };
    let is_open = match start {
        Start::Default => begins_inside,
        Start::Reasoning => true,
        Start::Content => return Surrounding::default(),
    };
    Surrounding { reasoning: Some(Reasoning { is_open, openers, closers, then: then.into() }), head }
}

/// Between which texts a family reasons, and how its reasoning is ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The answer begins with reasoning.
    pub is_open: bool,
    pub openers: Vec<&'static str>,
    pub closers: Vec<&'static str>,
    /// What ends it in the model's place, and where it begins once more: the second leads on to the answer, so that a model which
    /// would rather go on reasoning gets there.
    pub ends: [String; 2],
}

/// The bounds of reasoning in an answer of the family `name` that begins with `start`.
pub fn bounds(name: &str, start: Start) -> Option<Bounds> {
    let style = style(name)?;
    let begins_inside = match style {
        Style::Tags(form) => form.begins_inside,
        Style::Channels(_) => false,
        Style::Append(_) => true,
    };
    let is_open = match start {
        Start::Default => begins_inside,
        Start::Reasoning => true,
        Start::Content => false,
    };
    let first = |list: &[&'static str]| list.first().copied().unwrap_or_default();
    let (openers, closers, end, head) = match style {
        Style::Tags(form) => {
            let closers = [form.closers, form.interrupts].concat();
            (form.openers.to_vec(), closers, first(form.closers).to_owned(), form.content)
        }
        Style::Channels(form) => {
            let closers = [form.message_ends, form.openers].concat();
            (vec![form.reasoning], closers, [first(form.message_ends), form.then].concat(), form.content)
        }
        Style::Append(opener) => {
            (vec![*opener], FORCED.closers.to_vec(), first(FORCED.closers).to_owned(), "")
        }
    };
    Some(Bounds { is_open, openers, closers, ends: [end.clone(), end + head] })
}

/// Names of all reasoning parsers.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|(names, _)| names.iter().copied())
}

/// How an answer of the family `name` begins after `prompt`: whether the prompt ends with the opener or the closer of
/// its reasoning.
pub fn start(name: &str, prompt: &str) -> Start {
    let Some(Style::Tags(form)) = style(name) else { return Start::Default };
    let prompt = prompt.trim_ascii_end();
    let prompt = match form.label.trim_ascii_end() {
        "" => prompt,
        label => prompt.strip_suffix(label).unwrap_or(prompt),
    };
    if form.openers.iter().any(|opener| prompt.ends_with(opener)) {
        Start::Reasoning
    } else if form.closers.iter().any(|closer| prompt.ends_with(closer)) {
        Start::Content
    } else {
        Start::Default
    }
}
