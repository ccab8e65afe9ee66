#!/usr/bin/env bash
# Measures updates on real podman with the release programs that `bench.sh` has built: how long a workload is away when it
# is switched to an instance that was staged, or to one that was not, and until the old one runs again after a bad update.
# Beside each stand bare calls of podman in the same run, so that other load on the machine meets both: the ratios count.
# Times are those of files, which the kernel counts in its ticks (1 to 10 ms).
#
# BENCH_ROUNDS is how often all is repeated. BENCH_FOREIGN=1 measures programs without guarded updates: their workload has no
# `lifecycle:` block, so only the plain update is measured.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/engine.sh"
. "$root/scripts/cluster.sh"
cd "$root"

check_bench_settings
rounds=${BENCH_ROUNDS:-5}

work=$(mktemp -d "$target/bench.XXXXXX") # On a disk, which /tmp need not be.
bin=$work/programs ank=$work/programs/ank shared=$work/shared
watcher=
clean_up() {
    [ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true
    cluster_stop "$work/cluster"
    engine_remove "$work/engine"
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
mkdir -p "$shared" "$work/cluster/run" "$work/rows"
mkfifo "$work/frames"
as_after_boot "${BENCH_PROGRAMS:-$target/release}" "$bin"
engine_create "$work/engine"
podman=$(command -v podman)

# program VERSION: what runs until it is ended. It makes a file when it begins and another one again and again, every two
# milliseconds, so that both ends of an outage are seen without the engine.
program() {
    printf 'trap \\"exit 0\\" TERM; touch /shared/first.%s; while :; do touch /shared/alive.%s; usleep 2000; done' "$1" "$1"
}
bare_program() { program "$1" | sed 's/\\"/"/g'; }

# manifest COMMAND UPDATE: one workload; UPDATE is its block `update`, or empty.
manifest() {
    printf 'apiVersion: v1\nworkloads:\n  w:\n    runtime: podman\n    agent: bench\n    runtimeConfig: |\n'
    printf '      image: alpine:latest\n      commandOptions: ["-v", "%s:/shared"]\n' "$shared"
    printf '      commandArgs: ["sh", "-c", "%s"]\n' "$1"
    [ -z "$2" ] || printf '      lifecycle: { update: { %s } }\n' "$2"
}

# at FILE: when a file was changed last, in microseconds since 1970.
at() { awk -v at="$(stat -c %.9Y "$shared/$1")" 'BEGIN { split(at, t, "."); print t[1] substr(t[2], 1, 6) }'; }
is_there() { [ -e "$shared/$1" ]; }
await() { wait_until 120 is_there "$1" || fail "'$1' was never made" "$("$ank" get workloads)"; }
apply() { "$ank" --quiet --no-wait apply "$1"; }
is_alone() { [ "$("$podman" ps --all --quiet --filter label=name | wc -l)" -eq 1 ]; }
settle() {
    wait_until 60 is_alone || fail 'the old container is not removed' "$("$podman" ps --all)"
    sleep 1
}
note() { printf '%s\n' "$2" >>"$work/rows/$1"; }
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

version=0
# outage ROW UPDATE: an update of the running workload; from the last sign of life of the old to the first of the new.
outage() {
    local old=$version
    version=$((version + 1))
    manifest "$(program "$version")" "$2" >"$work/w.yaml"
    apply "$work/w.yaml"
    await "first.$version"
    settle
    note "$1" $(($(at "first.$version") - $(at "alive.$old")))
}
# record: when the new one is shown as failed, which is when the server decides.
record() {
    local line
    while IFS= read -r line; do
        [[ $line != *'Failed(ExecFailed)'* ]] || break
    done <"$work/frames"
    now_us >"$work/verdict"
}
# undone: a bad update; from the verdict, and from the end of the new one, to the first sign of life of the old one, which
# comes back.
undone() {
    local good=$version recorder
    rm -f "$shared/bad" "$shared/first.$good"
    manifest "touch /shared/bad; exit 3" "healthyMs: 500, onFailure: ROLLBACK" >"$work/bad.yaml"
    printf '    tags: {round: "%s"}\n' "$1" >>"$work/bad.yaml" # Else it would be refused the next time.
    "$ank" get workloads -w >"$work/frames" 2>/dev/null &
    watcher=$!
    record &
    recorder=$!
    apply "$work/bad.yaml"
    await bad
    await "first.$good"
    settle
    kill "$watcher" 2>/dev/null || true
    wait "$watcher" "$recorder" || true
    watcher=
    note ended $(($(at "first.$good") - $(at bad)))
    note undone $(($(at "first.$good") - $(cat "$work/verdict")))
}
# refused: an update that shows while it is staged that it cannot start; how often the old one was stopped for it.
which() { "$podman" inspect --format '{{.Id}} {{.State.StartedAt}}' "$("$podman" ps --quiet --filter label=name)"; }
newest_is() { [[ $("$ank" get updates | tail -n 1) == *" $1 "* ]]; }
refused() {
    local before stopped=0
    before=$(which)
    manifest true 'stage: CREATE, onFailure: ROLLBACK' | sed 's/"-v"/"--memory", "nonsense", "-v"/' >"$work/refused.yaml"
    apply "$work/refused.yaml"
    wait_until 60 newest_is UNDONE || fail 'the update is not undone' "$("$ank" get updates)"
    settle
    [ "$(which)" = "$before" ] || stopped=1
    note refused "$stopped"
}
# bare KIND: the same with calls of podman.
bare() {
    local old=bare_old_$version new=bare_new_$version
    "$podman" run --detach --name "$old" -v "$shared:/shared" alpine:latest sh -c "$(bare_program "$old")" >/dev/null
    await "first.$old"
    sleep 0.2
    if [ "$1" = staged ]; then
        "$podman" create --name "$new" -v "$shared:/shared" alpine:latest sh -c "$(bare_program "$new")" >/dev/null
        "$podman" stop "$old" >/dev/null
        "$podman" start "$new" >/dev/null
    else
        "$podman" stop "$old" >/dev/null
        [ "$1" = undone ] || "$podman" rm "$old" >/dev/null
        "$podman" run --detach --name "$new" -v "$shared:/shared" alpine:latest sh -c "$(bare_program "$new")" >/dev/null
    fi
    await "first.$new"
    note "bare.$1" $(($(at "first.$new") - $(at "alive.$old")))
    "$podman" rm --force --time 0 "$old" "$new" >/dev/null
    rm -f "$shared/first.$old" "$shared/first.$new"
}

printf 'version = "v1"\nretry_limit = 1\n' >"$work/agent.conf"
cluster_start "$work/cluster" "$bin"
launch "$work/cluster" bench "$bin/ank-agent" --insecure --name bench --server-url "$ANK_SERVER_URL" \
    --run-folder "$work/cluster/run" --agent-config "$work/agent.conf"
wait_until 10 agent_known "$ank" bench || fail 'the agent did not connect within 10 s' "$(tail "$work/cluster/bench.log")"
manifest "$(program 0)" '' >"$work/w.yaml"
apply "$work/w.yaml"
await first.0
for ((round = 0; round < rounds; round++)); do
    bare plain
    outage plain ''
    [ -z "${BENCH_FOREIGN-}" ] || continue
    bare staged
    outage staged 'stage: CREATE, healthyMs: 100'
    bare undone
    undone "$round"
    refused
done

# row WHAT FILE BASE SHARE: the median of a file; beside that of BASE, of which it is SHARE at most.
row() {
    local ours base
    [ -s "$work/rows/$2" ] || return 0
    ours=$(median "$work/rows/$2")
    base=$(median "$work/rows/$3")
    if [ -n "${BENCH_ROWS-}" ]; then
        awk -v what="$1" -v ours="$ours" 'BEGIN { printf "%s\tms\t%s\t\t\n", what, ours / 1000 }' >>"$BENCH_ROWS"
    fi
    awk -v what="$1" -v ours="$ours" -v base="$base" -v share="${4-}" 'BEGIN {
        printf "%-62s%6s%10.1f%10.1f%8.3f", what, "ms", ours / 1000, base / 1000, ours / base
        if (share != "") printf "%9s  %s", share, ours / base <= share ? "yes" : "NO"
        printf "\n"
    }'
}

title 'Updates on real podman'
awk 'BEGIN { printf "%-62s%6s%10s%10s%8s%9s  %s\n", "", "", "MEASURED", "BESIDE", "RATIO", "PROMISE", "MET" }'
row 'update that is staged: outage; bare stop, start of a created one' staged bare.staged 1.1
row 'update that is not staged: outage; bare stop, rm, run' plain bare.plain
row 'bad update: from the verdict to the old one; bare stop, run' undone bare.undone 1.5
row 'bad update: from its end to the old one; bare stop, run' ended bare.undone
[ -n "${BENCH_FOREIGN-}" ] || printf '%-62s%6s%10s%10s%8s%9s  %s\n' 'bad update that cannot be staged: the old one was stopped' '' \
    "$(sort -n "$work/rows/refused" | tail -n 1)" '' '' 0 "$(grep -q 1 "$work/rows/refused" && echo NO || echo yes)"
