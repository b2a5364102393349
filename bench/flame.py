#!/usr/bin/env python3
"""Draws the stacks of `perf script` (standard input) as a flame graph (SVG, standard output).

perf record --call-graph dwarf,8192 -F 499 -p PID -o FILE -- sleep 5
perf script -i FILE | flame.py --title "..." --under FUNCTION >graph.svg

`--skip A,B` leaves out frames whose name contains one of them (runtimes' wrappers), `--least` those narrower than this
share. Widths are shares of the samples drawn.
"""
import argparse
import html
import re
import sys

WIDTH, ROW, LETTER = 1200, 15, 6.2
COLOURS = {"kernel": "#e8a35c", "ours": "#6aa6d6", "other": "#d9d2bd"}


def stacks(lines, skip):
    """Each sample's frames, outermost first, with the thread's name at the root."""
    thread, frames = None, []
    for line in lines:
        if not line.strip():
            if thread and frames:
                yield [(thread, "other"), *reversed(frames)]
            thread, frames = None, []
        elif not line[0].isspace():
            thread = re.match(r"(.*?)\s+\d+(?:/\d+)?\s", line).group(1)
        else:
            name, place = frame(line.strip())
            if name and not any(part in name for part in skip):
                kind = "kernel" if "kernel" in place else "ours" if name.startswith(("dynamo_", "<dynamo_")) else "other"
                frames.append((name, kind))


def frame(line):
    match = re.match(r"[0-9a-f]+ (.*) \((.*)\)$", line)
    if not match or match.group(1) == "[unknown]":
        return None, ""
    name = re.sub(r"\+0x[0-9a-f]+$", "", match.group(1))
    name = re.sub(r"::h[0-9a-f]{16}$", "", name)
    return name, match.group(2)


class Node:
    def __init__(self, kind="other"):
        self.count, self.kind, self.children = 0, kind, {}

    def add(self, stack):
        node = self
        node.count += 1
        for name, kind in stack:
            node = node.children.setdefault(name, Node(kind))
            node.count += 1


def draw(node, name, x, depth, scale, least, out):
    width = node.count * scale
    if width < least * WIDTH:
        return depth
    deepest = depth
    shown = name if len(name) * LETTER < width - 4 else name[: max(0, int((width - 4) / LETTER) - 1)] + "…"
    out.append((x, depth, width, name, shown if len(shown) > 2 else "", node))
    for child_name, child in sorted(node.children.items(), key=lambda item: -item[1].count):
        deepest = max(deepest, draw(child, child_name, x, depth + 1, scale, least, out))
        x += child.count * scale
    return deepest


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--title", default="")
    parser.add_argument("--skip", default="")
    parser.add_argument("--under", default="", help="start at the outermost frame whose name contains this")
    parser.add_argument("--least", type=float, default=0.002)
    arguments = parser.parse_args()
    root = Node()
    for stack in stacks(sys.stdin, [part for part in arguments.skip.split(",") if part]):
        if arguments.under:
            start = next((i for i, (name, _) in enumerate(stack) if arguments.under in name), 0)
            stack = stack[start:] if start else stack[:1] + [("elsewhere", "other")] + stack[-1:]
        root.add(stack)
    boxes = []
    deepest = draw(root, arguments.title, 0.0, 0, WIDTH / max(1, root.count), arguments.least, boxes)
    height = (deepest + 1) * ROW
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="monospace" font-size="10">')
    for x, depth, width, name, shown, node in boxes:
        y, share = height - (depth + 1) * ROW, 100 * node.count / root.count
        print(f'<g><title>{html.escape(name)} {share:.1f}%</title><rect x="{x:.1f}" y="{y}" width="{max(width - 0.5, 0.3):.1f}" '
              f'height="{ROW - 1}" fill="{COLOURS[node.kind]}"/>'
              + (f'<text x="{x + 2:.1f}" y="{y + 11}">{html.escape(shown)}</text>' if shown else "") + "</g>")
    print("</svg>")


if __name__ == "__main__":
    main()
