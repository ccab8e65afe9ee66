# Sourced by the scripts of this folder: folders, messages, waiting. Needs bash 5.
# shellcheck shell=bash disable=SC2034

set -euo pipefail
export LC_ALL=C

root=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/ankaios-lite
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$root/$target ;; esac
# rustup's compiler comes before a Debian one, which cross builds may have installed.
PATH=${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:$PATH
export PATH

if [ -t 1 ] && [ -z "${NO_COLOR-}" ]; then
    bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' yellow=$'\e[33m' plain=$'\e[0m'
else
    bold='' dim='' green='' red='' yellow='' plain=''
fi

title() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
warn() { printf '%swarning:%s %s\n' "$yellow" "$plain" "$*" >&2; }
fail() {
    printf '%serror:%s %s\n' "$red" "$plain" "$1" >&2
    [ $# -lt 2 ] || printf 'hint: %s\n' "$2" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }

# leave_out PART REASON [HINT]: ends the script. Within `./justw test` only, which repeats it in its last lines: a
# recipe that was called by its name must do all of it.
leave_out() {
    [ -n "${ANKAIOS_LEFT_OUT-}" ] || fail "$1: $2" "${@:3}"
    warn "$1 is left out: $2"
    printf '%s: %s\n' "$1" "$2" >>"$ANKAIOS_LEFT_OUT"
    exit 0
}

# check_number WHAT TEXT LEAST MOST: fails unless the text is a whole number within these bounds. Bash cannot count as
# far as some of them: numbers are compared as texts of one length.
check_number() {
    local least most number
    [[ $2 =~ ^0*([0-9]{1,20})$ ]] || fail "$1 is '$2', not a whole number from $3 to $4"
    printf -v number '%20s' "${BASH_REMATCH[1]}"
    printf -v least '%20s' "$3"
    printf -v most '%20s' "$4"
    [[ ! $number < $least && ! $number > $most ]] || fail "$1 is '$2', not a whole number from $3 to $4"
}

# as_root COMMAND...: runs it as root, without questions of packages.
as_root() {
    local way=()
    if [ "$(id -u)" -ne 0 ]; then
        have sudo || fail "this needs root: $*" "run it as root, then call this again"
        way=(sudo)
    fi
    "${way[@]}" env DEBIAN_FRONTEND=noninteractive "$@" </dev/null
}

# install_packages PACKAGE...: Debian packages, with the lists of packages fetched when they are empty or old.
install_packages() {
    have apt-get || fail "these are missing and this is not a Debian machine: $*" "install them with the system's own tools"
    printf 'setup: installing %s\n' "$*"
    local install=(apt-get install --yes --quiet --no-install-recommends)
    # The lists of a fresh machine are empty or old: fetch them only when they turn out to be needed.
    if ! as_root "${install[@]}" --download-only "$@" >/dev/null 2>&1; then
        as_root apt-get update --quiet || warn "cannot update apt's package lists"
    fi
    as_root "${install[@]}" "$@" || fail "apt-get could not install: $*" "see the lines above"
}

# Microseconds since 1970, without starting a process.
now_us() { printf '%s' "${EPOCHREALTIME/[.,]/}"; }

# wait_until SECONDS COMMAND...: repeats the command, silently, every 50 ms. Fails when the time is over.
wait_until() {
    local end=$(($(now_us) + $1 * 1000000))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(now_us)" -lt "$end" ] || return 1
        sleep 0.05
    done
}

# Returns whether a program listens on this loopback port.
port_used() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# is_program PID NAME: returns whether this process is still that program. Its pid may belong to another one by now.
is_program() { [ "$(cat "/proc/$1/comm" 2>/dev/null)" = "$2" ]; }
not_program() { ! is_program "$@"; }

# stop_program PIDFILE NAME: ends the process named by the file, if it still is that program, within 5 s.
stop_program() {
    local pid
    pid=$(cat "$1" 2>/dev/null) || return 0
    if is_program "$pid" "$2"; then
        kill "$pid" 2>/dev/null || true
        wait_until 5 not_program "$pid" "$2" || kill -KILL "$pid" 2>/dev/null || true
    fi
    rm -f "$1"
}

# The test programs that `cargo test` of this package has: `unit`, and those of tests/ that are not run by their name.
test_programs() {
    local file
    echo unit
    for file in "$root"/tests/*/main.rs "$root"/tests/fuzz_bounded.rs; do
        file=${file%/main.rs}
        basename -- "$file" .rs
    done
}

# test_threads PROGRAM: how many of its tests run at once.
test_threads() {
    case $1 in
        # They wait most of the time, real containers and unit tests less than others.
        process | delivery) echo $((4 * $(nproc))) ;;
        system | unit) echo $((2 * $(nproc))) ;;
        *) nproc ;;
    esac
}

# failed_tests FILE: the names of the tests that failed, from what test programs printed.
failed_tests() {
    awk '
        /^failures:$/ { split("", names); next }
        /^    [^ ]+$/ { names[$1]; next }
        /^test result: FAILED/ { for (name in names) print name }
        /^test result/ { split("", names) }
    ' "$1" | sort -u
}

# show_progress WHAT FILE PID: until the process has ended, a line that is rewritten says how many tests are done, or what
# was printed last into the file. On a terminal only.
show_progress() {
    local begin=$SECONDS line
    while [ -t 1 ] && kill -0 "$3" 2>/dev/null; do
        line=$(awk '
            /^running [0-9]+ test/ { all += $2 }
            /^test .* \.\.\. / { done += 1 }
            NF { last = $0 }
            END { if (all) printf "%d of %d tests", done, all; else printf "%.50s", last }
        ' "$2")
        printf '\r\e[K%s%s, %d s: %s%s' "$dim" "$1" $((SECONDS - begin)) "$line" "$plain"
        sleep 1
    done
    [ ! -t 1 ] || printf '\r\e[K'
}

# The command that runs now, in a group of processes of its own; empty for none.
running=''

# run_watched WHAT FILE COMMAND...: runs it with its output in the file, and shows its progress. Its script calls
# `end_running` when it ends.
run_watched() {
    local what=$1 file=$2 code=0
    shift 2
    set -m
    "$@" </dev/null >>"$file" 2>&1 &
    running=$!
    set +m
    show_progress "$what" "$file" "$running"
    wait "$running" || code=$?
    running=''
    return "$code"
}

# Ends the command of `run_watched`, with all processes that it has started.
end_running() {
    # It may have ended.
    [ -z "$running" ] || kill -- "-$running" 2>/dev/null || true
    running=''
}
