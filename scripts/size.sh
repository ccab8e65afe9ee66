#!/usr/bin/env bash
# Builds the release programs and compares their size and idle memory with the promises of docs/performance.md. Fails
# above a promise, with a code of its own. Memory is the proportional set size of an insecure server with one idle agent and an
# engine without containers. Then counts wake-ups of the two in an idle minute; SIZE_SECONDS is another time. Beside
# the agent it measures a program that has the same libraries and does nothing with them (tests/bench/floor.rs).
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/cluster.sh"
cd "$root"

check_bench_settings
bin=${BENCH_PROGRAMS:-}
if [ -z "$bin" ]; then
    scripts/cargo.sh build --locked --release --bins
    scripts/cargo.sh build --locked --release --features multicall,floor --bin ankaios --bin floor
    bin=$target/release
fi

work=$(mktemp -d "$target/size.XXXXXX") # On a disk, which /tmp need not be.
clean_up() {
    [ ! -e "$work/floor.pid" ] || stop_program "$work/floor.pid" floor
    cluster_stop "$work"
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

as_after_boot "$bin" "$work/programs"

# An engine without containers, so that only our own memory is measured.
mkdir "$work/bin"
printf '#!/bin/sh\ncase "$*" in *ps*) echo "[]" ;; esac\n' >"$work/bin/podman"
chmod +x "$work/bin/podman"
PATH=$work/bin:$PATH cluster_start "$work" "$work/programs" size

pss() { awk '$1 == "Pss:" { print $2 * 1024 }' "/proc/$(cat "$work/$1.pid")/smaps_rollup"; }
sleep 3 # Until the start is over.

# Program, kind, bytes, bytes of the same program of Eclipse Ankaios 1.1.0-pre, and the promised share.
rows() {
    printf 'ank-agent size %s 8900000 0.60\n' "$(stat -c %s "$bin/ank-agent")"
    printf 'ank-server size %s 9900000 0.60\n' "$(stat -c %s "$bin/ank-server")"
    printf 'ank size %s 11800000 0.50\n' "$(stat -c %s "$bin/ank")"
    # One file in place of all three, which other programs do not have.
    [ ! -e "$bin/ankaios" ] || printf 'ankaios size %s 30600000 0.30\n' "$(stat -c %s "$bin/ankaios")"
    printf 'ank-agent PSS %s 7444890 0.50\n' "$(pss size)"
    printf 'ank-server PSS %s 6815744 0.60\n' "$(pss server)"
}
if [ -n "${BENCH_ROWS-}" ]; then
    rows | awk '{
        unit = $2 == "size" ? 1000000 : 1048576
        printf "%s: %s\t%s\t%s\t%s\t%s\n", $1, $2 == "size" ? "stripped binary" : "memory, idle", \
            $2 == "size" ? "MB" : "MiB", $3 / unit, $4 / unit, $5
    }' >>"$BENCH_ROWS"
fi
rows | awk '
    BEGIN { printf "%-12s%-14s%10s%12s%8s%10s\n", "PROGRAM", "WHAT", "OURS", "PEER", "RATIO", "PROMISE" }
    {
        unit = $2 == "size" ? 1000000 : 1048576
        name = $2 == "size" ? "stripped, MB" : "idle PSS, MiB"
        ratio = $3 / $4
        over = ratio > $5
        failed += over
        printf "%-12s%-14s%10.2f%12.2f%8.2f%10.2f%s\n", $1, name, $3 / unit, $4 / unit, ratio, $5, over ? "  TOO MUCH" : ""
    }
    END { exit failed > 0 || NR < 5 }
' || over=1

# Number of waits of all threads of a program: each follows a wake-up.
wake_ups() { awk '$1 == "voluntary_ctxt_switches:" { sum += $2 } END { print sum }' "/proc/$(cat "$work/$1.pid")/task"/*/status; }
seconds=${SIZE_SECONDS:-60}
server=$(wake_ups server) agent=$(wake_ups size)
sleep "$seconds"
# woken PROGRAM COUNT
woken() {
    awk -v program="$1" -v count="$2" -v seconds="$seconds" \
        'BEGIN { printf "%-12s%-14s%10.2f   (%d in %d s)\n", program, "wake-ups / s", count / seconds, count, seconds }'
}
woken ank-server $(($(wake_ups server) - server))
woken ank-agent $(($(wake_ups size) - agent))

if [ -e "$bin/floor" ]; then
    printf 'server_url = "%s"\n' "$ANK_SERVER_URL" >"$work/floor.toml"
    PATH=$work/bin:$PATH launch "$work" floor "$bin/floor" --settings "$work/floor.toml" "$root/scripts/demo/storage.yaml"
    sleep 3
    is_program "$(cat "$work/floor.pid")" floor || fail "$bin/floor has ended" "$(tail -n 5 "$work/floor.log")"
    floor=$(wake_ups floor)
    sleep "$seconds"
    woken libraries $(($(wake_ups floor) - floor))
    # The rest of the agent is our own code.
    awk -v ours="$(stat -c %s "$bin/ank-agent")" -v floor="$(stat -c %s "$bin/floor")" -v promise=1.60 '
        BEGIN {
            over = ours / floor > promise
            printf "%-12s%-14s%10.2f%12s%8.2f%10.2f%s\n", "libraries", "stripped, MB", floor / 1000000, "", \
                ours / floor, promise, over ? "  TOO MUCH" : "   (of the agent to that)"
            exit over
        }
    ' || over=1
fi
[ "${over:-0}" -eq 0 ] || exit "$above_promise"
