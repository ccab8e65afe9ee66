#!/usr/bin/env bash
# Measures agent and server on real podman, with the release programs that `bench.sh` has built: memory and CPU time
# with 1 and with 20 workloads that only run, how soon the exit of a container shows, the start of 20 workloads
# next to 20 bare `podman run` at once, and what a crash loop costs. CPU time counts the children that have ended.
# Only when they are named: `modes`, a switch next to the same change by hand; `usage`, what samples and `ank top` cost.
#
# BENCH_ROUNDS is how often starts and exits are repeated, BENCH_SECONDS how long what goes on for a minute is watched.
# BENCH_PARTS names the parts to do (connected idle starts exits deletes crash_loop modes usage).
# BENCH_COUNT_CALLS=1 shows what was called of podman.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/engine.sh"
. "$root/scripts/cluster.sh"
cd "$root"

check_bench_settings
workloads=20
rounds=${BENCH_ROUNDS:-5}
seconds=${BENCH_SECONDS:-60}

work=$(mktemp -d "$target/bench.XXXXXX") # On a disk, which /tmp need not be.
bin=$work/programs ank=$work/programs/ank
clean_up() {
    cluster_stop "$work"
    engine_remove "$work/engine"
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
as_after_boot "${BENCH_PROGRAMS:-$target/release}" "$bin"
engine_create "$work/engine"
[[ ${BENCH_PARTS-} != *modes* ]] || printf '%s\n' 'version = "v1"' 'mode_config = "mode"' >"$work/ank-server.conf"
podman=$(command -v podman)
if [ -n "${BENCH_COUNT_CALLS-}" ]; then
    # Every call of the agent goes through this; that costs a little, so only when it is asked for.
    mkdir "$work/bin"
    # shellcheck disable=SC2016
    printf '#!/bin/sh\necho "$1" >>"%s/calls"\nexec "%s" "$@"\n' "$work" "$podman" >"$work/bin/podman"
    chmod +x "$work/bin/podman"
    PATH=$work/bin:$PATH cluster_start "$work" "$bin" bench
else
    cluster_start "$work" "$bin" bench
fi

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
pss_kb() { awk '$1 == "Pss:" { print $2 }' "/proc/$(cat "$work/$1.pid")/smaps_rollup"; }
# cpu_ms NAME: CPU time of a program and of its children that have ended, in milliseconds.
cpu_ms() {
    awk -v tick="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print int(($12 + $13 + $14 + $15) * 1000 / tick) }' \
        "/proc/$(cat "$work/$1.pid")/stat"
}
# per_minute NAME: CPU milliseconds of a minute from now on.
per_minute() {
    local before
    before=$(cpu_ms "$1")
    sleep "$seconds"
    printf '%s' $((($(cpu_ms "$1") - before) * 60 / seconds))
}

# row WHAT UNIT OURS DIVISOR [PEER SHARE]: one line of the table; OURS is divided, PEER is in the unit already.
row() {
    if [ -n "${BENCH_ROWS-}" ]; then
        awk -v what="$1" -v unit="$2" -v ours="$3" -v divisor="$4" -v peer="${5-}" -v share="${6-}" \
            'BEGIN { printf "%s\t%s\t%s\t%s\t%s\n", what, unit, ours / divisor, peer, share }' >>"$BENCH_ROWS"
    fi
    awk -v what="$1" -v unit="$2" -v ours="$3" -v divisor="$4" -v peer="${5-}" -v share="${6-}" 'BEGIN {
        ours /= divisor
        printf "%-62s%6s%10.2f", what, unit, ours
        if (peer != "") printf "%10.2f%8.3f%9s  %s", peer, ours / peer, share, ours / peer <= share ? "yes" : "NO"
        printf "\n"
    }' >>"$work/table"
}

# manifest COUNT: workloads that only run.
manifest() {
    printf 'apiVersion: v1\nworkloads:\n'
    for ((i = 0; i < $1; i++)); do
        printf '  bench_%d:\n    runtime: podman\n    agent: bench\n    runtimeConfig: |\n' "$i"
        printf '      image: alpine:latest\n      commandOptions: ["--entrypoint", "/bin/sleep"]\n      commandArgs: ["6000"]\n'
    done
}
manifest 1 >"$work/one.yaml"
manifest "$workloads" >"$work/many.yaml"

# apply FILE COUNT: waits until all are running.
apply() {
    "$ank" --quiet apply "$1"
    [ "$("$ank" get workloads | grep -c 'Running(Ok)')" -eq "$2" ] || fail 'not all workloads are running'
}
delete() {
    # The containers ignore SIGTERM; podman's ten seconds 20 times would be a long wait.
    "$podman" kill --all >/dev/null
    "$ank" --quiet apply -d "$1"
}

# What the start of the agent itself needed is still held.
connected() {
    sleep 1
    row 'agent: memory, just connected, no workload' MiB "$(pss_kb bench)" 1024 6.7 0.5
}

# idle FILE COUNT PEER_MIB PEER_SECONDS
idle() {
    apply "$1" "$2"
    sleep 5 # What follows the start is over.
    row "agent: memory, workloads: $2" MiB "$(pss_kb bench)" 1024 "$3" 0.5
    row "agent and podman: CPU of an idle minute, workloads: $2" s "$(per_minute bench)" 1000 "$4" 0.1
    delete "$1"
}

bare_podman() {
    local i pids=()
    for ((i = 0; i < workloads; i++)); do
        "$podman" run --detach --name "bare_$i" --entrypoint /bin/sleep alpine:latest 6000 >/dev/null &
        pids+=("$!")
    done
    wait "${pids[@]}"
}

starts() {
    local round begin ratio
    : >"$work/ours"
    : >"$work/bare"
    : >"$work/ratios"
    for ((round = 0; round < rounds; round++)); do
        begin=$(now_us)
        bare_podman
        printf '%s\n' $(($(now_us) - begin)) >>"$work/bare"
        "$podman" rm --all --force --time 0 >/dev/null
        : >"$work/calls"
        begin=$(now_us)
        apply "$work/many.yaml" "$workloads"
        printf '%s\n' $(($(now_us) - begin)) >>"$work/ours"
        [ -z "${BENCH_COUNT_CALLS-}" ] || { printf 'calls of podman:'; sort "$work/calls" | uniq -c | tr -s ' \n' ' '; echo; }
        delete "$work/many.yaml"
        # Side by side, so that other load meets both.
        ratio=$(paste "$work/ours" "$work/bare" | tail -n 1 | awk '{ print $1 / $2 }')
        printf '%s\n' "$ratio" >>"$work/ratios"
    done
    row "$workloads bare podman run at once" s "$(median <"$work/bare")" 1000000
    row "$workloads workloads applied until all are Running" s "$(median <"$work/ours")" 1000000
    awk -v ratio="$(median <"$work/ratios")" -v what="the same, as a share of bare podman" \
        'BEGIN { printf "%-62s%6s%10.2f%10.2f%8.3f%9s  %s\n", what, "", ratio, 1, ratio, "1.0", ratio <= 1 ? "yes" : "NO" }' >>"$work/table"
}

# From the exit of a container to the change in `ank get workloads`.
exits() {
    local round end seen finished
    : >"$work/delays"
    for ((round = 0; round < rounds * 2; round++)); do
        "$ank" --quiet --no-wait run workload "brief_$round" --runtime podman --agent bench \
            --config $'image: alpine:latest\ncommandOptions: ["--entrypoint", "/bin/sleep"]\ncommandArgs: ["1"]'
        ended() { [[ $("$ank" get workloads "brief_$round") == *'Succeeded(Ok)'* ]]; }
        end=$(($(now_us) + 20000000))
        until ended; do [ "$(now_us)" -lt "$end" ] || fail "workload 'brief_$round' did not end within 20 s"; done
        seen=$(now_us)
        finished=$("$podman" ps --all --filter "label=name" --format '{{.Names}} {{.ID}}' | awk -v n="brief_$round." 'index($1, n) == 1 { print $2 }')
        finished=$("$podman" inspect --format '{{.State.FinishedAt.UnixNano}}' "$finished")
        printf '%s\n' $((seen - finished / 1000)) >>"$work/delays"
        "$ank" --quiet delete workload "brief_$round"
    done
    row 'exit of a container until ank get workloads shows it (median)' s "$(median <"$work/delays")" 1000000 0.95 0.15
    row 'the longest of them' s "$(sort -n "$work/delays" | tail -n 1)" 1000000
}

# A workload that has ended, from the command to its end.
deletes() {
    local round begin
    : >"$work/delays"
    for ((round = 0; round < rounds; round++)); do
        "$ank" --quiet run workload "ended_$round" --runtime podman --agent bench \
            --config $'image: alpine:latest\ncommandOptions: ["--entrypoint", "/bin/true"]'
        begin=$(now_us)
        "$ank" --quiet delete workload "ended_$round"
        printf '%s\n' $(($(now_us) - begin)) >>"$work/delays"
    done
    row 'delete of a workload that has ended (median)' s "$(median <"$work/delays")" 1000000 0.09 1.0
    begin=$(now_us)
    "$podman" create --name bare alpine:latest >/dev/null
    "$podman" rm bare >/dev/null
    row 'podman create and rm, bare' s $(($(now_us) - begin)) 1000000
}

crash_loop() {
    "$ank" --quiet --no-wait apply - <<END
apiVersion: v1
workloads:
  crashing:
    runtime: podman
    agent: bench
    restartPolicy: ALWAYS
    runtimeConfig: |
      image: alpine:latest
      commandOptions: ["--entrypoint", "/bin/false"]
END
    row 'crash loop with ALWAYS: CPU of agent and podman, first minute' % "$(per_minute bench)" 600 25 0.1
    row 'crash loop with ALWAYS: CPU of agent and podman, next minute' % "$(per_minute bench)" 600 25 0.1
    "$ank" --quiet delete workload crashing
}

# group NAME AGENT [MODES]: ten workloads, three after another a chain.
group() {
    local i
    for ((i = 0; i < 10; i++)); do
        printf '  %s_%d:\n    runtime: podman\n    agent: "%s"\n' "$1" "$i" "$2"
        [ -z "${3-}" ] || printf '    tags: { modes: %s }\n' "$3"
        [ $((i % 3)) -eq 0 ] || printf '    dependencies: { %s_%d: ADD_COND_RUNNING }\n' "$1" $((i - 1))
        printf '    runtimeConfig: |\n      image: alpine:latest\n      commandOptions: ["--stop-timeout", "1"]\n'
        printf '      commandArgs: ["sh", "-c", "trap exit TERM; while true; do sleep 1 & wait $!; done"]\n'
    done
}

# assigned AGENT_OF_DRIVE AGENT_OF_PARK: that part of the state.
assigned() {
    local i
    printf 'desiredState:\n  apiVersion: v1\n  workloads:\n'
    for ((i = 0; i < 10; i++)); do printf '    drive_%d: { agent: "%s" }\n    park_%d: { agent: "%s" }\n' "$i" "$1" "$i" "$2"; done
}

# Twenty switches, then the same changes by hand: ten workloads end, ten start, ten go on.
modes() {
    local round begin file masks=() i
    { printf 'apiVersion: v1\nconfigs: { mode: park }\nworkloads:\n'; group drive bench drive; group park bench park
        group both bench 'drive park'; } >"$work/modes.yaml"
    { printf 'apiVersion: v1\nworkloads:\n'; group drive ''; group park bench; group both bench; } >"$work/by_hand.yaml"
    assigned bench '' >"$work/drive.yaml"
    assigned '' bench >"$work/park.yaml"
    for ((i = 0; i < 10; i++)); do masks+=("desiredState.workloads.drive_$i.agent" "desiredState.workloads.park_$i.agent"); done
    : >"$work/ours"
    : >"$work/hand"
    apply "$work/modes.yaml" 20
    for ((round = 0; round < 20; round++)); do
        begin=$(now_us)
        "$ank" --quiet mode "$([ $((round % 2)) -eq 0 ] && echo drive || echo park)" >/dev/null
        printf '%s\n' $(($(now_us) - begin)) >>"$work/ours"
    done
    "$ank" --quiet apply -d "$work/modes.yaml"
    apply "$work/by_hand.yaml" 20
    for ((round = 0; round < 20; round++)); do
        file=$work/$([ $((round % 2)) -eq 0 ] && echo drive || echo park).yaml
        begin=$(now_us)
        "$ank" --quiet set state "${masks[@]}" "$file" >/dev/null
        printf '%s\n' $(($(now_us) - begin)) >>"$work/hand"
    done
    "$ank" --quiet apply -d "$work/by_hand.yaml"
    row 'switch of the mode, 10 end, 10 start, 10 go on' s "$(median <"$work/ours")" 1000000 \
        "$(awk -v us="$(median <"$work/hand")" 'BEGIN { print us / 1000000 }')" 1.1
}

# each WHAT COMMAND...: CPU and time of one of ten runs, in milliseconds; CPU with all its children.
each() {
    local what=$1 i
    shift
    local TIMEFORMAT='%U %S %R'
    { time for ((i = 0; i < 10; i++)); do "$@" >/dev/null; done; } 2>"$work/times"
    row "$what: CPU" ms "$(awk '{ print ($1 + $2) * 100 }' "$work/times")" 1
    row "$what: time" ms "$(awk '{ print $3 * 100 }' "$work/times")" 1
}

usage() {
    local before i reads=200
    apply "$work/many.yaml" "$workloads"
    sleep 5
    before=$(cpu_ms bench)
    for ((i = 0; i < reads; i++)); do "$ank" get state usage >/dev/null; done
    row "agent: CPU of a sample of $workloads workloads, limit" ms $(($(cpu_ms bench) - before)) "$reads" 1 1
    each 'ank top, with an interval of 500 ms' "$ank" top --interval 500ms
    each 'podman stats --no-stream' "$podman" stats --no-stream
    delete "$work/many.yaml"
}

awk 'BEGIN { printf "%-62s%6s%10s%10s%8s%9s  %s\n", "", "", "MEASURED", "PEER", "RATIO", "PROMISE", "MET" }' >"$work/table"
title 'Agent on real podman'
for part in ${BENCH_PARTS:-connected idle starts exits deletes crash_loop}; do
    case $part in
        idle)
            idle "$work/one.yaml" 1 7.1 1.3
            idle "$work/many.yaml" "$workloads" 7.4 2.3
            ;;
        *) "$part" ;;
    esac
done
cat "$work/table"
