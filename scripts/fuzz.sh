#!/usr/bin/env bash
# scripts/fuzz.sh [TARGET|all] [SECONDS]: fuzzes one target, or all in turn, SECONDS (300) each, from the committed corpus
# and the tests' fixtures. A finding stops it; the input lies in fuzz/artifacts. MERGE=1 then shrinks what is new into
# fuzz/corpus.
#
# libFuzzer is built by the crate libfuzzer-sys (a C++ compiler is needed); the coverage flags are those of cargo-fuzz and
# work on a stable toolchain.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/lib.sh

require_toolchain
command -v c++ >/dev/null 2>&1 || apt_install g++ || die "a C++ compiler is missing. On Debian: apt-get install g++"
wanted="${1:-all}"
seconds="${2:-300}"
# Beyond these an input is a finding: memory as a whole, one allocation, seconds for one input.
limits=(-rss_limit_mb=1536 -malloc_limit_mb=512 -timeout=20)
# Longest input, and most bytes of corpus that are kept for one target.
max_len=8192
kept_bytes=65536

target_dir="${CARGO_TARGET_DIR:-$PWD/fuzz/target}"
host="$(rustc -vV | sed -n 's/^host: //p')"
coverage=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=16)
# With an explicit target, build scripts and macros are not instrumented.
RUSTFLAGS="${coverage[*]} --cfg fuzzing" \
    cargo build --manifest-path fuzz/Cargo.toml --target-dir "$target_dir" --release --target "$host" --bins
if [ "$wanted" = all ]; then
    targets=()
    for file in fuzz/targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
else
    [ -f "fuzz/targets/$wanted.rs" ] || die "no fuzz target $wanted; there are: $(ls fuzz/targets | sed 's/\.rs$//' | xargs)"
    targets=("$wanted")
fi

work="$target_dir/inputs"
python="$(find_python json)"
for target in "${targets[@]}"; do
    program="$target_dir/$host/release/$target"
    mkdir -p "$work/$target" "fuzz/artifacts/$target" "fuzz/corpus/$target"
    "$python" fuzz/seeds.py "$work" "$target"
    say "== $target, $seconds s"
    "$program" "$work/$target" "fuzz/corpus/$target" -max_total_time="$seconds" -max_len="$max_len" "${limits[@]}" \
        -artifact_prefix="fuzz/artifacts/$target/" -print_final_stats=1 -verbosity="${VERBOSITY:-1}"
    [ "${MERGE:-0}" = 1 ] || continue
    # Small inputs first, so that what covers the same in fewer bytes wins; then as many as may be kept.
    merged="$target_dir/merged/$target"
    rm -rf "$merged"
    mkdir -p "$merged"
    "$program" -merge=1 "$merged" "fuzz/corpus/$target" "$work/$target" -max_len="$max_len" "${limits[@]}" >/dev/null 2>&1
    "$python" fuzz/keep.py "$merged" "fuzz/corpus/$target" "$kept_bytes"
done
