# shellcheck shell=bash disable=SC2034,SC2154 # variables come from, and go to, the script that sources this
# The batch shell's part of a run, sourced by train.sbatch and sweep.sbatch. All Slurm commands are here, on the host;
# what needs thought (locks, attempts, verdicts) is asked from `python -m lockstep.cluster.node` in the image.
#
# Stopping is a file. Slurm's signal to this shell (--signal=B:USR2) becomes RUN/control/stop.ATTEMPT, which the workers
# read at a step boundary. No signal is ever sent to the step: it would end the FUSE mount below an unprivileged SIF.

# run_job STAGE [--intent FILE] [--grid FILE --task N] [--checkout DIR] [--runs DIR] [--image FILE]: attempts of one run
# until it is done, must not go on, or is requeued.
run_job() {
    stage=$1
    shift
    intent='' grid='' task='' checkout='' runs='' image='' run_dir='' attempt='' signalled='' mounts=()
    while [ $# -gt 1 ]; do
        case $1 in
            --intent | --grid | --task | --checkout | --runs | --image) printf -v "${1#--}" %s "$2" ;;
            *) break ;;
        esac
        shift 2
    done
    [ $# -eq 0 ] || fail "$EXIT_USAGE" "unknown argument $1; see --help"
    [ -n "${SLURM_JOB_ID:-}" ] || fail "$EXIT_USAGE" "this runs under Slurm: sbatch slurm/train.sbatch $stage"
    set_places
    trap 'on_signal USR2' USR2
    trap 'on_signal TERM' TERM
    export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
    while :; do
        make_attempt
        say "$stage ${run_dir##*/}: attempt $attempt ended, verdict: $verdict (exit code $exit_code)"
        case $verdict in
            again) ;;
            requeue) requeue_job ;;
            *) exit "$exit_code" ;;
        esac
    done
}

# Where everything is: the checkout, the copy of its sources that the run was submitted with, the runs, the image.
set_places() {
    source=$SLURM_SUBMIT_DIR
    checkout=${checkout:-$source}
    load_site "$source"
    if [ -n "${LOCKSTEP_RUNS:-}" ]; then
        runs=${runs:-$LOCKSTEP_RUNS}
    elif [ -r "$checkout/.lockstep/runs" ]; then
        runs=${runs:-$(<"$checkout/.lockstep/runs")}
    fi
    runs=${runs:-$checkout/runs}
    mkdir -p "$runs/bad-nodes"
    local found=("$checkout"/images/lockstep-*.sif)
    image=${image:-${LOCKSTEP_IMAGE:-${found[0]}}}
    [ "$engine" = host ] || [ -r "$image" ] ||
        fail "$EXIT_DO_NOT_RETRY" "the image $image is not here; set LOCKSTEP_IMAGE in slurm/site.env"
    environment=$scratch/environment.$SLURM_JOB_ID
}

make_attempt() {
    local problem='' kind=none code=0
    begin_attempt
    check_nodes
    if [ -n "$signalled" ]; then
        code=$EXIT_SAVED # nothing was started, so nothing is lost
    elif [ -z "$problem" ]; then
        launch_workers || code=$?
    fi
    end_attempt "$code"
}

# Opens the next attempt: checks the locks, writes the workers' job file, and leaves what this shell needs to know.
begin_attempt() {
    local answer code=0 arguments=(--stage "$stage" --engine "$engine" --image "$image" --live "$(live_jobs)")
    arguments+=(--checkout "$checkout" --runs "$runs" ${intent:+--intent "$intent"})
    arguments+=(${grid:+--grid "$grid" --task "$task"})
    [ -n "$intent" ] || arguments+=(--git "$(git_facts)")
    mounts=()
    write_environment "$environment"
    answer=$(in_image "$environment" python -m lockstep.cluster.node begin "${arguments[@]}") || code=$?
    case $code in
        0) ;;
        1 | "$EXIT_USAGE" | "$EXIT_DO_NOT_RETRY") fail "$code" "nothing was started" ;;
        *) leave_this_node "the image could not be started here (exit code $code)" ;;
    esac
    if [ "$answer" = complete ]; then
        say "$stage: complete already"
        exit 0
    fi
    # shellcheck disable=SC1090
    . "$answer"
    attempt_file=$answer
    log=$run_dir/log/attempt-$attempt.log
    say "$stage ${run_dir##*/}: attempt $attempt on $SLURM_JOB_NODELIST, job $SLURM_JOB_ID; output in $log"
    node_addresses >"$run_dir/control/nodes.$attempt"
}

# A line per node: its name, and the address at which Slurm itself (so every other node) reaches it.
node_addresses() {
    scontrol --oneliner show node "$SLURM_JOB_NODELIST" |
        sed -n 's/^NodeName=\([^ ]*\) .* NodeAddr=\([^ ]*\) .*$/\1 \2/p'
}

# What git on the host can say of the checkout, for a run that nobody recorded before: commit and number of changes.
git_facts() {
    local commit changes
    if commit=$(git -C "$checkout" rev-parse HEAD 2>/dev/null); then
        changes=$(git -C "$checkout" status --porcelain -- . ':(exclude)dvc.lock' ':(exclude)params.yaml' 2>/dev/null | wc -l)
        printf '%s %s' "$commit" "$changes"
    else
        printf 'unknown unknown'
    fi
}

# Two steps over all nodes, before anything costly: the image on node-local disk, then (60 s at most) everything else.
# Sets `problem` and its `kind`: refuse (a lock does not match), bad (nodes to keep away from) or unsure.
check_nodes() {
    local node said silent=() stage=checked
    on_all_nodes "${LOCKSTEP_STAGE_S:-900}" stage || stage=staged
    [ "$stage" = staged ] || on_all_nodes "${LOCKSTEP_PREFLIGHT_S:-60}" check
    [ -n "$signalled" ] && return
    for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        said=$(cat "$run_dir/control/preflight.$attempt/$node" 2>/dev/null)
        case $said in
            ok) ;;
            staged) [ "$stage" = staged ] || silent+=("$node") ;;
            '') silent+=("$node") ;;
            *) judge "$node" "$said" ;;
        esac
    done
    # Where one node is known to be unfit, others may have been silent because they waited for it.
    said='unsure no answer in time'
    [ "$kind" != none ] || said='bad no answer in time'
    for node in "${silent[@]}"; do
        judge "$node" "$said"
    done
    [ -z "$problem" ] || say "preflight failed: $problem"
}

# judge NODE VERDICT: adds a verdict that is not ok to `problem` and `kind`.
judge() {
    case $2 in
        refuse*) kind=refuse ;;
        bad*)
            [ "$kind" = refuse ] || kind=bad
            mark_bad "$1" "${2#bad }"
            ;;
        *) [ "$kind" != none ] || kind=unsure ;;
    esac
    problem+="${problem:+; }$1: ${2#* }"
}

# on_all_nodes SECONDS VERB: one task of lib/node.sh per node, given up after SECONDS.
on_all_nodes() {
    timeout --kill-after=5 "$1" srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
        --quiet bash "$source/slurm/lib/node.sh" "$2" "$attempt_file" >>"$log" 2>&1 &
    wait_for $!
}

launch_workers() {
    srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --kill-on-bad-exit=1 --wait=0 \
        bash "$source/slurm/lib/node.sh" train "$attempt_file" \
        > >(trap '' TERM USR2 && exec tee -a "$log") 2>&1 &
    wait_for $!
}

# wait_for PID: its exit code, however often a trapped signal interrupts the waiting.
wait_for() {
    local code again
    while :; do
        wait "$1"
        code=$?
        kill -0 "$1" 2>/dev/null || break
    done
    wait "$1" 2>/dev/null
    again=$?
    [ "$again" = 127 ] || code=$again
    return "$code"
}

on_signal() {
    signalled=$1
    [ "$1" = TERM ] || seconds_left=$(squeue --noheader --jobs="$SLURM_JOB_ID" --Format=TimeLeft 2>/dev/null | tr -d ' ')
    say "signal $1${seconds_left:+, time left $seconds_left}: asking the workers to save and stop"
    if [ -n "$attempt" ] && [ ! -e "$run_dir/control/stop.$attempt" ]; then
        printf 'signal %s\n' "$1" >"$run_dir/control/.stop.$attempt" &&
            mv "$run_dir/control/.stop.$attempt" "$run_dir/control/stop.$attempt"
    fi
}

# Why Slurm ends this job. Meanwhile scontrol says only COMPLETING, for a cancelled job (which must stay dead) as for one
# that is requeued; the reason is in the line that slurmstepd adds to the job's own log before the signal.
why_ended() {
    local file said
    file=$(scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.* StdErr=\([^ ]*\).*/\1/p')
    said=$(grep -o '\*\*\* JOB [0-9]* ON .* CANCELLED AT .*' "$file" 2>/dev/null | tail -n 1)
    case $said in
        *'TIME LIMIT'*) echo TIMEOUT ;;
        *PREEMPTION*) echo PREEMPTED ;;
        *REQUEUE*) echo REQUEUED ;;
        *'NODE FAILURE'*) echo NODE_FAIL ;;
        ?*) echo CANCELLED ;;
        *) echo unknown ;;
    esac
}

live_jobs() {
    squeue --noheader --user="$(id -un)" --format=%A | tr '\n' ' '
}

# Closes the attempt and sets `verdict` (done, again, requeue, stop) and `exit_code`.
end_attempt() {
    local ended_as=unknown arguments
    [ "$signalled" != TERM ] || ended_as=$(why_ended)
    arguments=(--run-dir "$run_dir" --source "$source" --code "$1" --signal "${signalled:-none}"
        --job-state "$ended_as" --kind "$kind" --problem "$problem")
    write_environment "$environment"
    verdict=stop exit_code=1 mounts=()
    read -r verdict exit_code < <(in_image "$environment" python -m lockstep.cluster.node end "${arguments[@]}")
    rm -f "$environment"
}

# mark_bad NODE REASON: kept away from for a day (LOCKSTEP_BAD_NODE_HOURS), by requeued and by new jobs.
mark_bad() {
    printf '%s %s\n' "$(($(date +%s) + ${LOCKSTEP_BAD_NODE_HOURS:-24} * 3600))" "$2" >"$runs/bad-nodes/.$1" &&
        mv "$runs/bad-nodes/.$1" "$runs/bad-nodes/$1"
}

bad_nodes() {
    local file expiry names=''
    for file in "$runs"/bad-nodes/*; do
        [ -e "$file" ] && read -r expiry _ <"$file" && [ "$expiry" -gt "$(date +%s)" ] && names+=${names:+,}${file##*/}
    done
    printf '%s' "$names"
}

# The same job goes back into the queue, without the bad nodes. Slurm ends this shell for it (SIGTERM, then SIGKILL after
# KillWait); only while it ignores the first can it still change the job, which must be pending for that.
requeue_job() {
    local excluded given
    trap '' TERM USR2
    given=$(scontrol --oneliner show job "$SLURM_JOB_ID" | sed -n 's/.* ExcNodeList=\([^ ]*\) .*/\1/p')
    excluded=$(bad_nodes)
    say "back into the queue${excluded:+, without $excluded}"
    scontrol requeue "$SLURM_JOB_ID" || say "scontrol requeue: exit code $?"
    [ "$given" = '(null)' ] || [ -z "$given" ] || excluded=$given${excluded:+,$excluded}
    if [ -n "$excluded" ]; then
        scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$excluded" || say "the nodes $excluded could not be excluded"
    fi
    exit "$EXIT_SAVED"
}

# Without an image there is nobody to ask: this node is excluded, three times at most.
leave_this_node() {
    mark_bad "$SLURMD_NODENAME" "$1"
    [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ] || fail 1 "$1; that was the third node"
    say "$1"
    requeue_job
}
