#!/usr/bin/env bash
# Everything that has to pass, stage by stage: test.sh JUST. Each prints to stderr when it begins and how long it took. Parts
# that need something which this machine cannot have are left out, and the last lines list them: scripts and tests write
# them into a file.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

ANKAIOS_LEFT_OUT=$(mktemp)
export ANKAIOS_LEFT_OUT
current=''
summarise() {
    local code=$?
    if [ "$code" -ne 0 ] && [ -n "$current" ]; then
        printf '%sfailed:%s %s\n' "$red" "$plain" "$current" >&2
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

mapfile -t programs < <(test_programs)
number=0 count=$((6 + ${#programs[@]}))
# stage NAME COMMAND...
stage() {
    local begin=$SECONDS
    number=$((number + 1)) current=$1
    printf '%s[%d/%d] %s%s\n' "$bold" "$number" "$count" "$current" "$plain" >&2
    "${@:2}"
    printf '%s[%d/%d] %s: %d s%s\n' "$green" "$number" "$count" "$current" $((SECONDS - begin)) "$plain" >&2
    current=''
}
test_with() { scripts/cargo.sh test --locked --features multicall "$@"; }

for recipe in check deny advisories; do
    stage "$recipe" "$1" --justfile "$root/justfile" --working-directory "$root" "$recipe"
done
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
