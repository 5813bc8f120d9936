#!/usr/bin/env bash
# Makes .venv from the hash-locked requirements; quick when it is up to date. Needs Python 3.11 on Linux x86_64, nothing else.
#   FLAVOUR=cpu|cuda     which lock (default cpu)
#   PYTHON=…             which Python 3.11 (default: the first one found)
# Where packages come from: see install.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

flavour=${FLAVOUR:-cpu}
venv=.venv
# make puts the environment first on PATH; it is to be made by another Python than its own.
PATH=${PATH//$PWD\/$venv\/bin:/}
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

verify() {
    PYTHONPATH=src PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1 "$venv/bin/python" -m lockstep.engines.entry --flavour "$flavour"
}

[ -f "$lock" ] || die "there is no flavour '$flavour'; there are cpu and cuda"
[ "$(uname -sm)" = "Linux x86_64" ] || die "the locks are for Linux x86_64, this is $(uname -sm); use a Linux machine"

wanted=$(cat "$lock" requirements/dev.lock scripts/setup.sh scripts/install.sh | sha256sum | cut -d ' ' -f 1)
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    exit 0
fi

started=$SECONDS
python=$(find_python)
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    die "$python cannot make a virtual environment; on Debian: apt install python3.11-venv"
rm -f "$stamp"
say "installing $(grep -c == "$lock") packages from $lock and the tools of requirements/dev.lock ($("$python" --version))"
scripts/install.sh "$python" "$venv" "$flavour" requirements/dev.lock
if ! verify; then
    say "some installed files are not the locked ones; installing everything again"
    REINSTALL=1 scripts/install.sh "$python" "$venv" "$flavour" requirements/dev.lock
    verify
fi
echo "$wanted" >"$stamp"
say "done in $((SECONDS - started)) s; every file is the locked one"
