#!/usr/bin/env bash
# From a clone to a running server: builds, fetches the default model unless MODEL names one, serves.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

require_toolchain
model="${MODEL:-$(scripts/fetch-model.sh)}"
cargo build "${SELECTION[@]}" --bins
exec "$(target_dir)/release/dynamo" serve "$model" "$@"
