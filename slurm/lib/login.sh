#!/bin/sh
# The verbs on a login node without Python 3.11: login.sh SIF CHECKOUT WORDS…, called by ./lockstep.
# They run in the image. It has none of Slurm's commands, so each of those comes out as a script in a folder that both
# see, is run here, and its answer goes back (src/lockstep/cluster/host.py).
set -eu
sif=$1 root=$2
shift 2

if [ -r "$root/slurm/site.env" ]; then
    set -a
    # shellcheck disable=SC1091
    . "$root/slurm/site.env"
    set +a
fi
runs=${LOCKSTEP_RUNS:-}
[ -n "$runs" ] || [ ! -r "$root/.lockstep/runs" ] || runs=$(cat "$root/.lockstep/runs")
runs=${runs:-$root/runs}
home=$root/.lockstep/home
mkdir -p "$home" "$runs"
relay=$(mktemp -d "$root/.lockstep/relay.XXXXXX")
mkdir "$relay/tmp"

# What the verbs may know of this shell: settings of Lockstep, Slurm and DVC, each quoted for a shell.
{
    echo "LOCKSTEP_RELAY='$relay'"
    env | sed -n -e '/^LOCKSTEP_[A-Z_]*=/p' -e '/^SBATCH_[A-Z_]*=/p' -e '/^DVC_[A-Z_]*=/p' |
        sed -e "s/'/'\\\\''/g" -e "s/=/='/" -e "s/\$/'/"
} >"$relay/environment"

serve() {
    while [ -d "$relay" ]; do
        for request in "$relay"/*.request; do
            [ -e "$request" ] || continue
            name=${request%.request}
            mv "$request" "$name.sh"
            code=0
            sh "$name.sh" >"$name.out" 2>"$name.err" || code=$?
            echo "$code" >"$name.part"
            mv "$name.part" "$name.code"
        done
        sleep 0.05
    done
}
serve 2>/dev/null &
trap 'rm -rf "$relay"' EXIT
trap 'exit 130' INT TERM

mount() {
    printf 'type=bind,"source=%s","destination=%s"' "$1" "$1"
}
set -- "$sif" "$root/lockstep" "$@"
# Where the checkout's own links lead: data on a scratch file system, say.
for link in "$root"/*; do
    [ ! -h "$link" ] || [ ! -e "$link" ] || set -- --mount "$(mount "$(readlink -f "$link")")" "$@"
done
code=0
# The folder around the runs holds MLflow's database. Other folders are the site's to name.
apptainer exec --cleanenv --containall --home "$home" --env-file "$relay/environment" --pwd "$root" \
    --mount "$(mount "$root")" --mount "$(mount "${runs%/*}")" \
    --bind "$relay/tmp:/tmp" --bind "$relay/tmp:/var/tmp" ${LOCKSTEP_BINDS:+--bind "$(echo "$LOCKSTEP_BINDS" | tr ' ' ,)"} \
    "$@" || code=$?
exit "$code"
