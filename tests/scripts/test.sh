#!/usr/bin/env bash
# Everything that has to pass: test.sh JUST. Parts that need something which this machine cannot have are left out, and the
# last lines say which: scripts and tests write them into a file.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

ANKAIOS_LEFT_OUT=$(mktemp)
export ANKAIOS_LEFT_OUT
tell() {
    local code=$?
    if [ -s "$ANKAIOS_LEFT_OUT" ]; then
        title "Left out:"
        sort -u "$ANKAIOS_LEFT_OUT" | sed 's/^/  /'
    elif [ "$code" -eq 0 ]; then
        title "Nothing was left out."
    fi
    rm -f "$ANKAIOS_LEFT_OUT"
}
trap tell EXIT

"$1" --justfile "$root/justfile" --working-directory "$root" check advisories
tests/scripts/trace.sh --strict
tests/scripts/cargo.sh test --locked --features multicall
