#!/usr/bin/env bash
# Builds the programs for aarch64 and runs tests/cross_qemu.rs with them.
# shellcheck source=scripts/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/common.sh"
cd "$root"
# shellcheck source=cross/aarch64.sh
. cross/aarch64.sh

cross/build.sh aarch64
export ANKAIOS_CROSS_BIN=$cross_bin
exec scripts/cargo.sh test --locked --features multicall --test cross_qemu
