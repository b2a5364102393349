#!/usr/bin/env bash
# Kills, stops, restarts and cuts off the processes of a fleet while clients read from it, and holds what they read
# against the undisturbed answers. Four minutes unless told otherwise, e.g. --minutes 60 --streams 30000 --seed 7.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

require_toolchain
require_services
DYNAMO_MODEL="${DYNAMO_MODEL:-$(scripts/fetch-model.sh)}"
export DYNAMO_MODEL
cargo build "${SELECTION[@]}" --bins
exec "$(target_dir)/release/dynamo-chaos" "$@"
