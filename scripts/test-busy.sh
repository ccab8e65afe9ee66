#!/usr/bin/env bash
# Runs the test programs with little CPU time: test-busy.sh [MODE|PROGRAM|TIMES]... [-- WORD...].
#
# MODE `loops` runs each beside two busy processes for each core. MODE `half` limits it, all processes that it starts and
# its containers together to half of a core, in a control group of its own. PROGRAM is `unit` or the name of a test program.
# Without them all programs run in both modes, once. The words behind `--` are for the test programs, such as a filter.
# Everything is compiled before that, without a limit. A failed run does not end the others: the last lines list all.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

# Microseconds of each tenth of a second that `half` leaves to all together.
half=50000 period=100000

usage='./justw test-busy [loops|half|PROGRAM|TIMES]... [-- WORD...]'
mapfile -t known < <(test_programs)
modes=() programs=() times=1
while [ $# -gt 0 ]; do
    case $1 in
        --)
            shift
            break
            ;;
        loops | half) modes+=("$1") ;;
        [0-9]*)
            check_number "the number of runs of '$usage'" "$1" 1 1000
            times=$1
            ;;
        *)
            [[ " ${known[*]} " == *" $1 "* ]] || fail "there is no test program '$1'" "$usage; programs are ${known[*]}"
            programs+=("$1")
            ;;
    esac
    shift
done
[ "${#modes[@]}" -gt 0 ] || modes=(loops half)
[ "${#programs[@]}" -gt 0 ] || programs=("${known[@]}")

# mounted TYPE OPTION: where the file system of control groups with this option is mounted; any, without one.
mounted() { awk -v type="$1" -v option="$2" '$3 == type && (option == "" || "," $4 "," ~ "," option ",") { print $2; exit }' /proc/mounts; }

# Where control groups are, and the version of those that divide the time of the cores.
groups='' version=''
if [[ " ${modes[*]} " == *" half "* ]]; then
    hint='./justw test-busy loops needs neither'
    [ "$(id -u)" -eq 0 ] || fail "only root can hold programs to half of a core" "$hint"
    version=1 groups=$(mounted cgroup cpu)
    [ -n "$groups" ] || version=2 groups=$(mounted cgroup2 '')
    if [ -z "$groups" ] || { [ "$version" = 2 ] && ! grep -qw cpu "$groups/cgroup.controllers"; }; then
        fail "no control group of this machine can divide the time of its cores" "$hint"
    fi
fi

# Undone at any end: the busy processes, the running program, the control group.
loops=() group='' place=''
processes_of_group() { find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null || true; }
group_is_empty() { [ -z "$(processes_of_group)" ]; }
clean_up() {
    local pid
    end_running
    # They may have ended.
    [ "${#loops[@]}" -eq 0 ] || kill "${loops[@]}" 2>/dev/null || true
    # So that bash does not report their ends.
    [ "${#loops[@]}" -eq 0 ] || wait "${loops[@]}" 2>/dev/null || true
    loops=()
    [ -n "$group" ] || return 0
    # Processes whose test was killed, and engines that still clean up.
    for pid in $(processes_of_group); do kill -KILL "$pid" 2>/dev/null || true; done
    wait_until 60 group_is_empty || warn "processes stay in '$group'"
    find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || warn "'$group' cannot be removed"
    rmdir "$place"
    group=''
}
trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Two for each core. They end with this script even if that is killed.
start_loops() {
    local each
    for ((each = 0; each < 2 * $(nproc); each++)); do
        while [ -d "/proc/$$" ]; do :; done &
        loops+=($!)
    done
}

# A control group that has half of a core.
make_group() {
    group=$groups/ankaios-test-busy-$$ place=$(mktemp -d)
    if [ "$version" = 1 ]; then
        mkdir "$group"
        printf '%s' "$period" >"$group/cpu.cfs_period_us"
        printf '%s' "$half" >"$group/cpu.cfs_quota_us"
    else
        printf '+cpu' >"$groups/cgroup.subtree_control"
        mkdir "$group" "$group/tests"
        printf '%s %s' "$half" "$period" >"$group/cpu.max"
    fi
}

# Becomes a command in that group, which it sees as the root of all groups. There engines make the groups of containers.
# shellcheck disable=SC2016
in_group() {
    if [ "$version" = 1 ]; then
        exec sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" \
            unshare --mount sh -c 'mount --bind "$0" "$1" && umount "$2" && mount --move "$1" "$2" && shift 2 && exec "$@"' \
            "$group" "$place" "$groups" "$@"
    else
        # Groups with processes can have none below them, so that the program has one of its own.
        exec sh -c 'echo $$ >"$0/cgroup.procs" && exec "$@"' "$group" \
            unshare --mount --cgroup sh -c 'echo $$ >"$0/tests/cgroup.procs" && umount --lazy "$1" && mount -t cgroup2 none "$1" && shift && exec "$@"' \
            "$group" "$groups" "$@"
    fi
}

# Lines of a kind of target, its name and its test program.
title "Compiling"
built=$(scripts/cargo.sh test --locked --features multicall --no-run --message-format=json-render-diagnostics |
    sed -n 's/.*"target":{"kind":\["\([a-z-]*\)"[^}]*"name":"\([^"]*\)"[^}]*},"profile":{[^}]*"test":true}.*"executable":"\([^"]*\)".*/\1 \2 \3/p')
executables_of() {
    case $1 in
        unit) awk '$1 == "lib" || $1 == "bin" { print $3 }' <<<"$built" ;;
        *) awk -v name="$1" '$1 == "test" && $2 == name { print $3 }' <<<"$built" ;;
    esac
}

logs=$target/test-busy
mkdir -p "$logs"
results=() all_passed=true
# run MODE PROGRAM NUMBER WORD...
run() {
    local mode=$1 program=$2 log=$logs/$2-$1-$3.log begin=$SECONDS result=passed executable name
    local way=()
    shift 3
    : >"$log"
    case $mode in
        loops) start_loops ;;
        half) make_group && way=(in_group) ;;
    esac
    while read -r executable; do
        run_watched "$program, $mode" "$log" "${way[@]}" "$executable" \
            --test-threads="${RUST_TEST_THREADS:-$(test_threads "$program")}" "$@" || result=failed
    done < <(executables_of "$program")
    clean_up
    grep '^test result' "$log" || true
    results+=("$(printf '%-6s %-14s %-5s %5d s' "$result" "$program" "$mode" $((SECONDS - begin)))")
    [ "$result" = failed ] || return 0
    all_passed=false
    cat "$log"
    while read -r name; do
        results+=("         ./justw test-busy $mode $program -- --exact $name")
    done < <(failed_tests "$log")
}
for program in "${programs[@]}"; do
    [ -n "$(executables_of "$program")" ] || fail "cargo named no test program '$program'" "see what it printed above"
done
for mode in "${modes[@]}"; do
    for program in "${programs[@]}"; do
        for ((number = 1; number <= times; number++)); do
            title "$program, $mode, $number of $times"
            run "$mode" "$program" "$number" "$@"
        done
    done
done
title "Results"
printf '%s\n' "${results[@]}"
"$all_passed"
