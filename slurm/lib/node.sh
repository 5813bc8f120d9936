#!/usr/bin/env bash
# One node's part of an attempt, started by srun once per node: node.sh stage|check|train ATTEMPT_FILE.
# A signal from Slurm ends it and all below it at once; nothing here needs to survive one.
# shellcheck disable=SC2154 # the attempt file assigns run_dir, attempt, checkout, source, runs, image, flavour, …
set -uo pipefail
verb=$1
# shellcheck disable=SC1090
. "$2"
# shellcheck source=slurm/lib/common.sh
. "$source/slurm/lib/common.sh"
load_site "$source"
node=$SLURMD_NODENAME
staged=$scratch/images/$image_sha256.sif

# The verdict of this node: staged (the image is here), ok, `bad REASON` (keep away from it), `unsure REASON` (the cause may be
# another's), `refuse REASON` (a lock does not match).
verdict() {
    mkdir -p "$run_dir/control/preflight.$attempt"
    printf '%s\n' "$*" >"$run_dir/control/preflight.$attempt/.$node" &&
        mv "$run_dir/control/preflight.$attempt/.$node" "$run_dir/control/preflight.$attempt/$node"
}

# Copies the image to node-local disk, once per node, and checks that it is the locked one.
stage_image() {
    if [ "$engine" = host ]; then
        verdict staged
        return
    fi
    if [ ! -e "$staged" ]; then
        mkdir -p "${staged%/*}"
        say "copying the image to $staged"
        if ! { cp "$image" "$staged.$node.$$" && mv "$staged.$node.$$" "$staged"; }; then
            rm -f "$staged.$node.$$"
            verdict "bad the image could not be copied to $scratch ($(df -h --output=avail "$scratch" | tail -n 1) free)"
            return 1
        fi
    fi
    if [ "$(sha256sum <"$staged")" != "$image_sha256  -" ]; then
        rm -f "$staged"
        verdict "refuse $image is not the image that image.lock names (sha256 $image_sha256)"
        return 1
    fi
    verdict staged
}

check_node() {
    local free_mib
    free_mib=$(df --output=avail -m "$scratch" | tail -n 1)
    if [ "$free_mib" -lt "${LOCKSTEP_MIN_SCRATCH_MIB:-1024}" ]; then
        verdict "bad only $free_mib MiB are free in $scratch"
        return 1
    fi
    run_python lockstep.cluster.preflight --num-gpus "$num_gpus" && return
    local code=$?
    [ "$(cat "$run_dir/control/preflight.$attempt/$node")" = staged ] || return
    [ $code = "$EXIT_DO_NOT_RETRY" ] && verdict "refuse the environment in the image is not the locked one; see the log" && return
    verdict "bad the image could not be started (exit code $code)"
}

# run_python MODULE ARGUMENTS…: in the image, with the environment of this very task (the GPUs that Slurm gave it, its node's number).
run_python() {
    local environment=$scratch/environment.$SLURM_JOB_ID.$node.$verb code=0
    local python=/opt/lockstep/bin/python
    if [ "$engine" = host ]; then python=python; else image=$staged; fi
    write_environment "$environment" "$run_dir/control/environment.$attempt"
    in_image "$environment" python -m lockstep.engines.entry --flavour "$flavour" -- \
        "$python" -m "$@" --run-dir "$run_dir" --attempt "$attempt" --node "$node" || code=$?
    rm -f "$environment"
    return $code
}

case $verb in
    stage) stage_image ;;
    check) check_node ;;
    train) run_python lockstep.cluster.launcher ;;
    *) fail "$EXIT_USAGE" "unknown verb $verb" ;;
esac
