#!/usr/bin/env bash
# Checks the dependencies with cargo-deny (rules in deny.toml): licenses, forbidden crates, sources, then advisories.
# cargo-deny is built once into the cache folder, without link-time optimisation: a good minute on two cores.
# `./justw test` leaves the check out where that has not been done; `./justw check` and CI do it.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

wanted=0.20.2
tools=$cache/tools/cargo-deny-$wanted
deny=$tools/bin/cargo-deny

if [ ! -x "$deny" ]; then
    [ -z "${ANKAIOS_LEFT_OUT-}" ] || leave_out "check of the dependencies" "cargo-deny is not built; './justw check' builds it"
    printf 'deny: building cargo-deny %s, once\n' "$wanted"
    log=$(mktemp)
    if ! CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_STRIP=true \
        env -u CARGO_TARGET_DIR scripts/cargo.sh install --quiet --locked --root "$tools" "cargo-deny@$wanted" >"$log" 2>&1 </dev/null; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        fail "cannot build cargo-deny $wanted" "it comes from crates.io: check the network"
    fi
    rm -f "$log"
fi

"$deny" check licenses bans sources
# The fuzz targets are a package of their own, with a lock file of their own.
"$deny" --manifest-path tests/fuzz/Cargo.toml --config deny.toml check licenses bans sources
# The database of advisories is a git repository elsewhere. This check does not fail when it cannot be reached.
if ! timeout 120 "$deny" fetch db >/dev/null 2>&1; then
    why="their database at github.com could not be fetched; all else was checked"
    [ -z "${ANKAIOS_LEFT_OUT-}" ] || leave_out advisories "$why"
    warn "advisories are left out: $why"
    exit
fi
"$deny" check --disable-fetch advisories
