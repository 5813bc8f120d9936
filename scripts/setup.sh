#!/usr/bin/env bash
# Makes .venv from the hash-locked requirements; quick when it is up to date. Needs Python 3.11 on Linux x86_64, nothing else.
#   FLAVOUR=cpu|cuda     which lock (default cpu)
#   PYTHON=…             which Python 3.11 (default: the first one found)
#   LOCKSTEP_TORCH_INDEX a package index that serves the CPU build of torch, where neither PIP_FIND_LINKS nor PyTorch's own is within reach
set -euo pipefail
cd "$(dirname "$0")/.."

flavour=${FLAVOUR:-cpu}
venv=.venv
stamp=$venv/.lockstep-setup
lock=requirements/$flavour.lock

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 2; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3 python "$HOME"/.pyenv/versions/3.11*/bin/python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    die "Python 3.11 is needed (${PYTHON:-python3} is $("${PYTHON:-python3}" --version 2>&1 || true)).
  Debian 12:     apt install python3.11 python3.11-venv
  RHEL, Rocky:   dnf install python3.11
  without root:  uv python install 3.11   or   pyenv install 3.11   or   conda create -n py311 python=3.11
  a cluster:     module load python/3.11, or use the image (docs/containers.md)
then: make setup PYTHON=/path/to/python3.11"
}

# Only the CPU build of torch needs a source of its own: a folder that has it, a named index, else PyTorch's own (uv knows it).
torch_source() {
    [ "$flavour" = cpu ] || return 0
    local folder
    for folder in wheelhouse ${PIP_FIND_LINKS:-}; do
        if compgen -G "$folder/torch-*+cpu*.whl" >/dev/null; then
            printf -- '--find-links\n%s\n' "$folder"
            return
        fi
    done
    if [ -n "${LOCKSTEP_TORCH_INDEX:-}" ]; then
        grep -A 1 '^torch==' "$lock" >"$venv/torch.lock"
        "$venv/bin/pip" download --quiet --no-deps --require-hashes --index-url "$LOCKSTEP_TORCH_INDEX" \
            --dest wheelhouse -r "$venv/torch.lock" >&2
        printf -- '--find-links\nwheelhouse\n'
        return
    fi
    printf -- '--torch-backend\ncpu\n'
}

# uv, itself hash-locked, installs in seconds what takes pip minutes.
bootstrap_uv() {
    [ -x "$venv/bin/uv" ] && return
    say "installing uv"
    awk '/^uv==/ { print; getline; print }' requirements/dev.lock >"$venv/uv.lock"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$venv/uv.lock"
}

# pip's settings hold for uv too, so that a site's mirror needs to be named once.
export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-}} SSL_CERT_FILE=${SSL_CERT_FILE:-${PIP_CERT:-}}
[ -n "$UV_DEFAULT_INDEX" ] || unset UV_DEFAULT_INDEX
[ -n "$SSL_CERT_FILE" ] || unset SSL_CERT_FILE

sync() {
    local command=("$venv/bin/uv" pip sync --python "$venv/bin/python" --require-hashes --build-constraints "$lock"
        "${source[@]}" "$@" "$lock" requirements/dev.lock)
    if [ -t 2 ]; then "${command[@]}"; else "${command[@]}" 2> >(grep -v '^ [-+~] ' >&2); fi
}

verify() {
    PYTHONPATH=src PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1 "$venv/bin/python" -m lockstep.engines.entry --flavour "$flavour"
}

[ -f "$lock" ] || die "there is no flavour '$flavour'; there are cpu and cuda"
[ "$(uname -sm)" = "Linux x86_64" ] || die "the locks are for Linux x86_64, this is $(uname -sm); use a Linux machine or the image"

wanted=$(cat "$lock" requirements/dev.lock scripts/setup.sh | sha256sum | cut -d ' ' -f 1)
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && [ -x "$venv/bin/python" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

started=$SECONDS
if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    python=$(find_python)
    say "making $venv with $("$python" --version) ($python)"
    rm -rf "$venv"
    "$python" -m venv "$venv" || die "$python cannot make a virtual environment; on Debian: apt install python3.11-venv"
fi
rm -f "$stamp"
bootstrap_uv
mapfile -t source < <(torch_source)
say "installing $(grep -c == "$lock") packages from $lock and the tools of requirements/dev.lock"
sync
if ! verify 2>"$venv/verify.log"; then
    say "some installed files are not the locked ones; installing everything again"
    sync --reinstall --quiet
    verify
fi
echo "$wanted" >"$stamp"
say "done in $((SECONDS - started)) s; every file is the locked one"
