# shellcheck shell=bash disable=SC2034,SC2154 # variables come from, and go to, the script that sources this
# What the batch shell and the node tasks share. Needs bash, coreutils and Slurm's commands; Python runs in the image.

EXIT_USAGE=2
EXIT_SAVED=85
EXIT_DO_NOT_RETRY=93

say() {
    printf 'lockstep %s %s: %s\n' "$(date +%H:%M:%S)" "${SLURMD_NODENAME:-$(hostname -s)}" "$*" >&2
}

fail() {
    local code=$1
    shift
    say "$*"
    exit "$code"
}

# load_site SOURCE: the site profile (slurm/site.env, see site.env.example) and what follows from it.
load_site() {
    if [ -r "$1/slurm/site.env" ]; then
        # shellcheck disable=SC1091
        set -a && . "$1/slurm/site.env" && set +a
    fi
    engine=${LOCKSTEP_ENGINE:-apptainer}
    scratch=${LOCKSTEP_SCRATCH:-${SLURM_TMPDIR:-/tmp}}/lockstep-$(id -un)
    mkdir -p "$scratch" || fail 1 "the node-local folder $scratch cannot be made; set LOCKSTEP_SCRATCH in slurm/site.env"
    if [ -n "${LOCKSTEP_MODULES:-}" ]; then
        # shellcheck disable=SC2086
        module load $LOCKSTEP_MODULES || fail 1 "module load $LOCKSTEP_MODULES failed; correct slurm/site.env"
    fi
}

# Host variables that a stage may see: where it runs, never what it computes (the list of engines/variables.py).
is_passed() {
    case $1 in
        *TOKEN* | *SECRET* | *PASSWORD* | *PASSWD* | *CREDENTIAL* | *API_KEY* | *ACCESS_KEY*) return 1 ;;
        SLURM_* | CUDA_VISIBLE_DEVICES | NVIDIA_VISIBLE_DEVICES | ROCR_VISIBLE_DEVICES) return 0 ;;
        MASTER_ADDR | MASTER_PORT | NCCL_* | TORCH_NCCL_* | GLOO_SOCKET_IFNAME | FI_* | UCX_*) return 0 ;;
        LOCKSTEP_* | TZ | TERM | COLUMNS) return 0 ;;
    esac
    return 1
}

# assignment NAME VALUE: one line that a shell and `apptainer --env-file` read as exactly that value.
assignment() {
    printf "%s='%s'\n" "$1" "${2//\'/\'\\\'\'}"
}

# write_environment FILE [BASE]: BASE's lines (or those that any Python of ours needs), then what this process may pass.
write_environment() {
    local name
    {
        while read -r name; do
            is_passed "$name" && assignment "$name" "${!name}"
        done < <(compgen -e)
        if [ -n "${2:-}" ]; then
            cat "$2"
        else
            assignment PYTHONPATH "$source/src"
            assignment LOCKSTEP_PROJECT "$source"
            printf '%s\n' LANG=C.UTF-8 PYTHONUTF8=1 PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
        fi
        assignment LOCKSTEP_RUNS "$runs"
    } >"$1"
}

# in_image ENVIRONMENT COMMAND…: the command in the image, with that environment alone. Reads: engine, image, source,
# runs, checkout, input_paths, num_gpus. With LOCKSTEP_ENGINE=host: in the checkout's .venv, for trying Slurm itself out.
in_image() {
    local environment=$1
    shift
    if [ "$engine" = host ]; then
        # shellcheck disable=SC2016
        env -i HOME="$HOME" USER="$(id -un)" PATH="$checkout/.venv/bin:$PATH" \
            bash -c 'cd "$1" && set -a && . "$2" && set +a && shift 2 && exec "$@"' - "$source" "$environment" "$@"
        return
    fi
    local binds=("$checkout" "$source") flags=() path
    binds+=("${input_paths[@]:-}")
    # shellcheck disable=SC2206
    binds+=(${LOCKSTEP_BINDS:-})
    for path in "${binds[@]}"; do
        [ -e "$path" ] && flags+=(--bind "$path:$path:ro")
    done
    flags+=(--bind "$runs:$runs" --bind "$scratch:/tmp")
    [ "${num_gpus:-0}" -gt 0 ] && flags+=(--nv)
    # A container of its own name per node: torchrun tells nodes apart by host name and process id.
    apptainer exec --cleanenv --containall --no-home --pwd "$source" --hostname "${SLURMD_NODENAME:-$(hostname -s)}" \
        --env-file "$environment" "${flags[@]}" "$image" "$@"
}
