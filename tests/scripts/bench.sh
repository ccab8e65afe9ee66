#!/usr/bin/env bash
# Measures the release programs: all of it, or what is named. Medians and means of many; other load on the
# machine shows all the same.
#
#   size     stripped binaries, idle memory
#   server   simulated agents: memory and CPU of the server, delay of events
#   tls      mutual TLS next to plain text
#   agent    real podman: memory, CPU, delays, a crash loop
#   control  control interface: round trips, memory and threads with 50 sessions
#   lifecycle  CPU of the agent with 100 workloads that are checked every 500 ms
#   load     growth of costs with workloads, subscribers and commands; only ours, only when it is named
#
# PEER_BIN=<folder with ank-server, ank-agent, ank> measures those programs beside ours, part by part in turns;
# BENCH_REPEATS is how often. One table with the medians of all and their ratios follows, and a drawing of it.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/tests/scripts/cluster.sh"
cd "$root"

names=("$@")
[ "${#names[@]}" -gt 0 ] || names=(size server tls agent control lifecycle)
for name in "${names[@]}"; do
    case $name in
        size | server | tls | agent | control | lifecycle | load) ;;
        *) fail "there is nothing to measure called '$name'" "just bench [size|server|tls|agent|control|lifecycle|load]..." ;;
    esac
done

tests/scripts/cargo.sh build --locked --release --bins --example bench --example fake-podman
if [[ " ${names[*]} " == *' size '* ]]; then
    tests/scripts/cargo.sh build --locked --release --features multicall --bin ankaios
fi
work=$(mktemp -d "$target/bench.XXXXXX") # On a disk, which /tmp need not be.
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

failed=0
# What fails on a promise is shown in the table; a peer promises nothing.
broken() { [ "$who" = peer ] || failed=1; }

# measure NAME: one part of the programs in $programs, rows to $BENCH_ROWS.
measure() {
    case $1 in
        size)
            title "Size and idle memory ($who)"
            BENCH_PROGRAMS=$programs tests/scripts/size.sh || warn 'above the promise'
            ;;
        server | tls)
            title "${1^} ($who)"
            as_after_boot "$programs" "$work/programs"
            "$target/release/examples/bench" "$1" "$work/programs" || broken
            ;;
        agent) BENCH_PROGRAMS=$programs tests/scripts/bench-agent.sh || broken ;;
        control)
            title "Control interface ($who)"
            ANKAIOS_TEST_PROGRAMS=$programs tests/scripts/cargo.sh bench --locked --bench control || broken
            ;;
        load)
            title Load
            "$target/release/examples/bench" load "$programs" "$target/release/examples/fake-podman" || broken
            ;;
        lifecycle)
            title 'Checks of workloads'
            tests/scripts/cargo.sh build --locked --release --example fake-podman
            tests/scripts/cargo.sh bench --locked --bench lifecycle || failed=1
            ;;
    esac
}

sides=(ours)
if [ -n "${PEER_BIN-}" ]; then
    for program in ank-server ank-agent ank; do
        [ -x "$PEER_BIN/$program" ] || fail "PEER_BIN has no program '$program': '$PEER_BIN'" "name a folder with all three"
    done
    sides+=(peer)
fi
for ((round = 0; round < ${BENCH_REPEATS:-1}; round++)); do
    for name in "${names[@]}"; do
        for who in "${sides[@]}"; do
            # The peer has no lifecycle conditions, and growth of its costs is not ours to show.
            [[ $name != load && $name != lifecycle ]] || [ "$who" = ours ] || continue
            programs=$target/release
            [ "$who" = ours ] || programs=$PEER_BIN
            export BENCH_ROWS=$work/$who.tsv
            measure "$name"
        done
    done
done
if [ -s "$work/ours.tsv" ]; then
    title 'All of it'
    rows=("$work/ours.tsv")
    [ "${#sides[@]}" -eq 1 ] || rows+=("$work/peer.tsv")
    "$target/release/examples/bench" report "${rows[@]}" "$target/bench.svg" || failed=1
    printf 'Drawing: %s\n' "$target/bench.svg"
fi
exit "$failed"
