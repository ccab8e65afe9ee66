#!/usr/bin/env bash
# Runs the simulation: sim.sh [SEED]. Without a seed it runs the fixed ones and some new ones; with a seed only
# that one, and prints all its events.
#
# ANKAIOS_SIM_WITHOUT leaves kinds of faults and rounds out of that seed, as a failure prints it. ANKAIOS_SIM_FIRST is the
# first of a series of seeds, ANKAIOS_SIM_SEEDS its length. With CARGO_PROFILE_TEST_OPT_LEVEL=2 this
# compiles for some minutes more and runs six times as fast, which pays for more than 5,000 seeds.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

[ $# -le 1 ] || fail "one seed at a time, not $#: $*" "./justw sim [SEED]"
# Before minutes of compiling.
seed=${1-}
[ -z "$seed" ] || check_number 'the seed' "$seed" 0 18446744073709551615
for name in ANKAIOS_SIM_FIRST ANKAIOS_SIM_SEEDS; do
    [ -z "${!name-}" ] || check_number "$name" "${!name}" 0 18446744073709551615
done
[ -n "$seed" ] || [ -z "${ANKAIOS_SIM_WITHOUT-}" ] ||
    fail "ANKAIOS_SIM_WITHOUT is for one seed, and none is given" "ANKAIOS_SIM_WITHOUT=$ANKAIOS_SIM_WITHOUT ./justw sim SEED"

ANKAIOS_SIM_SEED=$seed scripts/cargo.sh test --locked --features multicall \
    -p ankaios-lite -p ankaios-simulation --lib -- --nocapture
