//! What Jinja2's macros have and the engine's lack: `varargs` and `kwargs`, the arguments that no parameter takes. A
//! template that reads them would get nothing for them, so it is refused.

use super::source::{Kind, Token, tokens};

const UNTOLD: [&str; 2] = ["varargs", "kwargs"];

/// The macros and call blocks that are open, and the names that the template gives a meaning of its own.
#[derive(Debug, Default)]
pub(super) struct Macros {
    open: usize,
    own: Vec<&'static str>,
}

impl Macros {
    /// Takes the next tag.
    ///
    /// # Errors
    /// Names what is not supported, in one line.
    pub(super) fn check(&mut self, tag: &str) -> Result<(), String> {
        let Some((tokens, _)) = tokens(tag) else { return Ok(()) };
        let statement = if tag.starts_with("{%") { text(tag, &tokens, 0) } else { "" };
        match statement {
            "macro" | "call" => self.open += 1,
            "endmacro" | "endcall" => self.open = self.open.saturating_sub(1),
            _ => {}
        }
        for at in 0..tokens.len() {
            let Some(name) = UNTOLD.into_iter().find(|name| *name == text(tag, &tokens, at)) else {
                continue;
            };
            let is_attribute = at > 0 && tokens[at - 1].is(tag, ".");
            let is_assigned = tokens.get(at + 1).is_some_and(|next| next.is(tag, "="));
            // A parameter, a variable, or the variable of a loop.
            if matches!(statement, "macro" | "set" | "with" | "for") && !is_attribute {
                self.own.push(name);
            } else if self.open > 0 && !is_attribute && !is_assigned && !self.own.contains(&name) {
                return Err(format!("`{name}` in a macro is not supported"));
            }
        }
        Ok(())
    }
}

fn text<'a>(tag: &'a str, tokens: &[Token], at: usize) -> &'a str {
    tokens.get(at).filter(|token| token.kind == Kind::Operand).map_or("", |token| &tag[token.at.clone()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tags: &[&str]) -> Result<(), String> {
        let mut macros = Macros::default();
        tags.iter().try_for_each(|tag| macros.check(tag))
    }

    #[test]
    fn what_a_macro_gets_beyond_its_parameters_is_refused() {
        for (tags, refused) in [
            (&["{% macro m(a) %}", "{{ varargs }}"][..], true),
            (&["{% macro m(a) %}", "{% if kwargs.x %}"], true),
            (&["{%- call(x) m() -%}", "{{ f(*varargs) }}"], true),
            (&["{% macro m(a) %}", "{% endmacro %}", "{{ kwargs }}"], false),
            (&["{% macro m(kwargs) %}", "{{ kwargs }}"], false),
            (&["{% set kwargs = {} %}", "{% macro m() %}", "{{ kwargs }}"], false),
            (&["{% macro m() %}", "{{ x.kwargs }}{{ '{' }}"], false),
            (&["{% macro m() %}", "{{ f(kwargs=1) }}"], false),
            (&["{% macro m() %}", "{{ 'varargs' }}"], false),
        ] {
            assert_eq!(check(tags).is_err(), refused, "{tags:?}");
        }
    }
}
