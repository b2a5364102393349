"""Renders every template with every conversation as the hub does, for tests/text/template.rs.

    pip install jinja2 && python make_templates.py

Writes rendered.json: template -> conversation -> {"text": ...} or {"refused": the template's own words} or {"error": true}.
A conversation that a template cannot read in the form it has (content in parts, where text is wanted) is left out: there
we change the form first, which Jinja2 knows nothing of.
"""

import datetime
import json
import pathlib

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2026, 2, 3, 4, 5, 6)


class Refused(Exception):
    pass


class Generation(Extension):
    """The hub's {% generation %} block, which changes nothing when no training mask is asked for."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller):
        return caller()


def raise_exception(message):
    raise Refused(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def hub_environment():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment


# Templates that read content in parts only.
PARTS_ONLY = {"parts_only"}
# Templates that read null as it is.
READS_NULL = {"odds_and_ends"}


def with_content(message):
    """Content that is null is empty text with us, as templates expect it."""
    return {**message, "content": ""} if message.get("content", "") is None else message


def in_parts(message):
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def render(name, source, case):
    messages = case["messages"] if name in READS_NULL else [with_content(message) for message in case["messages"]]
    messages = [in_parts(message) for message in messages] if name in PARTS_ONLY else messages
    text = hub_environment().from_string(source).render(
        messages=messages,
        tools=case.get("tools"),
        add_generation_prompt=case["add_generation_prompt"],
        bos_token="<s>",
        eos_token="</s>",
        **case.get("kwargs", {}),
    )
    return cut_after(text, case["messages"][-1]["content"]) if case.get("continue_final_message") else text


def cut_after(text, content):
    """The hub's rule for a message that is continued: the text ends with its content, trimmed where the template trims."""
    start = text.rindex(content.strip())
    kept = content if text[start : start + len(content.lstrip())] == content else content.strip()
    return text[:start] + kept


def parts(case):
    """The texts of content that comes in parts."""
    lists = [message["content"] for message in case["messages"] if isinstance(message.get("content"), list)]
    return [part["text"] for content in lists for part in content if "text" in part]


def outcome(name, source, case):
    try:
        text = render(name, source, case)
        shown = "{'type'" not in text and '{"type": "text"' not in text and any(part in text for part in parts(case))
        return None if parts(case) and not shown else {"text": text}
    except Refused as refused:
        return {"refused": str(refused)}
    except (TemplateError, TypeError, ValueError, RecursionError) as error:
        print("  error:", str(error)[:200])
        # Content that is null counts as empty with us, also where a template walks over its parts.
        return None if parts(case) or "not iterable" in str(error) else {"error": True}


def main():
    cases = json.loads((HERE / "conversations.json").read_text())
    rendered = {}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        print(path.stem)
        source = path.read_text()
        outcomes = {name: outcome(path.stem, source, case) for name, case in cases.items()}
        rendered[path.stem] = {name: outcome for name, outcome in outcomes.items() if outcome is not None}
    (HERE / "rendered.json").write_text(json.dumps(rendered, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
