"""Renders every template with every conversation as the hub does, for tests/text/template.rs.

    pip install jinja2 && python make_templates.py

Writes rendered.json: template -> conversation -> {"text": ...} or {"refused": the template's own words} or {"error": true}.
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


def render(source, case):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = NOW.strftime
    return environment.from_string(source).render(
        messages=case["messages"],
        tools=case.get("tools"),
        add_generation_prompt=case["add_generation_prompt"],
        bos_token="<s>",
        eos_token="</s>",
        **case.get("kwargs", {}),
    )


def outcome(source, case):
    try:
        return {"text": render(source, case)}
    except Refused as refused:
        return {"refused": str(refused)}
    except (TemplateError, TypeError) as error:
        print("  error:", error)
        return {"error": True}


def main():
    cases = json.loads((HERE / "conversations.json").read_text())
    rendered = {}
    for path in sorted((HERE / "templates").glob("*.jinja")):
        print(path.stem)
        source = path.read_text()
        rendered[path.stem] = {name: outcome(source, case) for name, case in cases.items()}
    (HERE / "rendered.json").write_text(json.dumps(rendered, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
