"""Draws small templates and renders them with Jinja2, for tests/text/expressions.rs.

    pip install jinja2 && python make_expressions.py [seed]

Writes expressions.json: the seed, the variables, and a list of [template, output]. Templates that Jinja2 refuses are
not kept: nobody publishes them.
"""

import json
import pathlib
import random
import sys

from make_templates import hub_environment

HERE = pathlib.Path(__file__).parent
COUNT = 1500

VARIABLES = {
    "s": "Hello, World",
    "t": "  a b\n c  ",
    "u": "Größe 😀 ß",
    "q": "it's \"q\"\t\\",
    "e": "",
    "num": "42",
    "n": 7,
    "z": 0,
    "neg": -3,
    "f": 2.5,
    "big": 1e16,
    "tiny": 0.00001,
    "l": [3, 1, 2],
    "w": ["b", "A", "c", "b"],
    "empty": [],
    "nested": [[1, "x"], [2, None]],
    "m": {"role": "user", "content": "hi", "n": 1, "flag": True, "none": None},
    "ms": [
        {"role": "system", "content": "Be brief.", "n": 3},
        {"role": "user", "content": " Hi! ", "n": 1},
        {"role": "assistant", "content": "", "n": 2},
    ],
    "o": {},
    "yes": True,
    "no": False,
    "nothing": None,
}

# What published templates write, beyond what chance finds.
HAND = r"""
{{ '%s' % s }}|{{ '%s and %s' % (s, n) }}|{{ '%d' % n }}|{{ '%5d|%-5d|%05d|%+d' % (n, n, n, n) }}|{{ '%x %X %o' % (255, 255, 8) }}
{{ '%.2f' % f }}|{{ '%8.3f|%-8.1f|%e|%g|%G' % (f, f, f, f, big) }}|{{ '%r %s' % (q, q) }}|{{ '%5s|%-5s|%.2s' % ('ab', 'ab', 'abc') }}|{{ '100%%' % () }}
{{ '%(a)s-%(b)03d' % {'a': s, 'b': 5} }}|{{ '%c%c' % ('x', 65) }}|{{ '%s' % none }}|{{ '%s' % [1, 'a'] }}|{{ '%s' % true }}|{{ '%i' % 3.99 }}
{% set pattern = '<%s>' %}{{ pattern % n }}|{{ ('a' ~ '%s') % 'b' }}|{{ 7 % 4 }}|{{ -7 % 4 }}|{{ 7 % -4 }}|{{ 7.5 % 2 }}|{{ n % 2 == 1 }}|{{ 2 * 7 % 4 }}|{{ 10 - 7 % 4 }}
{{ '{} {}'.format('a', n) }}|{{ '{0}{1}{0}'.format('a', 'b') }}|{{ '{x}'.format(x=n) }}|{{ '{:>5}|{:<5}|{:^5}|{:05d}'.format('a', 'b', 'c', n) }}|{{ '{:.2f}'.format(f) }}|{{ '{:,}'.format(1234567) }}|{{ '{!r}'.format(s) }}|{{ '{{}}'.format() }}
{{ 'a' 'b' "c" }}|{{ 'x' ~ 'a' 'b' | upper }}
{{ s is sequence }}{{ m is sequence }}{{ l is sequence }}{{ n is sequence }}{{ none is sequence }}{{ missing is sequence }}
{{ s is mapping }}{{ m is mapping }}{{ s is iterable }}{{ m is iterable }}{{ n is iterable }}{{ missing is iterable }}{{ none is iterable }}{{ (1, 2) is sequence }}{{ range(3) is sequence }}{{ range(3) is iterable }}
{{ yes is number }}{{ yes is integer }}{{ yes is boolean }}{{ f is float }}{{ n is float }}{{ f is number }}{{ n is odd }}{{ n is even }}{{ n is divisibleby 7 }}{{ n is divisibleby(2) }}
{{ m is defined }}{{ m.x is defined }}{{ m['x'] is defined }}{{ none is defined }}{{ missing is none }}{{ m.none is none }}{{ range is callable }}
{{ s is in 'Hello, World!' }}{{ 1 is in l }}{{ 'role' is in m }}{{ 'x' not in m }}{{ 'a' in w }}{{ not 'a' in w }}{{ s is eq 'x' }}{{ n is equalto 7 }}{{ n is gt 3 }}{{ n is ge 7 }}{{ n is lt 3 }}{{ n is le 7 }}{{ n is ne 3 }}{{ s is lower }}{{ s is upper }}{{ 'abc' is lower }}{{ 'ABC' is upper }}{{ n is sameas n }}{{ no is false }}{{ yes is true }}{{ 1 is true }}{{ 'filter' is filter }}{{ 'upper' is filter }}{{ 'odd' is test }}
{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}|{% for k, v in m | dictsort %}{{ k }}={{ v }};{% endfor %}|{% for k in m %}{{ k }},{% endfor %}|{% for k, v in m.items() | sort %}{{ k }}{% endfor %}|{% for k in m.keys() | sort(reverse=true) %}{{ k }}{% endfor %}|{% for v in {'a': 2, 'b': 1}.values() | sort %}{{ v }}{% endfor %}
{{ m.items() | list | length }}|{{ m | items | list }}|{{ m | dictsort(false, 'value') | list if false else 1 }}|{{ {'b': 2, 'a': 3} | dictsort(by='value', reverse=true) }}|{{ {'B': 1, 'a': 2} | dictsort }}|{{ {'B': 1, 'a': 2} | dictsort(case_sensitive=true) }}
{{ w | sort }}|{{ w | sort(case_sensitive=true) }}|{{ w | sort(reverse=true) }}|{{ ms | sort(attribute='n') | map(attribute='role') | list }}|{{ ms | sort(attribute='role,n') | map(attribute='n') | list }}|{{ w | unique | list }}|{{ w | unique(case_sensitive=true) | list }}|{{ ms | unique(attribute='role') | list | length }}
{{ ms | groupby('role') | map('first') | list }}|{% for g in ms | groupby('role') %}{{ g.grouper }}:{{ g.list | length }};{% endfor %}|{% for role, list in ms | groupby('role') %}{{ role }}{{ list | map(attribute='content') | join('+') }}{% endfor %}
{{ ms | map(attribute='missing', default='d') | list }}|{{ ms | map('length') | list }}|{{ w | map('upper') | join(',') }}|{{ w | map('replace', 'b', 'x') | list }}|{{ ms | selectattr('content') | map(attribute='role') | list }}|{{ ms | rejectattr('role', 'equalto', 'user') | map(attribute='role') | list }}|{{ ms | selectattr('role', 'eq', 'user') | first }}|{{ l | select('odd') | list }}|{{ l | reject('gt', 1) | list }}|{{ [0, 1, '', 'a', none] | select | list }}
{{ l | batch(2) | list }}|{{ l | batch(2, 'x') | list }}|{{ l | slice(2) | list }}|{{ l | slice(2, 0) | list }}|{{ l | sum }}|{{ ms | sum(attribute='n') }}|{{ l | sum(start=10) }}|{{ l | min }}{{ l | max }}|{{ w | min }}{{ w | max }}|{{ ms | max(attribute='n') }}|{{ l | reverse | list }}|{{ s | reverse }}|{{ l | first }}{{ l | last }}|{{ e | first }}|{{ empty | last }}
{{ s | center(20) }}|{{ s | wordcount }}|{{ s | truncate(8) }}|{{ s | truncate(8, true) }}|{{ s | truncate(8, true, '...') }}|{{ t | trim }}|{{ 'xxaxx' | trim('x') }}|{{ s | capitalize }}|{{ 'hello wORLD foo-bar' | title }}|{{ s | lower }}|{{ u | upper }}|{{ s | length }}|{{ u | length }}|{{ s | list }}|{{ s | string }}|{{ f | string }}|{{ yes | string }}|{{ none | string }}|{{ l | string }}|{{ m | string }}
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb\n\nc' | indent(2, true) }}|{{ 'a\nb\n\nc' | indent(2, first=true, blank=true) }}|{{ 'a\nb' | indent('> ') }}|{{ 'a\nb' | indent(width=1) }}
{{ '3' | int }}|{{ '3.7' | int }}|{{ 'x' | int }}|{{ 'x' | int(5) }}|{{ 3.9 | int }}|{{ -3.9 | int }}|{{ '0x1f' | int(0, 16) }}|{{ yes | int }}|{{ none | int }}|{{ '3.5' | float }}|{{ 'x' | float }}|{{ 'x' | float(1.5) }}|{{ n | float }}|{{ 3.456 | round(1) }}|{{ 2.5 | round }}|{{ 3.5 | round }}|{{ 2.1 | round(method='ceil') }}|{{ 2.9 | round(0, 'floor') }}|{{ neg | abs }}|{{ -2.5 | abs }}
{{ missing | default('d') }}|{{ none | default('d') }}|{{ none | default('d', true) }}|{{ e | default('d', boolean=true) }}|{{ 0 | d(1) }}|{{ m.x | default(m.role) }}|{{ missing | d }}|{{ missing | default([]) | length }}
{{ s | replace('l', 'L') }}|{{ s | replace('l', 'L', 1) }}|{{ s.replace('l', 'L', 2) }}|{{ s.replace(old='l', new='x') if false else 1 }}|{{ w | join }}|{{ w | join('-') }}|{{ ms | join(',', attribute='role') }}|{{ [1, none, 2.0, true] | join(',') }}|{{ s | join('.') }}
{{ '<a href="x">\'</a>' | escape }}|{{ '<b>' | e }}|{{ '<b>' | safe }}|{{ 'a b/ü?' | urlencode }}|{{ {'a': 'b c'} | urlencode }}|{{ '%s-%d' | format('a', 3) }}
{{ m | attr('role') }}
{{ m | tojson }}|{{ m | tojson(indent=2) }}|{{ m | tojson(indent=4) }}|{{ ms | tojson(2) }}|{{ {'é': 1} | tojson(1) }}|{{ m | tojson(sort_keys=true) }}|{{ u | tojson }}|{{ u | tojson(ensure_ascii=true) }}|{{ q | tojson }}|{{ [big, tiny, f, 1.0, 1e100, 123456789012345678] | tojson }}|{{ {'a': (1, 2)} | tojson }}|{{ {1: 2, none: 3, true: 4, 1.5: 6} | tojson }}|{{ m | tojson(separators=(',', ':')) }}|{{ [] | tojson(indent=2) }}|{{ '</script>&<' | tojson }}|{{ [1, [2, {'a': []}]] | tojson(indent=1) }}
{{ big }}|{{ tiny }}|{{ 1.0 }}|{{ 1e22 }}|{{ 123456789.123 }}|{{ 0.1 + 0.2 }}|{{ 1 / 3 }}|{{ 4 / 2 }}|{{ 7 // 2 }}|{{ -7 // 2 }}|{{ 7.0 // 2 }}|{{ 2 ** 3 }}|{{ 2 ** -1 }}|{{ 2 ** 0.5 }}|{{ 10 ** 20 }}|{{ -n }}|{{ +n }}|{{ - f }}|{{ 1_000 }}|{{ 0x1F }}|{{ 0b11 }}|{{ 0o17 }}
{{ none ~ yes }}|{{ l ~ m }}|{{ (1,) }}|{{ () }}|{{ (1, 'a') ~ '' }}|{{ [none, true, 1.5, 'é', "it's", 'a"b', 'tab\t', '\x7f\u200b\\'] }}|{{ {'k': 'v', 1: none} }}|{{ [[]] }}|{{ {} }}|{{ [big, tiny] }}|{{ e }}|{{ [e] }}|{{ [q] }}
{{ 1 < 2 < 3 }}|{{ 3 > 2 > 2 }}|{{ 1 == 1.0 }}|{{ 'a' < 'b' }}|{{ [1, 2] < [1, 3] }}|{{ yes == 1 }}|{{ none == no }}|{{ 'a' == 'a' == 'a' }}|{{ not none }}|{{ not e }}|{{ e or 'x' }}|{{ s and 'x' }}|{{ e and 1 }}|{{ none or empty or 'z' }}|{{ 1 if e else 2 }}|{{ 'x' if no }}|{{ ('x' if no) ~ 'y' }}|{{ 1 if no else 2 if no else 3 }}
{{ s[0] }}{{ s[-1] }}|{{ s[1:4] }}|{{ s[:-1] }}|{{ s[::2] }}|{{ s[::-1] }}|{{ s[20:] }}|{{ l[1:] }}|{{ l[-2:] }}|{{ l[::-1] }}|{{ l[:0] }}|{{ l[5:] }}|{{ u[:3] }}|{{ u[6] }}|{{ (1, 2, 3)[1:] }}|{{ l[10] is defined }}|{{ m['role'][0] }}|{{ ms[0].content[:2] }}|{{ ms[-1]['role'] }}|{{ ms[:1] }}|{{ ms.0.role }}|{{ nested.0.1 }}|{{ nested[1][0] }}|{{ l[n - 6] }}|{{ l[::2] }}|{{ l[-1:0:-1] }}
{{ s.upper() }}|{{ s.lower() }}|{{ s.title() }}|{{ s.capitalize() }}|{{ s.swapcase() }}|{{ s.casefold() }}|{{ s.center(16, '*') }}|{{ s.ljust(14, '.') }}|{{ s.rjust(14) }}|{{ num.zfill(5) }}|{{ '-5'.zfill(4) }}|{{ s.count('l') }}|{{ s.find('o') }}|{{ s.find('o', 5) }}|{{ s.rfind('o') }}|{{ s.index('W') }}|{{ s.rindex('o') }}|{{ s.find('zz') }}
{{ s.startswith('He') }}|{{ s.startswith(('x', 'H')) }}|{{ s.endswith('ld') }}|{{ s.startswith('l', 2) }}|{{ t.strip() }}|{{ t.lstrip() }}|{{ t.rstrip() }}|{{ 'xyax'.strip('xy') }}|{{ 'xyax'.lstrip('xy') }}|{{ 'xyax'.rstrip('xy') }}|{{ 'a\tb'.expandtabs(4) }}|{{ 'pre-x'.removeprefix('pre-') }}|{{ 'x-suf'.removesuffix('-suf') }}|{{ 'a=b=c'.partition('=') }}|{{ 'a=b=c'.rpartition('=') }}|{{ 'abc'.partition('=') }}
{{ 'a b  c'.split() }}|{{ 'a,b,c'.split(',') }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ 'a b c'.rsplit() }}|{{ 'a b c'.rsplit(none, 1) }}|{{ 'a b c'.split(maxsplit=1) }}|{{ 'a,b'.split(sep=',') }}|{{ 'a\nb\r\nc'.splitlines() }}|{{ 'a\nb\n'.splitlines(true) }}|{{ 'a</think>b'.split('</think>')[-1] }}|{{ 'a</think>b'.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}|{{ ''.split() }}|{{ ''.split(',') }}|{{ t.split('\n') }}
{{ 'abc'.isalpha() }}{{ 'ab1'.isalnum() }}{{ '12'.isdigit() }}{{ '²'.isdigit() }}{{ '½'.isnumeric() }}{{ '12'.isdecimal() }}{{ ' '.isspace() }}{{ 'A'.isupper() }}{{ 'a'.islower() }}{{ ''.isdigit() }}{{ 'Ab Cd'.istitle() }}{{ 'é'.isascii() }}{{ 'a_1'.isidentifier() }}
{{ ','.join(w) }}|{{ ', '.join(m.keys()) }}|{{ m.get('role') }}|{{ m.get('x') }}|{{ m.get('x', 'd') }}|{{ m.keys() | list }}|{{ m.values() | list }}|{{ m.copy() }}|{{ l.index(1) }}|{{ w.count('b') }}|{{ l.copy() }}|{{ (1, 2, 2).count(2) }}|{{ (1, 2).index(2) }}
{% set ns = namespace(a=1, b=[]) %}{% for x in l %}{% set ns.a = ns.a + x %}{% set ns.b = ns.b + [x] %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}|{% set ns2 = namespace({'x': 1}) %}{{ ns2.x }}
{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last }}{% else %}none{% endfor %}|{% for x in empty %}{{ x }}{% else %}none{% endfor %}|{% for x in w %}{{ loop.cycle('o', 'e') }}{{ loop.revindex }}{{ loop.first }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{% if loop.changed(x) %}!{% endif %}{% endfor %}
{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}|{% for a, b in nested %}{{ a }}{{ b }}{% endfor %}|{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}|{% for i in range(5, 0, -2) %}{{ i }}{% endfor %}|{% for c in 'héy' %}{{ c }}.{% endfor %}
{% for node in [{'n': 1, 'c': [{'n': 2, 'c': []}]}] recursive %}{{ node.n }}{% if node.c %}({{ loop(node.c) }}){% endif %}{% endfor %}
{% macro m1(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m1(1) }}|{{ m1(1, c=2) }}|{{ m1(a='k', b='l') }}|{% macro wrap() %}<{{ caller() }}>{% endmacro %}{% call wrap() %}in{% endcall %}|{% macro item(x) %}{{ caller(x) }}{% endmacro %}{% call(y) item(3) %}{{ y * 2 }}{% endcall %}
{% set a, b = 1, 2 %}{{ a }}{{ b }}|{% set x %}block {{ n }}{% endset %}{{ x }}|{% set y | upper %}loud{% endset %}{{ y }}|{% with a = 5, b = 6 %}{{ a }}{{ b }}{% endwith %}{{ a }}|{% filter upper | replace('A', 'b') %}abc{% endfilter %}|{% if n > 5 and not no %}y{% elif z %}m{% else %}n{% endif %}|{% raw %}{{ x }}{% endraw %}
{% for x in l %}{% set outer = x %}{% endfor %}{{ outer is defined }}|{% if yes %}{% set inner = 1 %}{% endif %}{{ inner }}|{% set l2 = l + [4] %}{{ l2 }}{{ l }}
{{ dict(a=1, b='x') }}|{{ dict(a=1).a }}|{{ range(3) | list }}|{{ [1, 2, 3] | length }}|{{ cycler is defined }}|{{ joiner is defined }}|{% set sep = joiner(',') %}{{ sep() }}1{{ sep() }}2|{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}
{% generation %}kept{% endgeneration %}|{%- generation -%} kept {%- endgeneration -%}|{{ generation is defined }}
{{ [1, 2] + [3] }}|{{ (1,) + (2,) }}|{{ 'a' * 3 }}|{{ [0] * 2 }}|{{ 3 * 'ab' }}|{{ 'a' + 'b' }}|{{ 'a' ~ 1 + 2 }}|{{ 1 + 2 * 3 }}|{{ (1 + 2) * 3 }}|{{ 2 * 3 ** 2 }}|{{ -2 ** 2 }}|{{ 10 - 2 - 3 }}|{{ 7 - -2 }}|{{ 2 ** 3 ** 2 }}
{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%A, %B %d, %Y %H:%M:%S %p %j %y %I') }}
{{ "a\nb" }}|{{ 'a\\nb' }}|{{ 'tab\there' }}|{{ '\u00e9' }}|{{ 'q\'q' }}|{{ "dq\"dq" }}|{{ '{{ x }}' }}|{{ '{% x %}' }}|{{ "<|im_start|>" + m.role + '\n' }}
{{ m.content if m.content is string else m.content[0].text }}|{{ (m.tool_calls or []) | length }}|{{ m.tool_calls is defined and m.tool_calls }}|{{ (ms | selectattr('role', 'equalto', 'system') | list)[0].content }}|{{ 'x' if ms[0]['role'] == 'system' else 'y' }}|{{ ms[1:] | length }}|{{ (ms | length) - 1 }}|{{ ms | length - 1 }}
{{ '{0} {0} {1}'.format(s, n) }}|{{ '{0[role]}'.format(m) }}|{{ '{m[role]}-{m[n]}'.format(m=m) }}|{{ '{0[1]}'.format(l) }}|{{ '{0[0][1]}'.format(nested) }}|{{ '{:>{}}'.format('a', 5) }}|{{ '{:{w}.{p}f}'.format(f, w=8, p=3) }}|{{ '{:*^9}'.format('mid') }}|{{ '{:+d}'.format(n) }}|{{ '{: d}'.format(n) }}|{{ '{:b} {:o} {:x} {:X} {:#x}'.format(n, n, 255, 255, 255) }}|{{ '{:e}'.format(f) }}|{{ '{:g}'.format(f) }}|{{ '{:%}'.format(0.25) }}|{{ '{:.1%}'.format(0.256) }}|{{ '{:_}'.format(1234567) }}|{{ '{:,.2f}'.format(12345.678) }}|{{ '{:010.3f}'.format(f) }}|{{ '{:<6}|'.format(n) }}|{{ '{:=+6d}'.format(n) }}|{{ '{:s}'.format(s) }}|{{ '{:.3}'.format(s) }}|{{ '{:.3s}|{:6.2s}|'.format(s, s) }}|{{ '{}'.format(none) }}|{{ '{} {}'.format(yes, l) }}|{{ '{!s:>5}'.format(n) }}|{{ '{!r:>8}'.format('ab') }}|{{ '{!a}'.format('é') }}|{{ '{a}{b}'.format(**{'a': 1, 'b': 'x'}) }}|{{ '{}{}'.format(*l) }}|{{ '{:c}'.format(97) }}|{{ '{:n}'.format(n) }}|{{ '{:d}'.format(yes) }}|{{ '{}'.format(big) }}|{{ '{:.0f}'.format(2.5) }}|{{ '{x}'.format_map({'x': 3}) }}|{{ '{:<+9.1%}|{:^12%}|{:06.1%}'.format(f, -0.5, 0.125) }}|{{ '{:*=8d}|{:0=+8.2f}|{:= 6}'.format(neg, f, n) }}|{{ '{:>n}{:n}'.format(f, 1.5e10) }}|{{ '{a[b]:>5}'.format(a={'b': 1}) }}|{{ '{[2]}{[0]}'.format(l, w) }}|{{ '{0!r:.3}'.format(s) }}|{{ '{{{}}}'.format(n) }}|{{ '{:}'.format(n) }}|{{ '{:d}'.format(no) }}|{{ '{:é>4}'.format('x') }}
{{ '%s %s' | format(s, n) }}|{{ '%(a)s' | format(a=1) }}|{{ '%05.1f' | format(f) }}|{{ '%-6s|' | format('ab') }}|{{ '%s' | format(l) }}|{{ '%s' | format(none) }}|{{ '%d%%' | format(n) }}
{{ 'The quick brown fox jumps over the lazy dog' | wordwrap(10) }}|{{ 'The quick brown fox' | wordwrap(width=9, wrapstring='|') }}|{{ 'averyveryverylongword short' | wordwrap(6) }}|{{ 'averyveryverylongword short' | wordwrap(6, false) }}|{{ 'well-known state-of-the-art thing' | wordwrap(12) }}|{{ 'well-known state-of-the-art thing' | wordwrap(12, true, none, false) }}|{{ 'a\n\nb c  d\n e' | wordwrap(3) }}|{{ s | wordwrap }}|{{ e | wordwrap }}|{{ t | wordwrap(2) }}|{{ 'x -- y a--b --c-d' | wordwrap(4) }}|{{ 'ab-cdefghijkl' | wordwrap(5) }}|{{ 'semi-auto-matic-ally-named' | wordwrap(7) }}|{{ u | wordwrap(3) }}|{{ '   lead  and trail   ' | wordwrap(6) }}|{{ 'a-1 b-c-d 1-2-3 x-yy zz-y' | wordwrap(4) }}|{{ 'tab\tsep\x0bfeed words' | wordwrap(5) }}|{{ "don't, stop-it! ok? (a-b-c) [dd-ee]" | wordwrap(7) }}|{{ '--option-name=value' | wordwrap(9) }}|{{ 'http://a-b.cc/dd-ee' | wordwrap(8, break_on_hyphens=false) }}
{{ 1 | filesizeformat }}|{{ 0 | filesizeformat }}|{{ 999 | filesizeformat }}|{{ 1000 | filesizeformat }}|{{ 1023 | filesizeformat(true) }}|{{ 1024 | filesizeformat(true) }}|{{ 123456789 | filesizeformat }}|{{ 123456789 | filesizeformat(binary=true) }}|{{ '2500' | filesizeformat }}|{{ 2.7 | filesizeformat }}|{{ 10 ** 27 | filesizeformat }}|{{ (10 ** 28) | filesizeformat }}|{{ neg | filesizeformat }}|{{ 1e15 | filesizeformat }}
{{ {'a': 1, 'b': none, 'c': '<x> & "y"'} | xmlattr }}|{{ {'a': 1} | xmlattr(false) }}|{{ {'a': 1} | xmlattr(autospace=false) }}|{{ {} | xmlattr }}|{{ {'class': 'x', 'd': missing, 'e': true, 'f': 1.5, 'g&': [1]} | xmlattr }}
{% macro two(a, b='x') %}{{ a }}{{ b }}{% endmacro %}{{ two(*[1, 2]) }}|{{ two(*['k'], **{'b': 'l'}) }}|{{ two(1, **{'b': 2}) }}|{{ two(**{'a': 'y'}) }}|{{ dict(**m).role }}|{{ range(*[1, 4]) | list }}
{% macro none_of() %}{{ caller('in', 2) }}{% endmacro %}{% call(a, b) none_of() %}{{ a }}{{ b }}{% endcall %}|{% set kwargs = 1 %}{{ kwargs }}{% set varargs = 2 %}{{ varargs }}{% macro named(kwargs) %}{{ kwargs }}{% endmacro %}{{ named(kwargs=3) }}
{{ s[n - 8] }}{{ s[-n:-1] }}|{{ ('a' 'bc')[-1] }}|{{ 'abc'[neg] }}|{{ (s ~ u)[-3:] }}|{{ s.upper()[-2] }}|{{ ms[neg].content[-3:] }}|{{ -l[-1] }}|{{ not l[-1] }}|{{ l[l[-1] - 1] }}|{{ {'a': s}['a'][::-1][1:][-2] }}|{{ m['role'][z] }}|{{ [s, u][-1][-1] }}|{{ s[:n][-1] ~ s[-1] in s }}|{{ s[-1] == 'd' and s[-1:] != 'x' }}|{{ (1, 2, 3)[-2:] }}|{{ (1, 2, 3)[z] }}|{{ 'x' is in s[-3:] }}|{{ 3 is in l[-3:] }}|{{ n is divisibleby l[z] }}|{{ s.split(',')[-1].strip()[-1] }}|{% for c in s[-3:] %}{{ c }}.{% endfor %}{% for c in s %}{{ loop.index }}{{ c }}{% endfor %}{% for k in m %}{{ k }}{% endfor %}{% for x in l %}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.last }}{% endfor %}
{%- for m2 in ms %}{%- if loop.first and m2.role != 'system' %}a{%- endif %}{{- '<' + m2['role'] + '>' + m2['content'] | trim + '</>' }}{%- endfor %}
""".strip("\n")


LINES = """
  {%- if yes -%}  a  {%- endif %}  b
  {% if yes %}
    c
  {% endif %}
{# gone #}d {#- gone -#} e
    {% set k = 1 %}
f{{ '' }}
"""


class Draw:
    """Expressions by type, so that most of them mean something."""

    def __init__(self, rng):
        self.rng = rng

    def one(self, *options):
        choice = self.rng.choice(options)
        return choice() if callable(choice) else choice

    def literal(self):
        text = self.rng.choice(["a", "Abc", "x y", "é", "l", "o", ", ", "", "b-c", "user", "\\n", "it\\'s", "%"])
        return f"'{text}'"

    def text(self, depth):
        if depth == 0:
            return self.one("s", "t", "u", "q", "e", "num", "m.role", "ms[1].content", self.literal)
        down = depth - 1
        inner = lambda: self.text(down)
        return self.one(
            lambda: f"({inner()} ~ {self.plain(down)})",
            lambda: f"({inner()} + {inner()})",
            lambda: f"{inner()} | {self.one('upper', 'lower', 'trim', 'capitalize', 'title', 'string', 'reverse', 'escape')}",
            lambda: f"({inner()}).{self.one('upper', 'lower', 'strip', 'lstrip', 'rstrip', 'title', 'capitalize', 'swapcase')}()",
            lambda: f"({inner()}).{self.one('strip', 'lstrip', 'rstrip', 'removeprefix', 'removesuffix')}({self.literal()})",
            lambda: f"({inner()}).replace({self.literal()}, {self.literal()})",
            lambda: f"{inner()} | replace({self.literal()}, {self.literal()})",
            lambda: f"({inner()})[{self.slice()}]",
            lambda: f"{self.list(down)} | join({self.literal()})",
            lambda: f"({inner()}).join({self.texts(down)})",
            lambda: f"({inner()} if {self.bool(down)} else {inner()})",
            lambda: f"{self.any(down)} | string",
            lambda: f"{self.any(down)} | tojson",
            lambda: f"{self.map(down)} | tojson(indent={self.rng.randint(0, 4)})",
            lambda: f"({inner()} or {inner()})",
            lambda: f"({inner()}) | indent({self.rng.randint(0, 4)})",
            lambda: f"({inner()}) * {self.rng.randint(0, 3)}",
            lambda: f"'[%s]' % ({self.text(down)},)",
            lambda: f"'%s=%d' % ({self.text(down)}, {self.int(down)})",
            lambda: f"'%s' % ({self.plain(down)},)",
            lambda: f"'{{}}:{{}}'.format({self.text(down)}, {self.plain(down)})",
            lambda: f"({inner()}) | default({self.literal()}, true)",
            lambda: f"({inner()}).{self.one('ljust', 'rjust', 'center', 'zfill')}({self.rng.randint(0, 15)})",
            lambda: f"({inner()}).partition({self.one(chr(39) + 'o' + chr(39), chr(39) + ' ' + chr(39))})[{self.rng.randint(0, 2)}]",
        )

    def slice(self):
        side = lambda: self.one("", "", "0", "1", "2", "-1", "-2", "5")
        return f"{side()}:{side()}" + self.one("", "", "", ":-1", ":2")

    def int(self, depth):
        if depth == 0:
            return self.one("n", "z", "neg", "1", "2", "10", "l[0]", "m.n")
        down = depth - 1
        return self.one(
            lambda: f"({self.int(down)} {self.one('+', '-', '*')} {self.int(down)})",
            lambda: f"({self.int(down)} {self.one('//', '%')} {self.one('2', '3', '-4')})",
            lambda: f"{self.text(down)} | length",
            lambda: f"{self.list(down)} | length",
            lambda: f"({self.text(down)}).{self.one('find', 'count', 'rfind')}({self.literal()})",
            lambda: f"{self.ints(down)} | {self.one('sum', 'max', 'min')}",
            lambda: f"({self.int(down)}) | abs",
            lambda: f"(-{self.int(down)})",
            lambda: f"{self.text(down)} | int",
        )

    def float(self, depth):
        if depth == 0:
            return self.one("f", "big", "tiny", "1.0", "0.1", "-2.5")
        return self.one(
            lambda: f"({self.float(depth - 1)} {self.one('+', '-', '*')} {self.int(depth - 1)})",
            lambda: f"({self.int(depth - 1)} / {self.one('2', '3', '8')})",
            lambda: f"({self.float(depth - 1)}) | round({self.rng.randint(0, 3)})",
            lambda: f"({self.int(depth - 1)}) | float",
        )

    def bool(self, depth):
        if depth == 0:
            return self.one("yes", "no", "s", "e", "empty", "l", "nothing", "missing", "z", "m", "o")
        down = depth - 1
        tests = ("defined", "none", "string", "mapping", "number", "iterable", "sequence", "boolean", "integer", "float", "undefined")
        return self.one(
            lambda: f"({self.bool(down)} {self.one('and', 'or')} {self.bool(down)})",
            lambda: f"(not {self.bool(down)})",
            lambda: f"({self.any(0)} is {self.one('', 'not ')}{self.one(*tests)})",
            lambda: f"({self.int(down)} {self.one('<', '<=', '==', '!=', '>', '>=')} {self.int(down)})",
            lambda: f"({self.text(down)} {self.one('==', '!=', 'in', 'not in', '<')} {self.text(down)})",
            lambda: f"({self.one(chr(39) + 'role' + chr(39), chr(39) + 'x' + chr(39))} {self.one('in', 'not in')} {self.map(down)})",
            lambda: f"({self.any(down)} == {self.any(down)})",
            lambda: f"({self.text(down)}).{self.one('startswith', 'endswith')}({self.literal()})",
            lambda: f"({self.text(down)}).{self.one('isdigit', 'isalpha', 'isspace', 'isupper', 'islower', 'isalnum')}()",
            lambda: f"({self.any(down)} in {self.list(down)})",
        )

    def ints(self, depth):
        return self.one("l", "[1, 2, 3]", lambda: f"[{self.int(depth)}, {self.int(depth)}]", "range(4) | list")

    def texts(self, depth):
        return self.one("w", "['x', 'y']", lambda: f"[{self.text(depth)}, {self.text(depth)}]", "s.split()", "m.keys()", "num")

    def list(self, depth):
        if depth == 0:
            return self.one("l", "w", "empty", "nested", "ms", "[1, 'a', none]")
        down = depth - 1
        return self.one(
            lambda: f"[{self.any(down)}, {self.any(down)}]",
            lambda: f"({self.list(down)} + {self.list(down)})",
            lambda: f"({self.list(down)})[{self.slice()}]",
            lambda: f"({self.text(down)}).split({self.one('', self.one(chr(39) + ',' + chr(39), chr(39) + 'l' + chr(39)))})",
            lambda: f"{self.ints(down)} | {self.one('sort', 'reverse | list', 'unique | list', 'map(' + chr(39) + 'string' + chr(39) + ') | list')}",
            lambda: f"{self.texts(down)} | {self.one('sort', 'unique | list', 'map(' + chr(39) + 'upper' + chr(39) + ') | list')}",
            lambda: f"ms | map(attribute={self.one(chr(39) + 'role' + chr(39), chr(39) + 'n' + chr(39), chr(39) + 'content' + chr(39))}) | list",
            lambda: f"ms | {self.one('selectattr', 'rejectattr')}('role', {self.one(chr(39) + 'equalto' + chr(39), chr(39) + 'ne' + chr(39))}, 'user') | list",
            lambda: f"({self.map(down)}).{self.one('items', 'keys', 'values')}() | list",
            lambda: f"{self.map(down)} | dictsort",
            lambda: f"{self.text(down)} | list",
            lambda: f"({self.text(down)}).splitlines()",
            lambda: f"{self.list(down)} | batch(2) | list",
        )

    def map(self, depth):
        if depth == 0:
            return self.one("m", "o", "ms[0]", "{'b': 1, 'a': 2}")
        return self.one(
            lambda: f"{{'k': {self.any(depth - 1)}, 'é': {self.any(depth - 1)}}}",
            lambda: f"dict(x={self.any(depth - 1)})",
            lambda: self.map(depth - 1),
        )

    def any(self, depth):
        return self.one(
            lambda: self.text(depth), lambda: self.int(depth), lambda: self.float(depth), lambda: self.bool(depth),
            lambda: self.list(depth), lambda: self.map(depth), "none", "missing",
        )

    def plain(self, depth):
        """Without floats, which the engine writes as it likes inside of other texts, and lists of anything."""
        return self.one(lambda: self.text(depth), lambda: self.int(depth), lambda: self.bool(0), "m", "l", "none", "missing")

    def template(self):
        depth = self.rng.randint(1, 3)
        kind = self.rng.randint(0, 9)
        if kind < 6:
            return "{{ " + self.any(depth) + " }}"
        if kind == 6:
            body = self.one("{{ x }}", "{{ loop.index }}{{ x }}{{ ';' if not loop.last }}", "{{- x | string | trim }} ")
            condition = self.one("", "", " if x", f" if {self.bool(1)}")
            return f"{{% for x in {self.list(depth)}{condition} %}}{body}{{% else %}}-{{% endfor %}}"
        if kind == 7:
            return f"{{% if {self.bool(depth)} %}}{{{{ {self.any(1)} }}}}{{% elif {self.bool(1)} %}}b{{% else %}}c{{% endif %}}"
        if kind == 8:
            return f"{{% set v = {self.any(depth)} %}}{{{{ v }}}}{{{{ v is {self.one('string', 'mapping', 'sequence', 'none')} }}}}"
        return f"{{% for k, v in {self.map(depth)}.items() %}}{{{{ k }}}}={{{{ v }}}}\n{{% endfor %}}"


def main():
    seed = int(next((word for word in sys.argv[1:] if word.isdigit()), 20260203))
    print("seed", seed)
    draw = Draw(random.Random(seed))
    environment = hub_environment()
    cases, refused = [], 0
    pieces = [piece for line in HAND.split("\n") for piece in split(line)] + [LINES]
    wanted = COUNT + len(pieces)
    while len(cases) < wanted:
        source = pieces.pop(0) if pieces else draw.template()
        try:
            output = environment.from_string(source).render(**VARIABLES)
        except Exception as error:
            refused += 1
            wanted -= bool(pieces)
            if "--show" in sys.argv:
                print("  refused:", source, error)
            continue
        if len(output) < 2000 and "object at 0x" not in output and "<function" not in output:
            cases.append([source, output])
    (HERE / "expressions.json").write_text(
        '{"seed": %d, "variables": %s, "cases": [\n' % (seed, json.dumps(VARIABLES, ensure_ascii=False))
        + ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
        + "\n]}\n"
    )
    print(len(cases), "kept,", refused, "refused")


def split(line):
    """The expressions of a hand-written line one by one, so that one that is refused takes no others along."""
    parts = line.split("}}|{{") if "{%" not in line else [line]
    last = len(parts) - 1
    return [("{{" if i else "") + part + ("}}" if i < last else "") for i, part in enumerate(parts)]


if __name__ == "__main__":
    main()
