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
        if [ -n "${2:-}" ]; then
            cat "$2"
        else
            assignment PYTHONPATH "$source/src"
            assignment LOCKSTEP_PROJECT "$source"
            assignment USER "$(id -un)"
            printf '%s\n' LANG=C.UTF-8 PYTHONUTF8=1 PYTHONNOUSERSITE=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
        fi
        while read -r name; do
            is_passed "$name" && assignment "$name" "${!name}"
        done < <(compgen -e)
        assignment LOCKSTEP_RUNS "$runs"
    } >"$1"
}

# in_image ENVIRONMENT python ARGUMENTS…: this environment's Python, in the image, with those variables alone. Without
# `mounts` (an attempt's, chosen by begin) it sees the checkout, the sources and the runs folder.
# With LOCKSTEP_ENGINE=host it is the Python of the checkout's .venv, for trying Slurm itself out.
in_image() {
    local environment=$1 options=() mount
    shift 2
    if [ "$engine" = host ]; then
        # shellcheck disable=SC2016
        env -i HOME="$HOME" PATH="$checkout/.venv/bin:$PATH" \
            bash -c 'cd "$1" && set -a && . "$2" && set +a && shift 2 && exec python "$@"' - "$source" "$environment" "$@"
        return
    fi
    if [ "${#mounts[@]}" = 0 ]; then
        options+=(--bind "$checkout:$checkout:ro" --bind "$source:$source:ro" --bind "$runs:$runs")
        [ -z "${writable:-}" ] || options+=(--bind "$writable:$writable")
        # Where the checkout's own links lead: data on a scratch file system, say.
        for mount in "$checkout"/*; do
            if [ -L "$mount" ] && [ -e "$mount" ]; then
                mount=$(readlink -f "$mount")
                options+=(--bind "$mount:$mount:ro")
            fi
        done
    fi
    for mount in "${mounts[@]}"; do
        options+=(--mount "$mount")
    done
    # shellcheck disable=SC2206
    for mount in ${LOCKSTEP_BINDS:-}; do
        options+=(--bind "$mount:$mount:ro")
    done
    [ "${num_gpus:-0}" -gt 0 ] && options+=(--nv)
    mkdir -p "$scratch/home" "$scratch/tmp"
    options+=(--home "$scratch/home:/home/lockstep" --bind "$scratch/tmp:/tmp" --bind "$scratch/tmp:/var/tmp")
    # A container of its own name per node: torchrun tells nodes apart by host name and process id.
    apptainer --silent exec --cleanenv --containall --pwd "$source" --hostname "${SLURMD_NODENAME:-$(hostname -s)}" \
        --env-file "$environment" "${options[@]}" "$image" /opt/lockstep/bin/python "$@"
}
