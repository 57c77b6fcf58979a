#!/bin/sh
# Make .venv match pyproject.toml and constraints.txt; do nothing when it already does.
#
#   sh scripts/setup.sh                       use the first Python >= 3.11 found
#   PYTHON=python3.12 sh scripts/setup.sh     use this one
#
# The stamp in .venv names the folder and the two files that it was made from. It is written last and removed
# before any change, so an environment without a stamp is an interrupted one and is made anew.
set -eu
cd "$(dirname "$0")/.."

stamp=.venv/rdlm-stamp
log=.venv/setup.log
needed_kb=3000000  # the environment takes 1.5 GB, pip's unpacked downloads about as much again

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "error: $1"; shift; for line in "$@"; do say "  $line"; done; exit 1; }

recent() { command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        recent "$PYTHON" || fail "PYTHON=$PYTHON is not a Python of version 3.11 or later." "Name another one, or leave PYTHON unset."
        return
    fi
    for PYTHON in python3 python3.13 python3.12 python3.11 python3.14 python; do
        if recent "$PYTHON"; then return; fi
    done
    fail "found no Python of version 3.11 or later." \
        "Install one (Debian, Ubuntu: sudo apt install python3 python3-venv; macOS: brew install python@3.12)," \
        "or name it: make setup PYTHON=/path/to/python3.11"
}

check_venv() {
    "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null || fail "$PYTHON has no venv module." \
        "Install it (Debian, Ubuntu: sudo apt install python3-venv), then run make setup again."
}

check_disk() {
    free_kb=$(df -Pk . | awk 'NR == 2 { print $4 }')
    [ "$free_kb" -ge "$needed_kb" ] || fail "only $((free_kb / 1000)) MB free here; the environment needs about $((needed_kb / 1000)) MB." \
        "Free some space, or move the project to a larger disk."
}

explain_pip() {
    tail -n 15 "$log" >&2
    if grep -q 'No space left on device' "$log"; then
        fail "the disk is full." "Free some space (pip also unpacks below \$TMPDIR), then run make setup again."
    elif grep -qE 'NewConnectionError|NameResolutionError|name resolution|Network is unreachable|ProxyError|ReadTimeout|ConnectTimeout' "$log"; then
        fail "pip could not reach the package index." \
            "Check the network or proxy, or name a mirror (PIP_INDEX_URL=... or PIP_FIND_LINKS=/folder/of/wheels), then run make setup again."
    elif grep -q 'No matching distribution' "$log"; then
        fail "a pinned package has no build for $("$PYTHON" -V 2>&1) on this machine: see above." \
            "Try another Python: make setup PYTHON=python3.11"
    fi
    fail "pip failed: see above and $log." "Run make setup again once it is mended."
}

install() {
    rm -f "$stamp" "$log"
    quiet=; [ -t 2 ] || quiet=-q
    # Progress goes to the terminal, warnings and errors to the log. An empty $quiet must vanish: no quotes.
    .venv/bin/python -m pip install $quiet --disable-pip-version-check \
        -c constraints.txt -e '.[viz,train,serve,dev]' 3>&2 2>"$log" >&3 || explain_pip
    printf '%s\n' "$place" "$wanted" > "$stamp.part"
    mv "$stamp.part" "$stamp"
}

place=$(pwd -P)
wanted=$(cat pyproject.toml constraints.txt | cksum)
made_at=; made_of=
if [ -f "$stamp" ] && .venv/bin/python -c '' 2>/dev/null; then
    { read -r made_at; read -r made_of; } < "$stamp"
fi
if [ "$made_at" = "$place" ] && [ "$made_of" = "$wanted" ]; then exit 0; fi

trap 'say "interrupted; run make setup again."; exit 130' INT TERM
if [ "$made_at" = "$place" ]; then
    PYTHON=.venv/bin/python
    say "pyproject.toml or constraints.txt has changed: updating .venv"
else
    find_python
    check_venv
    check_disk
    say "making .venv with $("$PYTHON" -V 2>&1); this takes a minute or more"
    rm -f "$stamp"
    "$PYTHON" -m venv --clear .venv || fail "could not make .venv: see above."
fi
install
say "done"
