#!/usr/bin/env bash
# Runs all checks and tests, stage by stage: test.sh JUST. The first line is the time that they take here. Each stage prints its
# begin and its duration to stderr; on a terminal its output goes into a file and one line shows the progress. After a failure
# the last lines are the commands that repeat the failed tests. Parts that cannot run on this machine are left out, and the
# last lines list them: scripts and tests write them into a file.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

ANKAIOS_LEFT_OUT=$(mktemp)
export ANKAIOS_LEFT_OUT
logs=$target/test
mkdir -p "$logs"
mapfile -t programs < <(test_programs)
stages=(check trace build doc "${programs[@]}")
current=''

# The commands that repeat a failed stage: each failed test, or all of it.
repeats() {
    local base name
    case $1 in
        check) echo "./justw check" && return ;;
        trace) echo "./justw trace --strict" && return ;;
        build) base=--no-run ;;
        doc) base=--doc ;;
        unit) base=--lib ;;
        *) base="--test $1" ;;
    esac
    base="scripts/cargo.sh test --locked --features multicall $base"
    if [ -z "$(failed_tests "$logs/$1.log")" ]; then
        echo "$base"
        return
    fi
    while read -r name; do
        echo "$base -- --exact $name"
    done < <(failed_tests "$logs/$1.log")
}

summarise() {
    local code=$?
    end_running
    if [ "$code" -ne 0 ] && [ -n "$current" ]; then
        printf '%sfailed:%s %s; to repeat it:\n' "$red" "$plain" "$current" >&2
        repeats "$current" | sed 's/^/  /' >&2
    fi
    if [ -s "$ANKAIOS_LEFT_OUT" ]; then
        title "Left out:"
        sort -u "$ANKAIOS_LEFT_OUT" | sed 's/^/  /'
    elif [ "$code" -eq 0 ]; then
        title "Nothing was left out."
    fi
    rm -f "$ANKAIOS_LEFT_OUT"
}
trap summarise EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# ------------------------------------------------------------------ duration

# Lines with a stage and its last duration in seconds.
durations=$cache/test-durations

# usual_seconds STAGE: measured on two idle cores. Compiling and computing take less with more cores, waiting for containers
# and timeouts does not.
usual_seconds() {
    local computes=0 waits=0
    case $1 in
        check) computes=120 ;;
        build) computes=150 ;;
        unit) computes=50 ;;
        doc) computes=15 ;;
        fuzz_bounded) computes=25 ;;
        process) computes=30 waits=75 ;;
        system) computes=80 waits=60 ;;
        delivery) waits=20 ;;
        *) waits=5 ;;
    esac
    # gRPC takes eight minutes of one core, once.
    if [ "$1" = check ] && ! compgen -G "$target/*/build/grpcio-sys-*/output" >/dev/null; then
        computes=$((computes + 960))
    fi
    echo $((computes * 2 / $(nproc) + waits))
}

# remembered_seconds STAGE: those of the last time, else the usual ones.
remembered_seconds() {
    local seconds=''
    [ ! -r "$durations" ] || seconds=$(awk -v stage="$1" '$1 == stage && $2 ~ /^[0-9]+$/ { print $2 }' "$durations" | tail -n 1)
    echo "${seconds:-$(usual_seconds "$1")}"
}

remember() {
    # Without a cache folder nothing is remembered.
    mkdir -p "$cache" 2>/dev/null && touch "$durations" 2>/dev/null || return 0
    { awk -v stage="$1" 'NF && $1 != stage' "$durations" && echo "$1 $2"; } >"$durations.$$"
    mv -f "$durations.$$" "$durations"
}

total=0
for each in "${stages[@]}"; do
    total=$((total + $(remembered_seconds "$each")))
done
source=''
[ ! -r "$durations" ] || source=', as the last time'
printf 'All tests take about %d min on %d core(s)%s.\n' $(((total + 59) / 60)) "$(nproc)" "$source" >&2

# ------------------------------------------------------------------ the stages

number=0
# stage NAME COMMAND...
stage() {
    local begin=$SECONDS log=$logs/$1.log
    number=$((number + 1)) current=$1
    local label="[$number/${#stages[@]}] $current"
    : >"$log"
    if [ -t 1 ]; then
        if ! run_watched "$label" "$log" "${@:2}"; then
            cat "$log"
            exit 1
        fi
        passed=$(awk '/^test result: ok/ { sum += $4 } END { if (sum) printf ", %d tests passed", sum }' "$log")
    else
        printf '%s%s%s\n' "$bold" "$label" "$plain" >&2
        "${@:2}" | tee "$log"
        passed=''
    fi
    printf '%s%s: %d s%s%s\n' "$green" "$label" $((SECONDS - begin)) "$passed" "$plain" >&2
    remember "$current" $((SECONDS - begin))
    current=''
}
test_with() { scripts/cargo.sh test --locked --features multicall "$@"; }

stage check "$1" --justfile "$root/justfile" --working-directory "$root" check
stage trace scripts/trace.sh --strict
stage build test_with --no-run
stage doc test_with --doc
for program in "${programs[@]}"; do
    case $program in
        unit) chosen=(--lib --bins) ;;
        *) chosen=(--test "$program") ;;
    esac
    stage "$program" test_with "${chosen[@]}" -- --test-threads="${RUST_TEST_THREADS:-$(test_threads "$program")}"
done
