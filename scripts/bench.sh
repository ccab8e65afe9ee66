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
#   modes    a switch of the mode next to the same change by hand: CPU of the server, time on real podman; only ours,
#            only when it is named
#   usage    what a read of what workloads use costs agent, server and `ank top`; only ours, only when it is named
#   boot     real podman: starts with each level of 'prepare' beside bare podman; only when it is named
#   load     growth of costs with workloads, subscribers and commands; only ours, only when it is named
#
# PEER_BIN=<folder with ank-server, ank-agent, ank> measures those programs beside ours, part by part in turns;
# BENCH_REPEATS is how often. One table with the medians of all and their ratios follows, and a drawing of it.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/cluster.sh"
cd "$root"

# All that was asked for is looked at before minutes of compiling and measuring.
names=("$@")
[ "${#names[@]}" -gt 0 ] || names=(size server tls agent control lifecycle)
for name in "${names[@]}"; do
    case $name in
        size | server | tls | agent | control | lifecycle | modes | usage | boot | load) ;;
        *) fail "there is nothing to measure called '$name'" "./justw bench [size|server|tls|agent|control|lifecycle|modes|usage|boot|load]..." ;;
    esac
done
repeats=${BENCH_REPEATS:-1}
check_number BENCH_REPEATS "$repeats" 1 1000
check_bench_settings

sides=(ours)
if [ -n "${PEER_BIN-}" ]; then
    [ -d "$PEER_BIN" ] ||
        fail "PEER_BIN is not a folder: '$PEER_BIN'" "the absolute path of a folder with ank-server, ank-agent and ank"
    peer=$(realpath -- "$PEER_BIN")
    for program in ank-server ank-agent ank; do
        [[ -f $peer/$program && -x $peer/$program ]] ||
            fail "PEER_BIN has no program '$program' that can be run: '$peer'" "name a folder with ank-server, ank-agent and ank"
        # Of another machine, without its libraries, or broken.
        shown=$(timeout 10 "$peer/$program" --version 2>&1 </dev/null) ||
            fail "'$peer/$program' of PEER_BIN does not run, '--version' fails: ${shown:-no output}" \
                "are the programs made for this machine?"
        printf 'peer    %s\n' "$shown"
    done
    sides+=(peer)
fi

scripts/cargo.sh build --locked --release --bins --example bench --example fake-podman
if [[ " ${names[*]} " == *' size '* ]]; then
    scripts/cargo.sh build --locked --release --features multicall --bin ankaios
fi
work=$(mktemp -d "$target/bench.XXXXXX") # On a disk, which /tmp need not be.
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

failed=0
# What fails on a promise is shown in the table; a peer promises nothing, but may not have been measured.
broken() {
    if [ "$who" = peer ]; then
        warn "'$name' of the peer failed, see above; what it did not get to has no number of the peer in the table"
    else
        failed=1
    fi
}

# measure NAME: one part of the programs in $programs, rows to $BENCH_ROWS.
measure() {
    case $1 in
        size)
            title "Size and idle memory ($who)"
            # More than is promised shows in the table.
            BENCH_PROGRAMS=$programs scripts/size.sh || [ $? -eq "$above_promise" ] || broken
            ;;
        server | tls)
            title "${1^} ($who)"
            as_after_boot "$programs" "$work/programs"
            # 1 is a relation that does not hold, which the peer need not keep.
            "$target/release/examples/bench" "$1" "$work/programs" || [ "$? $who" = '1 peer' ] || broken
            ;;
        modes | usage)
            title "${1^}"
            "$target/release/examples/bench" "$1" "$programs" || broken
            BENCH_PARTS=$1 BENCH_PROGRAMS=$programs scripts/bench-agent.sh || broken
            ;;
        agent) BENCH_PROGRAMS=$programs scripts/bench-agent.sh || broken ;;
        boot)
            # The peer has no levels.
            foreign=''
            [ "$who" = ours ] || foreign=1
            BENCH_FOREIGN=$foreign BENCH_PROGRAMS=$programs scripts/bench-boot.sh || broken
            ;;
        control)
            title "Control interface ($who)"
            ANKAIOS_TEST_PROGRAMS=$programs scripts/cargo.sh bench --locked --bench control || broken
            ;;
        load)
            title Load
            "$target/release/examples/bench" load "$programs" "$target/release/examples/fake-podman" || broken
            ;;
        lifecycle)
            title 'Checks of workloads'
            scripts/cargo.sh build --locked --release --example fake-podman
            scripts/cargo.sh bench --locked --bench lifecycle || failed=1
            ;;
    esac
}

for ((round = 0; round < repeats; round++)); do
    for name in "${names[@]}"; do
        for who in "${sides[@]}"; do
            # The peer has none of these features, and growth of its costs is not ours to show.
            [[ $name != @(load|lifecycle|modes|usage) ]] || [ "$who" = ours ] || continue
            programs=$target/release
            [ "$who" = ours ] || programs=$peer
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
