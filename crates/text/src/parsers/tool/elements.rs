//! Calls whose arguments are elements named after them, nested for lists and objects, each tag behind a namespace
//! token (MiniMax M3).

use super::super::json::quote;
use super::super::scan::{Hit, find, leading_space, prefix};
use super::super::schema::Kind;
use super::super::value::ValueWriter;
use super::form::{Context, Step, is_name};
use super::headed::{Gathered, gather};
use super::markup::attribute;

/// Nesting allowed in arguments; deeper is broken.
const MAX_DEPTH: usize = 64;

/// Children of this name make a list.
const ITEM: &str = "item";

/// An element of this name is called what its `name` attribute says.
const PARAMETER: &str = "parameter";

#[derive(Debug)]
pub(crate) struct ElementsForm {
    /// Stands before every tag.
    pub(crate) namespace: &'static str,
    pub(crate) call: &'static str,
    pub(crate) block: &'static str,
}

#[derive(Clone, Debug)]
enum Content {
    /// Only whitespace so far.
    Unknown(String),
    Text(ValueWriter),
    /// So many members.
    Object(usize),
    List(usize),
}

#[derive(Clone, Debug)]
struct Element {
    tag: String,
    content: Content,
}

#[derive(Clone, Debug)]
enum State {
    /// Between calls.
    Block,
    /// Inside a call, outside of tags.
    Inside,
    /// After the namespace token and `<`.
    Tag { in_call: bool },
}

#[derive(Clone, Debug)]
pub(crate) struct ElementsBody {
    form: &'static ElementsForm,
    state: State,
    tag: String,
    name: String,
    arguments: usize,
    open: Vec<Element>,
    has_called: bool,
}

impl ElementsBody {
    pub(crate) fn new(form: &'static ElementsForm) -> Self {
        Self {
            form,
            state: State::Block,
            tag: String::new(),
            name: String::new(),
            arguments: 0,
            open: Vec::new(),
            has_called: false,
        }
    }

    pub(crate) fn step(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        if rest.is_empty() {
            return Step::More;
        }
        match self.state {
            State::Block => self.block(rest),
            State::Inside => self.inside(rest, context),
            State::Tag { in_call } => match gather(&mut self.tag, rest, &[">"]) {
                Gathered::Step(step) => step,
                Gathered::End { at, .. } => {
                    let tag = std::mem::take(&mut self.tag);
                    if in_call {
                        self.tag_in_call(&tag, at + 1, context)
                    } else {
                        self.tag_in_block(&tag, at + 1)
                    }
                }
            },
        }
    }

    fn block(&mut self, rest: &str) -> Step {
        let blank = leading_space(rest);
        if blank > 0 {
            return Step::Take(blank);
        }
        match prefix(rest, &[self.form.namespace]) {
            Hit::Marker { .. } => self.tag_opens(rest, false),
            Hit::Partial { .. } => Step::More,
            Hit::None if self.has_called => Step::Close(0),
            Hit::None => Step::Broken(0),
        }
    }

    /// The namespace token comes first; `<` must follow.
    fn tag_opens(&mut self, rest: &str, in_call: bool) -> Step {
        let len = self.form.namespace.len();
        match rest.as_bytes().get(len) {
            None => Step::More,
            Some(b'<') => {
                self.state = State::Tag { in_call };
                Step::Take(len + 1)
            }
            Some(_) => Step::Broken(len),
        }
    }

    fn tag_in_block(&mut self, tag: &str, len: usize) -> Step {
        if tag.strip_prefix('/') == Some(self.form.block) {
            return if self.has_called { Step::Close(len) } else { Step::Broken(len) };
        }
        let header = tag.strip_prefix(self.form.call);
        let Some(name) = header.and_then(|header| attribute(header, "name")).filter(|name| is_name(name))
        else {
            return Step::Broken(len);
        };
        self.name = name;
        self.arguments = 0;
        self.open.clear();
        self.state = State::Inside;
        Step::Take(len)
    }

    fn inside(&mut self, rest: &str, context: &mut Context<'_>) -> Step {
        let len = match find(rest, &[self.form.namespace]) {
            Hit::Marker { at: 0, .. } => return self.tag_opens(rest, true),
            Hit::Partial { at: 0 } => return Step::More,
            Hit::Marker { at, .. } | Hit::Partial { at } => at,
            Hit::None => rest.len(),
        };
        let text = rest.get(..len).unwrap_or_default();
        let blank = leading_space(text);
        let kind = self.kind(context);
        let Some(element) = self.open.last_mut() else {
            return if blank == len { Step::Take(len) } else { Step::Broken(blank) };
        };
        let mut json = String::new();
        match &mut element.content {
            Content::Unknown(space) if blank == len => space.push_str(text),
            Content::Unknown(space) => {
                let mut writer = ValueWriter::new(kind, false);
                writer.push(space, &mut json);
                writer.push(text, &mut json);
                element.content = Content::Text(writer);
            }
            Content::Text(writer) => writer.push(text, &mut json),
            Content::Object(_) | Content::List(_) if blank == len => {}
            Content::Object(_) | Content::List(_) => return Step::Broken(blank),
        }
        context.arguments(&json);
        Step::Take(len)
    }

    fn path(&self) -> Vec<Option<String>> {
        let parents = [None].into_iter().chain(self.open.iter().map(|element| Some(&element.content)));
        let steps = self.open.iter().zip(parents).map(|(element, parent)| match parent {
            Some(Content::List(_)) => None,
            _ => Some(element.tag.clone()),
        });
        steps.collect()
    }

    fn kind(&self, context: &Context<'_>) -> Kind {
        context.tools.schema(&self.name, &self.path()).kind()
    }

    fn is_list(&self, context: &Context<'_>) -> Option<bool> {
        context.tools.schema(&self.name, &self.path()).is_list()
    }

    fn tag_in_call(&mut self, tag: &str, len: usize, context: &mut Context<'_>) -> Step {
        self.state = State::Inside;
        let is_call = |tag: &str| tag == self.form.call;
        match tag.strip_prefix('/') {
            Some(tag) if self.open.is_empty() && is_call(tag) => {
                if self.arguments == 0 {
                    context.start(&self.name, None);
                    context.arguments("{}");
                } else {
                    context.arguments("}");
                }
                context.end();
                self.has_called = true;
                self.state = State::Block;
                Step::Take(len)
            }
            Some(tag) => self.closes(tag, len, context),
            None => self.opens(tag, len, context),
        }
    }

    fn opens(&mut self, tag: &str, len: usize, context: &mut Context<'_>) -> Step {
        let (tag, attributes) = tag.split_once(char::is_whitespace).unwrap_or((tag, ""));
        let named = if tag == PARAMETER { attribute(attributes, "name") } else { None };
        let name = named.unwrap_or_else(|| tag.to_owned());
        if name.is_empty() || self.open.len() >= MAX_DEPTH {
            return Step::Broken(len);
        }
        let is_list = self.is_list(context);
        let mut json = String::new();
        if self.open.is_empty() {
            if self.arguments == 0 {
                context.start(&self.name, None);
            }
            json.push_str(if self.arguments == 0 { "{" } else { ", " });
            self.arguments += 1;
            quote(&name, &mut json);
            json.push_str(": ");
        } else if let Some(parent) = self.open.last_mut() {
            if matches!(parent.content, Content::Unknown(_)) {
                let is_list = is_list.unwrap_or(name == ITEM);
                json.push(if is_list { '[' } else { '{' });
                parent.content = if is_list { Content::List(0) } else { Content::Object(0) };
            }
            match &mut parent.content {
                Content::List(members) | Content::Object(members) => {
                    json.push_str(if *members > 0 { ", " } else { "" });
                    *members += 1;
                }
                Content::Text(_) | Content::Unknown(_) => return Step::Broken(len),
            }
            if matches!(parent.content, Content::Object(_)) {
                quote(&name, &mut json);
                json.push_str(": ");
            }
        }
        context.arguments(&json);
        self.open.push(Element { tag: name, content: Content::Unknown(String::new()) });
        Step::Take(len)
    }

    fn closes(&mut self, tag: &str, len: usize, context: &mut Context<'_>) -> Step {
        let (kind, is_list) = (self.kind(context), self.is_list(context));
        let is_last = |element: &mut Element| element.tag == tag || tag == PARAMETER;
        let Some(element) = self.open.pop_if(is_last) else { return Step::Broken(len) };
        let mut json = String::new();
        match (element.content, is_list) {
            (Content::Unknown(_), Some(true)) => json.push_str("[]"),
            (Content::Unknown(_), Some(false)) => json.push_str("{}"),
            (Content::Unknown(space), None) => {
                let mut writer = ValueWriter::new(kind, false);
                writer.push(&space, &mut json);
                writer.finish(&mut json);
            }
            (Content::Text(writer), _) => writer.finish(&mut json),
            (Content::Object(_), _) => json.push('}'),
            (Content::List(_), _) => json.push(']'),
        }
        context.arguments(&json);
        Step::Take(len)
    }
}
