#!/usr/bin/env bash
# Measures on real podman, with release programs: sizes, the start of 20 workloads next to 20 bare `podman
# run` in parallel, memory and CPU time of a minute in which they only run, and how long after a container's exit
# `ank get workloads` shows it. Medians of a few rounds; other load on the machine shows.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/tests/scripts/engine.sh"
. "$root/tests/scripts/cluster.sh"
cd "$root"

if [ "${1-}" = control ]; then
    tests/scripts/cargo.sh build --locked --release --bins --example fake-podman
    exec tests/scripts/cargo.sh bench --locked --bench control
fi

workloads=20
rounds=5

title 'Size and idle memory'
tests/scripts/size.sh || warn 'above the promise'
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
as_after_boot "$target/release" "$bin"
engine_create "$work/engine"
cluster_start "$work" "$bin" bench

median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
milliseconds() { awk -v us="$1" 'BEGIN { printf "%.0f ms", us / 1000 }'; }

pss() { awk '$1 == "Pss:" { printf "%.1f MiB", $2 / 1024 }' "/proc/$(cat "$work/$1.pid")/smaps_rollup"; }
# cpu_ms NAME: CPU time of a program and of its children that have ended, in milliseconds.
cpu_ms() {
    awk -v tick="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print int(($12 + $13 + $14 + $15) * 1000 / tick) }' \
        "/proc/$(cat "$work/$1.pid")/stat"
}

{
    printf 'apiVersion: v1\nworkloads:\n'
    for ((i = 0; i < workloads; i++)); do
        printf '  bench_%d:\n    runtime: podman\n    agent: bench\n    runtimeConfig: |\n' "$i"
        printf '      image: alpine:latest\n      commandOptions: ["--entrypoint", "/bin/sleep"]\n      commandArgs: ["600"]\n'
    done
} >"$work/many.yaml"

bare_podman() {
    local i pids=()
    for ((i = 0; i < workloads; i++)); do
        podman run --detach --name "bare_$i" --entrypoint /bin/sleep alpine:latest 600 >/dev/null &
        pids+=("$!")
    done
    wait "${pids[@]}"
}

title "$workloads workloads: apply until all are Running, next to $workloads bare podman run in parallel"
rm -f "$work/ours" "$work/bare"
for ((round = 0; round < rounds; round++)); do
    begin=$(now_us)
    bare_podman
    printf '%s\n' $(($(now_us) - begin)) >>"$work/bare"
    podman rm --all --force --time 0 >/dev/null
    begin=$(now_us)
    "$ank" --quiet apply "$work/many.yaml"
    printf '%s\n' $(($(now_us) - begin)) >>"$work/ours"
    [ "$("$ank" get workloads | grep -c 'Running(Ok)')" -eq "$workloads" ] || fail 'not all workloads are running'
    # The shells in the containers ignore SIGTERM; nobody wants to wait for podman's ten seconds 20 times.
    podman kill --all >/dev/null
    "$ank" --quiet apply -d "$work/many.yaml"
done
ours=$(median <"$work/ours") bare=$(median <"$work/bare")
printf 'ours %s, bare podman %s, ratio %s\n' "$(milliseconds "$ours")" "$(milliseconds "$bare")" \
    "$(awk -v a="$ours" -v b="$bare" 'BEGIN { printf "%.2f", a / b }')"

title "A minute in which $workloads workloads only run"
"$ank" --quiet apply "$work/many.yaml"
sleep 5 # What follows the start is over.
agent=$(cpu_ms bench) server=$(cpu_ms server)
sleep 60
printf 'CPU: agent and its podman %s ms, server %s ms; memory: agent %s, server %s\n' \
    $(($(cpu_ms bench) - agent)) $(($(cpu_ms server) - server)) "$(pss bench)" "$(pss server)"
podman kill --all >/dev/null
"$ank" --quiet apply -d "$work/many.yaml"

title 'From the exit of a container to the change in ank get workloads'
: >"$work/delays"
for ((round = 0; round < rounds * 2; round++)); do
    "$ank" --quiet --no-wait run workload "brief_$round" --runtime podman --agent bench \
        --config $'image: alpine:latest\ncommandOptions: ["--entrypoint", "/bin/sleep"]\ncommandArgs: ["1"]'
    ended() { [[ $("$ank" get workloads "brief_$round") == *'Succeeded(Ok)'* ]]; }
    end=$(($(now_us) + 20000000))
    until ended; do [ "$(now_us)" -lt "$end" ] || fail "workload 'brief_$round' did not end within 20 s"; done
    seen=$(now_us)
    finished=$(podman ps --all --filter "label=name" --format '{{.Names}} {{.ID}}' | awk -v n="brief_$round." 'index($1, n) == 1 { print $2 }')
    finished=$(podman inspect --format '{{.State.FinishedAt.UnixNano}}' "$finished")
    printf '%s\n' $((seen - finished / 1000)) >>"$work/delays"
    "$ank" --quiet delete workload "brief_$round"
done
printf 'median %s, longest %s\n' "$(milliseconds "$(median <"$work/delays")")" \
    "$(milliseconds "$(sort -n "$work/delays" | tail -n 1)")"
