#!/usr/bin/env bash
# Compares our parsers of reasoning and tool calls with published ones, on the fixtures and on answers generated from them.
# Every difference is a row of crates/text/tests/parsers/oracles.json. A workspace of its own, outside `make test`: the
# published crates bring some 400 others with them. Arguments: --show, --seed N.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../oracles"
exec cargo run --release --locked --quiet -- "$@"
