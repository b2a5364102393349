#!/usr/bin/env bash
# Starts the real binary and talks to it as users do: OpenAI's SDK, curl, a browser, the terminal.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

require_toolchain
require_browser
require_services
DYNAMO_MODEL="${DYNAMO_MODEL:-$(scripts/fetch-model.sh)}"
cargo build "${SELECTION[@]}" --bins
DYNAMO_BIN="$(cd "$(target_dir)/release" && pwd)/dynamo"
export DYNAMO_MODEL DYNAMO_BIN
exec scripts/python.sh -m pytest tests/sdk -p no:cacheprovider "$@"
