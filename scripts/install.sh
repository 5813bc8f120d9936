#!/usr/bin/env bash
# install.sh PYTHON PREFIX FLAVOUR [LOCK…]: a virtual environment at PREFIX that holds requirements/FLAVOUR.lock (and the other
# LOCKs), every file checked by hash. make setup, the Dockerfile and apptainer.def all come through here.
#   wheelhouse/FLAVOUR/  where it was filled for these locks (lockstep image build), nothing is downloaded
#   PIP_FIND_LINKS       folders that hold the CPU build of torch, which no general index serves
#   LOCKSTEP_TORCH_INDEX a package index that serves it, asked for torch alone (default: PyTorch's own, which uv knows)
set -euo pipefail
python=$1 prefix=$2 flavour=$3
shift 3
lock=requirements/$flavour.lock

boot=$(mktemp -d)
trap 'rm -rf "$boot"' EXIT

# A wheelhouse that was filled for these very locks makes indexes needless: for air-gapped sites and for image builds.
offline=()
if [ "$(cat "wheelhouse/$flavour/.complete" 2>/dev/null)" = "$(cat "$lock" requirements/dev.lock | sha256sum | cut -d ' ' -f 1)" ]; then
    offline=(--no-index --find-links "wheelhouse/$flavour")
fi

# pip's settings hold for uv too, so that a site's mirror needs to be named once.
[ -z "${PIP_INDEX_URL:-}" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE=${SSL_CERT_FILE:-$PIP_CERT}

# A lock's entry for one package: the line with its version and the line with its hash.
entry() { awk -v name="$1==" 'index($0, name) == 1 { print; getline; print }' "$2"; }

# uv, itself locked, installs in seconds what takes pip minutes.
find_uv() {
    if [ -x "$prefix/bin/uv" ]; then
        printf '%s\n' "$prefix/bin/uv"
        return
    fi
    "$python" -m venv "$boot" >&2
    entry uv requirements/dev.lock >"$boot/uv.lock"
    "$boot/bin/pip" install --quiet --disable-pip-version-check --no-deps --require-hashes "${offline[@]}" \
        -r "$boot/uv.lock" >&2
    printf '%s\n' "$boot/bin/uv"
}

torch_source() {
    [ "$flavour" = cpu ] && [ ${#offline[@]} -eq 0 ] || return 0
    local folder
    for folder in ${PIP_FIND_LINKS:-}; do
        if compgen -G "$folder/torch-*+cpu*.whl" >/dev/null; then
            printf -- '--find-links\n%s\n' "$folder"
            return
        fi
    done
    if [ -n "${LOCKSTEP_TORCH_INDEX:-}" ]; then
        "$python" -m venv "$boot" >&2
        entry torch "$lock" >"$boot/torch.lock"
        "$boot/bin/pip" download --quiet --no-deps --require-hashes --index-url "$LOCKSTEP_TORCH_INDEX" \
            --dest "$boot/torch" -r "$boot/torch.lock" >&2
        printf -- '--find-links\n%s\n' "$boot/torch"
        return
    fi
    printf -- '--torch-backend\ncpu\n'
}

if ! "$prefix/bin/python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    rm -rf "$prefix"
    "$python" -m venv --without-pip "$prefix"
fi
uv=$(find_uv)
mapfile -t source < <(torch_source)
command=("$uv" pip sync --python "$prefix/bin/python" --require-hashes --build-constraints "$lock"
    "${offline[@]}" "${source[@]}" ${REINSTALL:+--reinstall} "$lock" "$@")
if [ -t 2 ]; then "${command[@]}"; else "${command[@]}" 2> >(grep -v '^ [-+~] ' >&2); fi
