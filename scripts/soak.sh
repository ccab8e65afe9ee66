#!/usr/bin/env bash
# Keeps a cluster with the fake engine busy: soak.sh [MINUTES], an hour by default. Memory, descriptors, threads and
# wake-ups of its programs must stay flat. The curves are shown and kept in target/soak.csv.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

minutes=${1:-60}
[ $# -le 1 ] || fail "one time, not $#: $*" "./justw bench soak [MINUTES]"
# Before minutes of compiling. A week is enough.
check_number 'the time in minutes' "$minutes" 1 10080

curve=$target/soak.csv
rm -f "$curve"
printf 'Measurements, round by round: %s\n' "$curve"
ANKAIOS_SOAK_MINUTES=$minutes ANKAIOS_SOAK_CURVE=$curve \
    scripts/cargo.sh test --locked --features multicall --test process -- --nocapture busy_cluster::
