#!/usr/bin/env bash
# Builds the three programs, or one, for another architecture: `./justw cross aarch64 [server|agent|cli|multicall]`.
# `./justw cross test` builds them for aarch64 and runs them under qemu with this machine's `ank` and the fake engine.
#
# The compiler is rustup's where its standard library for that target is installed, else Debian's, which has that
# library as a package. Both write to a target folder of their own, so that builds for this machine stay warm.
# shellcheck source=scripts/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/common.sh"
cd "$root"

architecture=${1-aarch64}
component=${2-all}

[ $# -le 2 ] || fail "an architecture and a component, not $#: $*" "./justw cross [aarch64 [COMPONENT]], or ./justw cross test"
case $architecture in
    test) exec cross/test.sh ;;
    aarch64 | arm64) ;;
    x86_64 | amd64) fail "'$architecture' needs no cross build" "scripts/cargo.sh build --locked --release" ;;
    *) fail "there is no cross build for '$architecture'" "supported is aarch64, or test to run that; gRPC's bindings know no 32-bit target" ;;
esac
case $component in
    all) what=(--bins) ;;
    server | agent) what=(--bin "ank-$component" --no-default-features --features "$component") ;;
    cli | ank) what=(--bin ank --no-default-features --features cli) ;;
    multicall) what=(--bin ankaios --features multicall) ;;
    *) fail "there is no component '$component'" "one of: all, server, agent, cli, multicall" ;;
esac

# shellcheck source=cross/aarch64.sh
. cross/aarch64.sh
cross/setup.sh
cross_cargo build --locked --release "${what[@]}"
printf 'built in %s:\n' "$cross_bin"
(cd "$cross_bin" && find . -maxdepth 1 -type f -executable -printf '%P %s bytes\n' | sort)
