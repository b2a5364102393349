#!/usr/bin/env bash
# Micro benchmarks, then the measurements on a running system. The figures that count are kept in bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

require_toolchain
DYNAMO_MODEL="${MODEL:-$(scripts/fetch-model.sh)}"
export DYNAMO_MODEL
cargo bench --locked --workspace --bench '*'
cargo build "${SELECTION[@]}" --bins
DYNAMO_BIN="$(cd "$(target_dir)/release" && pwd)/dynamo"
export DYNAMO_BIN
"$(find_python json)" bench/kv_ttft.py
"$(find_python json)" bench/fleet.py
