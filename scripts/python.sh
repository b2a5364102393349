#!/usr/bin/env bash
# Runs Python with the client packages of tests/sdk/requirements.txt, in an environment outside the tree that is made
# on first use: scripts/python.sh ARGUMENT...
set -euo pipefail
# shellcheck source=scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
requirements="$(dirname "${BASH_SOURCE[0]}")/../tests/sdk/requirements.txt"

python="$(find_python pip venv ensurepip)"
key="$("$python" -c 'import hashlib, sys
print(hashlib.sha256(open(sys.argv[1], "rb").read() + sys.version.encode()).hexdigest()[:12])' "$requirements")"
environments="$(cache_dir)/python"
environment="$environments/$key"

# `complete` is written last: a cut try is made anew.
make_environment() {
    if [ -f "$environment/complete" ]; then return 0; fi
    say "installing the client packages into $environment"
    rm -rf "$environment"
    "$python" -m venv "$environment" >&2
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$environment/bin/python" -m pip install --quiet --requirement "$requirements" \
        </dev/null >&2
    touch "$environment/complete"
}

if [ ! -f "$environment/complete" ]; then
    mkdir -p "$environments"
    with_lock "$environments/.lock" make_environment
fi
exec "$environment/bin/python" "$@"
