#!/usr/bin/env bash
# Measures starts on real podman with the release programs that `bench.sh` has built: a chain of five workloads, twenty that
# wait for one, twenty that wait for nothing, and the first one after the start of an agent, with each level of `prepare`;
# what twenty cost that wait; and what else makes starts short or long. Beside each stand bare calls of podman in the same
# run, so that other load on the machine meets both: the ratios count.
#
# BENCH_ROUNDS is how often all is repeated, BENCH_SECONDS how long the twenty wait. BENCH_LEVELS names the levels.
# BENCH_FOREIGN=1 measures programs without levels: they have no `lifecycle:` block, so what needs one is left out.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/engine.sh"
. "$root/scripts/cluster.sh"
cd "$root"

check_bench_settings
rounds=${BENCH_ROUNDS:-5}
seconds=${BENCH_SECONDS:-60}
many=20
links=5
bounds='1 2 4 8 20'
levels=${BENCH_LEVELS:-none image create init}
[ -z "${BENCH_FOREIGN-}" ] || levels=none

work=$(mktemp -d "$target/bench.XXXXXX") # On a disk, which /tmp need not be.
bin=$work/programs ank=$work/programs/ank shared=$work/shared
clean_up() {
    cluster_stop "$work/cluster"
    engine_remove "$work/engine"
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$shared" "$work/cluster/run" "$work/rows"
as_after_boot "${BENCH_PROGRAMS:-$target/release}" "$bin"
engine_create "$work/engine"
podman=$(command -v podman)

# In front of podman, where its calls are counted.
mkdir -p "$work/counting"
printf '#!/bin/sh\necho "$*" >>%s\nexec %s "$@"\n' "$work/calls" "$podman" >"$work/counting/podman"
chmod +x "$work/counting/podman"

# start LEVEL [LINE]: a cluster whose agent `bench` prepares so far, with one more line of settings.
start() {
    printf 'version = "v1"\n%s\n' "${2-}" >"$work/agent.conf"
    [ -n "${BENCH_FOREIGN-}" ] || printf 'prepare = "%s"\nprepare_max = 64\n' "$1" >>"$work/agent.conf"
    cluster_start "$work/cluster" "$bin"
    start_agent
}
start_agent() {
    launch "$work/cluster" bench "$bin/ank-agent" --insecure --name bench --server-url "$ANK_SERVER_URL" \
        --run-folder "$work/cluster/run" --agent-config "$work/agent.conf"
    wait_until 10 agent_known "$ank" bench || fail 'the agent did not connect within 10 s' "$(tail "$work/cluster/bench.log")"
}
stop() {
    cluster_stop "$work/cluster"
    "$podman" rm --all --force --time 0 >/dev/null
    rm -rf "$work/cluster/run" "$shared"
    mkdir -p "$work/cluster/run" "$shared"
}

# workload NAME NEEDS READY_AFTER: one that runs; NEEDS is empty or another one; with READY_AFTER it is ready as soon as
# its file is there, which it makes itself after so many seconds, or never (`-`).
workload() {
    local name=$1 needs=$2 ready=$3 command="exec sleep 6000"
    printf '  %s:\n    runtime: podman\n    agent: bench\n' "$name"
    [ -z "$needs" ] || printf '    dependencies: {%s: ADD_COND_RUNNING}\n' "$needs"
    [[ ! $ready =~ ^[0-9] ]] || command="sleep $ready; touch /shared/$name; $command"
    printf '    runtimeConfig: |\n      image: alpine:latest\n      commandOptions: ["-v", "%s:/shared"]\n' "$shared"
    printf '      commandArgs: ["sh", "-c", "%s"]\n' "$command"
    [ -z "$ready" ] || printf '      lifecycle: {ready: {file: "%s/%s", periodMs: 50, deadlineMs: 0}}\n' "$shared" "$name"
}

begin_manifest() { printf 'apiVersion: v1\nworkloads:\n'; }

container() { "$podman" ps --all --filter label=name --format '{{.Names}} {{.ID}}' | awk -v n="$1." 'index($1, n) == 1 { print $2 }'; }
# started NAME: when its container started, in microseconds since 1970.
started() { echo $(($("$podman" inspect --format '{{.State.StartedAt.UnixNano}}' "$(container "$1")") / 1000)); }
# made NAME: when it made its file.
made() { awk -v at="$(stat -c %.9Y "$shared/$1")" 'BEGIN { split(at, t, "."); print t[1] substr(t[2], 1, 6) }'; }
running() { [ "$("$ank" get workloads | grep -c 'Running(Ok)')" -ge "$1" ]; }
prepared() { [ "$("$ank" get workloads | grep -c "prepared: $1")" -ge "$2" ]; }
# await LEVEL COUNT: until so many are prepared as far as the level says.
await() {
    [ "$1" != none ] || return 0
    wait_until 300 prepared "${1^^}" "$2" || fail "not all workloads were prepared" "$("$ank" get workloads)"
}

waiting() { [ "$("$ank" get workloads | grep -c 'Pending(WaitingToStart)')" -ge "$1" ]; }

median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
note() { printf '%s\n' "$2" >>"$work/rows/$1"; }

# bare [OPTION...]: one call of podman that starts a container of the same kind, of $image if that is set; prints
# microseconds until it started.
bare() {
    local begin name=bare_${BASHPID}_$RANDOM
    begin=$(now_us)
    "$podman" "$@" run --detach --name "$name" -v "$shared:/shared" "${image:-alpine:latest}" sh -c 'exec sleep 6000' >/dev/null
    echo $(($("$podman" "$@" inspect --format '{{.State.StartedAt.UnixNano}}' "$name") / 1000 - begin))
}
bare_many() {
    local i pids=()
    for ((i = 0; i < many; i++)); do bare >/dev/null & pids+=("$!"); done
    wait "${pids[@]}"
}

# A chain in which each link is ready one second after its start: from the file of one to the start of the next.
chain() {
    local i sum=0 bare_sum=0 last waited=()
    for ((i = 1; i < links; i++)); do waited+=("c$i"); done
    start "$1"
    { begin_manifest; workload c0 '' 1; for ((i = 1; i < links; i++)); do workload "c$i" "c$((i - 1))" 1; done; } >"$work/chain.yaml"
    "$ank" --quiet --no-wait apply "$work/chain.yaml"
    wait_until 120 running "$links" || fail 'the chain does not run' "$("$ank" get workloads)"
    note "start.$1" "$("$ank" blame "${waited[@]}" -o json | awk '/"startMs"/ { sum += $2 } END { print sum * 1000 }')"
    for ((i = 1; i < links; i++)); do
        last=$(($(started "c$i") - $(made "c$((i - 1))")))
        sum=$((sum + last))
        last=$(bare)
        bare_sum=$((bare_sum + last))
    done
    stop
    note "chain.$1" "$sum"
    note "chain.bare" "$bare_sum"
    note "chain.$1.ratio" "$(awk -v a="$sum" -v b="$bare_sum" 'BEGIN { print a / b }')"
}

# The same without readiness: from the first start to the last. Programs without the block can do this, too.
plain_chain() {
    local i
    start "$1"
    { begin_manifest; workload c0 '' ''; for ((i = 1; i < links; i++)); do workload "c$i" "c$((i - 1))" ''; done; } >"$work/chain.yaml"
    "$ank" --quiet apply "$work/chain.yaml"
    note "plain.$1" $(($(started "c$((links - 1))") - $(started c0)))
    stop
}

# Twenty that wait for one; all are prepared when that becomes ready.
burst() {
    local i last=0 at begin
    start "$1"
    { begin_manifest; workload gate '' -; for ((i = 0; i < many; i++)); do workload "w$i" gate ''; done; } >"$work/burst.yaml"
    "$ank" --quiet --no-wait apply "$work/burst.yaml"
    wait_until 60 running_gate || fail 'the gate does not start' "$("$ank" get workloads)"
    await "$1" "$many"
    touch "$shared/gate"
    wait_until 120 running $((many + 1)) || fail 'not all start' "$("$ank" get workloads)"
    for ((i = 0; i < many; i++)); do
        at=$(started "w$i")
        [ "$at" -le "$last" ] || last=$at
    done
    last=$((last - $(made gate)))
    stop
    begin=$(now_us)
    bare_many
    note burst.bare $(($(now_us) - begin))
    "$podman" rm --all --force --time 0 >/dev/null
    note "burst.$1" "$last"
}
running_gate() { [[ $("$ank" get workloads gate) == *'ready: '* ]]; }

# Twenty that wait for nothing: nothing is prepared, so nothing may take longer.
at_once() {
    local i begin
    start "$1"
    { begin_manifest; for ((i = 0; i < many; i++)); do workload "w$i" '' ''; done; } >"$work/many.yaml"
    begin=$(now_us)
    "$ank" --quiet apply "$work/many.yaml"
    note "at_once.$1" $(($(now_us) - begin))
    [ -n "${BENCH_FOREIGN-}" ] || note "at_once_prepared.$1" "$("$ank" blame -o json | grep -c '"prepared"' || true)"
    stop
}

# The same with other bounds on starts at the same time: until the first and the last one started.
parallel() {
    local i at begin first='' last=0
    start none "max_parallel_starts = $1"
    { begin_manifest; for ((i = 0; i < many; i++)); do workload "w$i" '' ''; done; } >"$work/many.yaml"
    begin=$(now_us)
    "$ank" --quiet apply "$work/many.yaml"
    for ((i = 0; i < many; i++)); do
        at=$(started "w$i")
        [ "$at" -le "$last" ] || last=$at
        [ -n "$first" ] && [ "$at" -ge "$first" ] || first=$at
    done
    note "parallel_first.$1" $((first - begin))
    note "parallel.$1" $((last - begin))
    stop
}

# Twenty that wait for one that never comes: calls of the engine and context switches of the agent meanwhile.
switches() { cat "/proc/$1"/task/*/status | awk '/ctxt_switches/ { sum += $2 } END { print sum }'; }
idle() {
    local i pid calls before
    : >"$work/calls"
    PATH=$work/counting:$PATH start "$1"
    { begin_manifest; workload gate '' '' | sed 's/agent: bench/agent: absent/'; for ((i = 0; i < many; i++)); do workload "w$i" gate ''; done; } >"$work/idle.yaml"
    "$ank" --quiet --no-wait apply "$work/idle.yaml"
    wait_until 60 waiting "$many" || fail 'not all wait' "$("$ank" get workloads)"
    await "$1" "$many"
    sleep 5 # What follows from the last report.
    pid=$(cat "$work/cluster/bench.pid")
    calls=$(wc -l <"$work/calls") before=$(switches "$pid")
    sleep "$seconds"
    note "idle_calls.$1" $(($(wc -l <"$work/calls") - calls))
    note "idle_switches.$1" $(($(switches "$pid") - before))
    stop
}

# Other ways to start faster, each as one `podman run`; what this machine does not have is left out.
ways() {
    note way.runc "$(bare)"
    if "$podman" --runtime crun run --rm alpine:latest true >/dev/null 2>&1; then note way.crun "$(bare --runtime crun)"; fi
    if "$podman" --help | grep -q -- --transient-store; then note way.transient "$(bare --transient-store)"; fi
    [ -e "$work/image.tar" ] || "$podman" save --quiet --format oci-archive --output "$work/image.tar" alpine:latest
    note way.archive "$(image=oci-archive:$work/image.tar bare)"
    "$podman" rm --all --force --time 0 >/dev/null
}

# The first workload after the start of the agent, which an earlier agent may have prepared.
first() {
    local begin
    start "$1"
    { begin_manifest; workload gate '' -; workload w gate ''; } >"$work/first.yaml"
    "$ank" --quiet --no-wait apply "$work/first.yaml"
    wait_until 60 running_gate || fail 'the gate does not start' "$("$ank" get workloads)"
    await "$1" 1
    stop_program "$work/cluster/bench.pid" ank-agent
    touch "$shared/gate"
    begin=$(now_us)
    start_agent
    wait_until 60 running 2 || fail 'the workload does not start' "$("$ank" get workloads)"
    note "first.$1" $(($(started w) - begin))
    stop
}
# The same for programs without the block: nothing waits.
first_plain() {
    local begin
    start "$1"
    stop_program "$work/cluster/bench.pid" ank-agent
    { begin_manifest; workload w '' ''; } >"$work/first.yaml"
    "$ank" --quiet --no-wait apply "$work/first.yaml"
    begin=$(now_us)
    start_agent
    wait_until 60 running 1 || fail 'the workload does not start' "$("$ank" get workloads)"
    note "first_plain.$1" $(($(started w) - begin))
    stop
}

[ -n "${BENCH_FOREIGN-}" ] || for level in $levels; do idle "$level"; done
for ((round = 0; round < rounds; round++)); do
    # Each level comes early and late, since what was measured before leaves its traces in the machine.
    order=$levels
    ((round % 2 == 0)) || order=$(tr ' ' '\n' <<<"$levels" | tac)
    for level in $order; do
        [ -n "${BENCH_FOREIGN-}" ] || { chain "$level"; burst "$level"; first "$level"; }
        plain_chain "$level"
        at_once "$level"
        first_plain "$level"
    done
    [ -n "${BENCH_FOREIGN-}" ] || { for bound in $bounds; do parallel "$bound"; done; ways; }
done

# row WHAT UNIT FILE DIVISOR [BASE SHARE]: the median of a file; beside that of BASE, of which it is SHARE at most.
row() {
    local ours base=''
    [ -s "$work/rows/$3" ] || return 0
    ours=$(median "$work/rows/$3")
    [ -z "${5-}" ] || base=$(median "$work/rows/$5")
    if [ -n "${BENCH_ROWS-}" ]; then
        awk -v what="$1" -v unit="$2" -v ours="$ours" -v divisor="$4" 'BEGIN { printf "%s\t%s\t%s\t\t\n", what, unit, ours / divisor }' >>"$BENCH_ROWS"
    fi
    awk -v what="$1" -v unit="$2" -v ours="$ours" -v divisor="$4" -v base="$base" -v share="${6-}" 'BEGIN {
        printf "%-62s%6s%10.3f", what, unit, ours / divisor
        if (base != "") printf "%10.3f%8.3f", base / divisor, ours / base
        if (share != "") printf "%9s  %s", share, ours / base <= share ? "yes" : "NO"
        printf "\n"
    }'
}

# count WHAT FILE MOST: the median of a file with numbers, and how many are promised.
count() {
    local ours
    [ -s "$work/rows/$2" ] || return 0
    ours=$(median "$work/rows/$2")
    [ -z "${BENCH_ROWS-}" ] || printf '%s\t\t%s\t\t\n' "$1" "$ours" >>"$BENCH_ROWS"
    printf '%-62s%6s%10s%10s%8s%9s  %s\n' "$1" '' "$ours" '' '' "$3" "$([ "$ours" -le "$3" ] && echo yes || echo NO)"
}

title 'Starts on real podman'
awk 'BEGIN { printf "%-62s%6s%10s%10s%8s%9s  %s\n", "", "", "MEASURED", "BESIDE", "RATIO", "PROMISE", "MET" }'
for level in $levels; do
    share=''
    [ "$level" != create ] || share=1.05
    [ "$level" != init ] || share=0.5
    row "chain of $links, ready 1 s after each start, $level: sum of 4 starts; bare run" s "chain.$level" 1000000 chain.bare "$share"
done
for level in $levels; do
    # It ends with the first look at the file, up to 50 ms after the start.
    row "the same starts, $level: START of ank blame; bare run" s "start.$level" 1000000 chain.bare
done
for level in $levels; do
    row "$many that wait for one, $level: until the last started; bare run at once" s "burst.$level" 1000000 burst.bare
done
for level in $levels; do
    share=''
    [ "$level" = none ] || share=1.02
    row "$many that wait for nothing, $level: until all run; none" s "at_once.$level" 1000000 at_once.none "$share"
    count "$many that wait for nothing, $level: preparations" "at_once_prepared.$level" 0
done
for level in $levels; do
    row "chain of $links without readiness, $level: first to last start; none" s "plain.$level" 1000000 plain.none
done
for level in $levels; do
    row "start of the agent until a prepared workload started, $level; none" s "first.$level" 1000000 first.none
done
for level in $levels; do
    row "start of the agent until a workload started, $level; none" s "first_plain.$level" 1000000 first_plain.none
done
for level in $levels; do
    count "$many wait for $seconds s, $level: calls of the engine" "idle_calls.$level" 0
    share=''
    [ "$level" = none ] || share=1.1
    row "$many wait for $seconds s, $level: context switches of the agent; none" '' "idle_switches.$level" 1 idle_switches.none "$share"
done
for bound in $bounds; do
    row "$many that wait for nothing, max_parallel_starts $bound: first started" s "parallel_first.$bound" 1000000
    row "$many that wait for nothing, max_parallel_starts $bound: last started" s "parallel.$bound" 1000000
done
row 'podman run with crun; with runc' s way.crun 1000000 way.runc
row 'podman run with a transient store; without' s way.transient 1000000 way.runc
row 'podman run of an image archive; of an image' s way.archive 1000000 way.runc
