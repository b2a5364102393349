#!/usr/bin/env bash
# Format and lints. Warnings are errors.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

require_toolchain
cargo fmt --all --check
cargo clippy "${SELECTION[@]}" --all-targets -- -D warnings
