//! The formats, as data. A new family is an entry here and a folder of fixtures.

use super::super::reasoning::{HARMONY, INKLING, MUSE};
use super::super::string::Dialect;
use super::Format;
use super::elements::ElementsForm;
use super::form::{Bare, Form, Grammar, Opener};
use super::gemma::GemmaForm;
use super::headed::{self, HeadedForm};
use super::json::JsonForm;
use super::literal::LiteralForm;
use super::markup::{MarkupForm, Name, TypeMark};
use super::python::PythonForm;

/// Names of each format and how it is written.
pub(crate) static TABLE: &[(&[&str], Format)] = &[
    (&["deepseek_v3", "deepseek_v3_1"], Format::Plain(&DEEPSEEK)),
    (&["deepseek_v3_2", "deepseek_v4", "deepseek-v4", "deepseekv4"], Format::Plain(&DSML)),
    (&["deepseek_v41"], Format::Plain(&DSML_SPACED)),
    (&["default"], Format::Plain(&DEFAULT)),
    (&["gemma4", "gemma-4"], Format::Plain(&GEMMA)),
    (&["glm45", "glm47"], Format::Plain(&GLM)),
    (&["harmony"], Format::Channels(&HARMONY, &HARMONY_CALLS)),
    (&["hermes", "qwen25"], Format::Plain(&HERMES)),
    (&["inkling"], Format::Channels(&INKLING, &INKLING_CALLS)),
    (&["jamba"], Format::Plain(&JAMBA)),
    (&["kimi_k2", "kimi_k25"], Format::Plain(&KIMI_K2)),
    (&["kimi_k3", "kimi-k3"], Format::Plain(&KIMI_K3)),
    (&["llama3_json"], Format::Plain(&LLAMA)),
    (&["minimax_m2"], Format::Plain(&MINIMAX_M2)),
    (&["minimax_m3", "minimax-m3", "minimax_m3_nom", "minimax-m3-nom"], Format::Plain(&MINIMAX_M3)),
    (&["mistral"], Format::Plain(&MISTRAL)),
    (&["muse", "muse_glimmer"], Format::Channels(&MUSE, &ATEM)),
    (&["nemotron_deci"], Format::Plain(&NEMOTRON)),
    (&["phi4"], Format::Plain(&PHI)),
    (&["pythonic"], Format::Plain(&PYTHONIC)),
    (&["qwen3", "qwen3_coder", "nemotron_nano"], Format::Plain(&QWEN3)),
];

const CALLS: JsonForm = JsonForm {
    name_keys: &["name"],
    argument_keys: &["arguments", "parameters"],
    closers: &[],
    separators: &[],
};

/// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
static HERMES: Grammar = Grammar {
    openers: &[Opener { marker: "<tool_call>", form: Form::Json(&HERMES_CALLS) }],
    closers: &["</tool_call>"],
    framing: &[],
    bare: None,
};
static HERMES_CALLS: JsonForm = JsonForm { closers: &["</tool_call>"], separators: b",", ..CALLS };

/// `<TOOLCALL>[{...}]</TOOLCALL>`.
static NEMOTRON: Grammar = Grammar {
    openers: &[Opener { marker: "<TOOLCALL>", form: Form::Json(&NEMOTRON_CALLS) }],
    closers: &["</TOOLCALL>"],
    framing: &[],
    bare: None,
};
static NEMOTRON_CALLS: JsonForm = JsonForm { closers: &["</TOOLCALL>"], separators: b",", ..CALLS };

/// `<tool_calls>[{...}]</tool_calls>`.
static JAMBA: Grammar = Grammar {
    openers: &[Opener { marker: "<tool_calls>", form: Form::Json(&JAMBA_CALLS) }],
    closers: &["</tool_calls>"],
    framing: &[],
    bare: None,
};
static JAMBA_CALLS: JsonForm = JsonForm { closers: &["</tool_calls>"], separators: b",", ..CALLS };

/// `<|python_tag|>{"name": ..., "parameters": {...}}; {...}`, or the same without the tag.
static LLAMA: Grammar = Grammar {
    openers: &[Opener { marker: "<|python_tag|>", form: Form::Json(&LLAMA_CALLS) }],
    closers: &[],
    framing: &["<|eom_id|>", "<|eot_id|>"],
    bare: Some(Bare { first: '{', form: Form::Json(&LLAMA_CALLS), is_announced: false }),
};
static LLAMA_CALLS: JsonForm = JsonForm { separators: b";", ..CALLS };

/// Both of the markers that are tried when nothing is known about the model.
static DEFAULT: Grammar = Grammar {
    openers: &[
        Opener { marker: "<TOOLCALL>", form: Form::Json(&NEMOTRON_CALLS) },
        Opener { marker: "<|python_tag|>", form: Form::Json(&LLAMA_CALLS) },
    ],
    closers: &["</TOOLCALL>"],
    framing: &[],
    bare: None,
};

/// `functools[{...}]`.
static PHI: Grammar = Grammar {
    openers: &[Opener { marker: "functools[", form: Form::JsonList(&CALLS_ALONE) }],
    closers: &[],
    framing: &[],
    bare: None,
};
pub(super) static CALLS_ALONE: JsonForm = CALLS;

/// `[TOOL_CALLS][{...}]`, or `[TOOL_CALLS]NAME[ARGS]{...}` for each call.
static MISTRAL: Grammar = Grammar {
    openers: &[Opener {
        marker: "[TOOL_CALLS]",
        form: Form::Choice(&[
            ("[", Form::Json(&MISTRAL_CALLS)),
            ("{", Form::Json(&MISTRAL_CALLS)),
            ("", Form::Headed(&MISTRAL_NAMED)),
        ]),
    }],
    closers: &["[/TOOL_CALLS]"],
    framing: &[],
    bare: None,
};
static MISTRAL_CALLS: JsonForm = JsonForm { closers: &["[/TOOL_CALLS]"], separators: b",", ..CALLS };
static MISTRAL_NAMED: HeadedForm = HeadedForm {
    call_open: "",
    header_ends: &["[ARGS]", "[CALL_ID]", "{"],
    is_one_name: true,
    call_closers: &[],
    block_closers: &[],
    identify: headed::mistral,
};

/// `NAME<sep>{...}`, or `function<sep>NAME` and a fenced block, between tokens for the call and for all calls.
static DEEPSEEK: Grammar = Grammar {
    openers: &[
        Opener { marker: "<｜tool▁calls▁begin｜>", form: Form::Headed(&DEEPSEEK_CALLS) },
        Opener { marker: "<｜tool▁call▁begin｜>", form: Form::HeadedCall(&DEEPSEEK_CALLS) },
    ],
    closers: &["<｜tool▁calls▁end｜>", "<｜tool▁call▁end｜>"],
    framing: &["<｜end▁of▁sentence｜>"],
    bare: None,
};
static DEEPSEEK_CALLS: HeadedForm = HeadedForm {
    call_open: "<｜tool▁call▁begin｜>",
    header_ends: &["<｜tool▁sep｜>"],
    is_one_name: true,
    call_closers: &["<｜tool▁call▁end｜>"],
    block_closers: &["<｜tool▁calls▁end｜>"],
    identify: headed::deepseek,
};

/// `functions.NAME:INDEX<args>{...}` between tokens for the call and for all calls.
static KIMI_K2: Grammar = Grammar {
    openers: &[
        Opener { marker: "<|tool_calls_section_begin|>", form: Form::Headed(&KIMI_K2_CALLS) },
        Opener { marker: "<|tool_call_section_begin|>", form: Form::Headed(&KIMI_K2_CALLS) },
        Opener { marker: "<|tool_call_begin|>", form: Form::HeadedCall(&KIMI_K2_CALLS) },
    ],
    closers: &["<|tool_calls_section_end|>", "<|tool_call_section_end|>", "<|tool_call_end|>"],
    framing: &[],
    bare: None,
};
static KIMI_K2_CALLS: HeadedForm = HeadedForm {
    call_open: "<|tool_call_begin|>",
    header_ends: &["<|tool_call_argument_begin|>"],
    is_one_name: true,
    call_closers: &["<|tool_call_end|>"],
    block_closers: &["<|tool_calls_section_end|>", "<|tool_call_section_end|>"],
    identify: headed::kimi,
};

/// A message to a function.
static HARMONY_CALLS: Grammar = Grammar {
    openers: &[
        Opener { marker: "<|start|>", form: Form::Headed(&HARMONY_CALL) },
        Opener { marker: "<|channel|>", form: Form::Headed(&HARMONY_CALL) },
    ],
    closers: &["<|call|>", "<|end|>", "<|return|>"],
    framing: &[],
    bare: None,
};
static HARMONY_CALL: HeadedForm = HeadedForm {
    call_open: "",
    header_ends: &["<|message|>"],
    is_one_name: false,
    call_closers: &["<|call|>", "<|end|>", "<|return|>"],
    block_closers: &[],
    identify: headed::harmony,
};

/// `<|content_invoke_tool_json|>{"name": ..., "args": {...}}<|end_message|>`.
static INKLING_CALLS: Grammar = Grammar {
    openers: &[Opener { marker: "<|content_invoke_tool_json|>", form: Form::Json(&INKLING_CALL) }],
    closers: &["<|end_message|>"],
    framing: &[],
    bare: None,
};
static INKLING_CALL: JsonForm =
    JsonForm { argument_keys: &["args", "arguments"], closers: &["<|end_message|>"], ..CALLS };

/// Tags with names as attributes.
const INVOKE: MarkupForm = MarkupForm {
    call_open: "<invoke ",
    call_header_ends: &[">"],
    call_header_stops: &[],
    call_name: Name::Attribute("name"),
    call_close: "</invoke>",
    argument_open: "<parameter ",
    argument_header_end: ">",
    argument_name: Name::Attribute("name"),
    type_mark: TypeMark::None,
    unknown_is_text: false,
    value_open: "",
    argument_close: "</parameter>",
    trims: false,
    json: None,
    block_closers: &["</minimax:tool_call>"],
};

/// `<minimax:tool_call><invoke name="..."><parameter name="...">...</parameter></invoke></minimax:tool_call>`.
static MINIMAX_M2: Grammar = Grammar {
    openers: &[
        Opener { marker: "<minimax:tool_call>", form: Form::Markup(&MINIMAX_M2_CALLS) },
        Opener { marker: "<invoke ", form: Form::MarkupCall(&MINIMAX_M2_CALLS) },
    ],
    closers: &["</minimax:tool_call>", "</invoke>", "</parameter>"],
    framing: &[],
    bare: None,
};
static MINIMAX_M2_CALLS: MarkupForm = MarkupForm { unknown_is_text: true, ..INVOKE };

/// As MiniMax M2, with other names.
static ATEM: Grammar = Grammar {
    openers: &[
        Opener { marker: "<atem:function_calls>", form: Form::Markup(&ATEM_CALLS) },
        Opener { marker: "<atem:invoke ", form: Form::MarkupCall(&ATEM_CALLS) },
    ],
    closers: &["</atem:function_calls>", "</atem:invoke>", "</atem:parameter>"],
    framing: &[],
    bare: None,
};
static ATEM_CALLS: MarkupForm = MarkupForm {
    call_open: "<atem:invoke ",
    call_close: "</atem:invoke>",
    argument_open: "<atem:parameter ",
    argument_close: "</atem:parameter>",
    block_closers: &["</atem:function_calls>"],
    ..INVOKE
};

/// Each argument says whether it is a string or JSON.
static DSML: Grammar = Grammar {
    openers: &[
        Opener { marker: "<｜DSML｜function_calls>", form: Form::Markup(&DSML_CALLS) },
        Opener { marker: "<｜DSML｜tool_calls>", form: Form::Markup(&DSML_CALLS) },
        Opener { marker: "<｜DSML｜invoke ", form: Form::MarkupCall(&DSML_CALLS) },
    ],
    closers: &[
        "</｜DSML｜function_calls>",
        "</｜DSML｜tool_calls>",
        "</｜DSML｜invoke>",
        "</｜DSML｜parameter>",
    ],
    framing: &["<｜end▁of▁sentence｜>"],
    bare: None,
};
static DSML_CALLS: MarkupForm = MarkupForm {
    call_open: "<｜DSML｜invoke ",
    call_close: "</｜DSML｜invoke>",
    argument_open: "<｜DSML｜parameter ",
    argument_close: "</｜DSML｜parameter>",
    type_mark: TypeMark::IsString,
    block_closers: &["</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
    ..INVOKE
};

/// DeepSeek V4.1: the same with a space in each tag.
static DSML_SPACED: Grammar = Grammar {
    openers: &[
        Opener { marker: "<｜DSML｜ calls>", form: Form::Markup(&DSML_SPACED_CALLS) },
        Opener { marker: "<｜DSML｜ invoke ", form: Form::MarkupCall(&DSML_SPACED_CALLS) },
    ],
    closers: &["</｜DSML｜ calls>", "</｜DSML｜ invoke>", "</｜DSML｜ parameter>"],
    framing: &["<｜end▁of▁sentence｜>"],
    bare: None,
};
static DSML_SPACED_CALLS: MarkupForm = MarkupForm {
    call_open: "<｜DSML｜ invoke ",
    call_close: "</｜DSML｜ invoke>",
    argument_open: "<｜DSML｜ parameter ",
    argument_close: "</｜DSML｜ parameter>",
    block_closers: &["</｜DSML｜ calls>"],
    type_mark: TypeMark::IsString,
    ..INVOKE
};

/// `<tool_call><function=NAME><parameter=KEY>...</parameter></function></tool_call>`, or JSON as [`HERMES`].
static QWEN3: Grammar = Grammar {
    openers: &[
        Opener {
            marker: "<tool_call>",
            form: Form::Choice(&[
                ("<function=", Form::Markup(&QWEN3_CALLS)),
                ("{", Form::Json(&HERMES_CALLS)),
                ("[", Form::Json(&HERMES_CALLS)),
            ]),
        },
        Opener { marker: "<function=", form: Form::MarkupCall(&QWEN3_CALLS) },
    ],
    closers: &["</tool_call>", "</function>", "</parameter>"],
    framing: &[],
    bare: None,
};
static QWEN3_CALLS: MarkupForm = MarkupForm {
    call_open: "<function=",
    call_name: Name::Plain,
    call_close: "</function>",
    argument_open: "<parameter=",
    argument_name: Name::Plain,
    // As in the parser that is published beside the model.
    unknown_is_text: true,
    trims: true,
    block_closers: &["</tool_call>"],
    ..INVOKE
};

/// `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>...</arg_value></tool_call>`.
static GLM: Grammar = Grammar {
    openers: &[Opener { marker: "<tool_call>", form: Form::Markup(&GLM_CALL) }],
    closers: &["</tool_call>", "</arg_value>", "</arg_key>"],
    framing: &[],
    bare: None,
};
static GLM_CALL: MarkupForm = MarkupForm {
    call_open: "",
    call_header_ends: &["\n"],
    call_header_stops: &["<arg_key>", "</tool_call>"],
    call_name: Name::Plain,
    call_close: "</tool_call>",
    argument_open: "<arg_key>",
    argument_header_end: "</arg_key>",
    argument_name: Name::Plain,
    value_open: "<arg_value>",
    argument_close: "</arg_value>",
    block_closers: &[],
    ..INVOKE
};

/// `<|open|>tools<|sep|><|open|>call tool="..."<|sep|>...`: tags made of three tokens.
static KIMI_K3: Grammar = Grammar {
    openers: &[Opener { marker: "<|open|>tools<|sep|>", form: Form::Markup(&KIMI_K3_CALLS) }],
    closers: &["<|close|>tools<|sep|>", "<|close|>call<|sep|>", "<|close|>argument<|sep|>"],
    framing: &[
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ],
    bare: None,
};
static KIMI_K3_CALLS: MarkupForm = MarkupForm {
    call_open: "<|open|>call ",
    call_header_ends: &["<|sep|>"],
    call_name: Name::Attribute("tool"),
    call_close: "<|close|>call<|sep|>",
    argument_open: "<|open|>argument ",
    argument_header_end: "<|sep|>",
    argument_name: Name::Attribute("key"),
    type_mark: TypeMark::Type,
    argument_close: "<|close|>argument<|sep|>",
    json: Some(("<|open|>json", "<|close|>json<|sep|>")),
    block_closers: &["<|close|>tools<|sep|>"],
    ..INVOKE
};

/// As MiniMax M2, but arguments are elements of their own name, and a token stands before each tag.
static MINIMAX_M3: Grammar = Grammar {
    openers: &[Opener { marker: "]<]minimax[>[<tool_call>", form: Form::Elements(&MINIMAX_M3_CALLS) }],
    closers: &["]<]minimax[>[</tool_call>", "]<]minimax[>[</invoke>"],
    framing: &[],
    bare: None,
};
static MINIMAX_M3_CALLS: ElementsForm =
    ElementsForm { namespace: "]<]minimax[>[", call: "invoke", block: "tool_call" };

/// `[NAME(key=value), NAME()]`.
static PYTHONIC: Grammar = Grammar {
    openers: &[Opener { marker: "<|python_start|>", form: Form::Python(&PYTHON_CALLS) }],
    closers: &["<|python_end|>"],
    framing: &["<|eom_id|>", "<|eot_id|>"],
    bare: Some(Bare { first: '[', form: Form::Python(&PYTHON_CALLS), is_announced: false }),
};
static PYTHON_CALLS: PythonForm = PythonForm {
    arguments: LiteralForm {
        separator: b'=',
        close: b')',
        quotes: b"'\"",
        dialect: Dialect::Python,
        long_quote: "",
        has_bare_words: false,
    },
    closers: &["<|python_end|>"],
};

/// `<|tool_call>call:NAME{key:<|"|>text<|"|>}<tool_call|>`.
static GEMMA: Grammar = Grammar {
    openers: &[Opener { marker: "<|tool_call>", form: Form::Gemma(&GEMMA_CALLS) }],
    closers: &["<tool_call|>"],
    framing: &[],
    bare: None,
};
static GEMMA_CALLS: GemmaForm = GemmaForm {
    call_open: "call:",
    arguments: LiteralForm {
        separator: b':',
        close: b'}',
        quotes: b"\"",
        dialect: Dialect::Json,
        long_quote: "<|\"|>",
        has_bare_words: true,
    },
    closer: "<tool_call|>",
};
