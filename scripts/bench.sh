#!/usr/bin/env bash
# Measures the release programs: bench.sh [PART]..., without a name the first six. The rows are medians and means of many
# rounds; other load on the machine shows anyway. tests/bench measures; this script checks the arguments, compiles, and runs the
# parts in turns.
#
#   size       stripped binaries, idle memory
#   server     simulated agents: memory and CPU of the server, delay of events
#   tls        mutual TLS next to plain text
#   agent      real podman: memory, CPU, delays, a crash loop
#   control    control interface: round trips, memory and threads with 50 sessions
#   lifecycle  CPU of the agent with 100 workloads that are checked every 500 ms; only ours
#
# Only when they are named:
#
#   modes      a switch of the mode next to the same change by hand: CPU of the server, time on real podman; only ours
#   usage      costs of reading the usage of workloads, for agent, server and `ank top`; only ours
#   boot       real podman: starts with each level of 'prepare' beside bare podman
#   update     real podman: outages of updates, staged and not, beside bare podman
#   load       growth of costs with workloads, subscribers and commands; only ours
#   soak [MINUTES]  a busy cluster for an hour: memory, descriptors, threads and wake-ups must stay flat
#   pictures   draws the pictures of README.md from real runs: the terminal of the demo, the numbers of this (20 minutes)
#
# PEER_BIN=<folder with ank-server, ank-agent, ank> measures those programs beside ours, part by part in turns;
# BENCH_REPEATS is how often. One table with the medians of all and their ratios follows, and a drawing of it.
# BENCH_ROUNDS is the number of rounds of a part, BENCH_SECONDS the time of measurements that last a minute,
# BENCH_LEVELS the levels of `boot`, BENCH_PARTS the parts of `agent`. BENCH_COUNT_CALLS=1 prints the calls of podman there.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/cluster.sh"
cd "$root"

case ${1-} in
    help)
        sed -n '2,/^[^#]/ { s/^# \{0,1\}//p }' "$0"
        exit
        ;;
    soak) exec scripts/soak.sh "${@:2}" ;;
    pictures)
        [ $# -eq 1 ] || fail "the pictures are drawn all at once, not: ${*:2}" "./justw bench pictures"
        exec scripts/pictures.sh
        ;;
esac

# Checks all arguments before minutes of compiling and measuring.
names=("$@")
[ "${#names[@]}" -gt 0 ] || names=(size server tls agent control lifecycle)
for name in "${names[@]}"; do
    case $name in
        size | server | tls | agent | control | lifecycle | modes | usage | boot | update | load) ;;
        *) fail "there is no part '$name' to measure" "'./justw bench help' lists the parts" ;;
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

scripts/cargo.sh build --locked --release --bins
if [[ " ${names[*]} " == *' size '* ]]; then
    scripts/cargo.sh build --locked --release --features multicall --bin ankaios
fi
work=$(mktemp -d "$target/bench.XXXXXX") # On a disk, which /tmp need not be.
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

failed=0
# A missed promise is shown in the table. A peer promises nothing, but its measurement can fail.
broken() {
    if [ "$who" = peer ]; then
        warn "'$name' of the peer failed, see above; rows that it did not reach have no number of the peer in the table"
    else
        failed=1
    fi
}

bench() { scripts/cargo.sh bench --quiet --locked --bench bench -- "$@"; }

# measure NAME: one part of the programs in $programs, rows to $BENCH_ROWS.
measure() {
    title "${1^} ($who)"
    if [ "$1" = size ]; then
        # A missed promise is shown in the table.
        BENCH_PROGRAMS=$programs scripts/size.sh || [ $? -eq "$above_promise" ] || broken
        return
    fi
    as_after_boot "$programs" "$work/programs"
    # The peer has neither levels of 'prepare' nor guarded updates.
    foreign=''
    [ "$who" = ours ] || foreign=1
    # 1: a relation does not hold, which the peer need not keep.
    ANKAIOS_TEST_PROGRAMS=$work/programs BENCH_FOREIGN=$foreign bench "$1" || [ "$? $who" = '1 peer' ] || broken
}

for ((round = 0; round < repeats; round++)); do
    for name in "${names[@]}"; do
        for who in "${sides[@]}"; do
            # The peer has none of these features, and the growth of its costs is of no interest.
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
    bench report "${rows[@]}" "$target/bench.svg" || failed=1
    printf 'Drawing: %s\n' "$target/bench.svg"
fi
exit "$failed"
