# Sourced by the scripts that run in a booted guest: counts checks and prints each on a line.
# shellcheck shell=bash disable=SC2034

passed=0 failed=0
say() { printf 'GUEST: %s\n' "$*"; }
check() { # TEXT COMMAND...
    local text=$1 output
    shift
    if output=$("$@" 2>&1); then
        passed=$((passed + 1))
        say "ok: $text"
    else
        failed=$((failed + 1))
        say "FAILED: $text: ${output:0:600}"
    fi
}
# Waits for a condition, up to SECONDS.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { "$@"; return 1; }
        sleep 0.5
    done
}
