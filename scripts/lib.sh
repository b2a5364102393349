# shellcheck shell=bash
# What the scripts share. Sourced, never run.

say() { printf '%s\n' "$*" >&2; }

die() {
    say "$*"
    exit 1
}

# Everything fetched or built outside the tree lives here.
cache_dir() { printf '%s\n' "${DYNAMO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dynamo}"; }

# apt_install PACKAGE...: true if they could be installed here (Debian or a child of it, as root).
apt_install() {
    command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || return 1
    say "installing $* with apt-get"
    {
        apt-get install -y --no-install-recommends "$@" ||
            { apt-get update && apt-get install -y --no-install-recommends "$@"; }
    } </dev/null >&2
}

# usable_python INTERPRETER MODULE...: new enough for the SDKs, with the modules.
usable_python() {
    local python="$1"
    shift
    "$python" - "$@" >/dev/null 2>&1 <<'PY'
import importlib, sys
assert sys.version_info >= (3, 9)
for name in sys.argv[1:]:
    importlib.import_module(name)
PY
}

# find_python MODULE...: prints an interpreter that has them, installing Debian's packages if none has.
find_python() {
    local attempt python
    for attempt in found installed; do
        for python in "${PYTHON:-python3}" /usr/bin/python3; do
            if usable_python "$python" "$@"; then
                printf '%s\n' "$python"
                return 0
            fi
        done
        if [ "$attempt" = found ]; then
            apt_install python3 python3-pip python3-venv || break
        fi
    done
    say "Python 3.9 or newer with these modules is needed: $*. On Debian: apt-get install python3 python3-pip python3-venv"
    return 1
}

# with_lock FILE COMMAND...: one process at a time. Without flock (it is part of every Linux) the command just runs;
# what it makes is renamed into place whole, so two at once only cost time.
with_lock() {
    local file="$1"
    shift
    if ! command -v flock >/dev/null 2>&1; then
        "$@"
        return
    fi
    (
        flock -n 9 || { say "waiting for another process that holds $file" && flock 9; }
        "$@"
    ) 9>"$file"
}

# The one selection every build and test uses: with another one cargo would choose other features for the
# dependencies and compile them again.
# shellcheck disable=SC2034  # for those who source this
readonly SELECTION=(--locked --release --workspace)

# Where cargo puts what it builds.
target_dir() { printf '%s\n' "${CARGO_TARGET_DIR:-target}"; }

# Makes `cargo` and a C linker callable, or says what to do.
require_toolchain() {
    if ! command -v cargo >/dev/null 2>&1 && [ -x "$HOME/.cargo/bin/cargo" ]; then PATH="$HOME/.cargo/bin:$PATH"; fi
    command -v cargo >/dev/null 2>&1 ||
        die "cargo is missing. Install Rust 1.95 or newer (rustup: 'rustup toolchain install stable'), then try again."
    command -v cc >/dev/null 2>&1 || apt_install gcc libc6-dev ||
        die "a C compiler is missing (cargo links with it). On Debian: apt-get install gcc libc6-dev"
}

# Makes the services callable that tests start for themselves, or says what to do.
require_services() {
    local missing=()
    command -v etcd >/dev/null 2>&1 || missing+=(etcd-server)
    command -v nats-server >/dev/null 2>&1 || missing+=(nats-server)
    [ "${#missing[@]}" = 0 ] || apt_install "${missing[@]}" ||
        die "tests start an etcd and a NATS of their own, and ${missing[*]} cannot be installed here. On Debian, as root: apt-get install ${missing[*]}"
    # Only for the tests with several hosts, which say themselves that they are skipped.
    if [ "$(id -u)" = 0 ]; then
        command -v nft >/dev/null 2>&1 || apt_install nftables || say "no nft: tests with several hosts are skipped"
        command -v ip >/dev/null 2>&1 || apt_install iproute2 || say "no ip: no network namespaces in tests"
    fi
}

# Makes headless Chromium and its WebDriver callable, or says what to do.
require_browser() {
    local missing=()
    [ -n "${CHROMIUM:-}" ] || command -v chromium >/dev/null 2>&1 || missing+=(chromium)
    [ -n "${CHROMEDRIVER:-}" ] || command -v chromedriver >/dev/null 2>&1 || missing+=(chromium-driver)
    [ "${#missing[@]}" = 0 ] || apt_install "${missing[@]}" ||
        die "the page is tested in headless Chromium, and ${missing[*]} cannot be installed here. On Debian, as root: apt-get install chromium chromium-driver. Or name the programs in CHROMIUM and CHROMEDRIVER."
}
