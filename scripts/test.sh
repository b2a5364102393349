#!/usr/bin/env bash
# Lints, Rust tests, tests with the OpenAI SDK, the chaos campaign. Runs all of them whatever fails, then sums up; the
# last line is `N passed, N failed`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

require_toolchain
require_services
DYNAMO_MODEL="${MODEL:-$(scripts/fetch-model.sh)}"
export DYNAMO_MODEL
logs="$(target_dir)/test-logs"
rm -rf "$logs"
mkdir -p "$logs"
passed=0
failed=0
failures=()

# count LOG WORD: the sum of the numbers before WORD in the closing lines of cargo's and pytest's runs.
count() {
    awk -v word="$2" '
        /^test result: / || /^=* ?[0-9]+ (passed|failed|error|skipped|deselected).* in [0-9.]+s/ {
            for (i = 2; i <= NF; i++) { name = $i; gsub(/[^a-z]/, "", name); if (name == word) sum += $(i - 1) }
        }
        END { print sum + 0 }' "$1"
}

# stage NAME COMMAND...: a stage that fails without a failed test counts as one.
stage() {
    local name="$1" log="$logs/$1.log" start="$SECONDS" status=0 bad
    shift
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$log" || status=$?
    bad=$(($(count "$log" failed) + $(count "$log" error) + $(count "$log" errors)))
    if [ "$status" != 0 ] && [ "$bad" = 0 ]; then bad=1; fi
    passed=$((passed + $(count "$log" passed)))
    failed=$((failed + bad))
    if [ "$bad" != 0 ]; then
        failures+=("$name:" "$(grep -E '^(test .* FAILED|FAILED |ERROR |error(\[|:)|Diff in )' "$log" | sort -u | head -40 || true)")
    fi
    printf '== %s: %s, %s s\n' "$name" "$([ "$bad" = 0 ] && echo ok || echo FAILED)" "$((SECONDS - start))"
}

stage lint scripts/lint.sh
stage cargo cargo test "${SELECTION[@]}" --no-fail-fast
stage sdk scripts/sdk-tests.sh
# Short; the four minutes of `scripts/chaos.sh` are for whoever changes what it breaks.
stage chaos scripts/chaos.sh --minutes 2 --streams 800

printf '\n'
if [ "$failed" != 0 ]; then
    printf 'What failed (whole logs are in %s):\n' "$logs"
    printf '%s\n' "${failures[@]}"
fi
printf '%s passed, %s failed\n' "$passed" "$failed"
[ "$failed" = 0 ] && [ "$passed" != 0 ]
