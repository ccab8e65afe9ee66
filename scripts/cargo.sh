#!/usr/bin/env bash
# cargo with the settings that every recipe shares. With ccache, gRPC's C++ (minutes of work) is compiled
# once for the development and the release profile and again only when the compiler changes.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

if have ccache; then
    export CMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER:-ccache}
    export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache}
    # The two profiles compile in two folders; only relative to them the command lines are the same.
    export CCACHE_BASEDIR=${CCACHE_BASEDIR:-${CARGO_TARGET_DIR:-$root/target}} CCACHE_NOHASHDIR=1
fi
have cargo || fail "cargo is not installed" "install Rust: https://rustup.rs"
exec "${ANKAIOS_CARGO:-cargo}" "$@"
