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
# Measured: eight minutes of one core, in which the build of the library prints nothing. For people only.
case ${1-} in
    build | test | check | clippy | run | bench)
        if [ -t 2 ] && ! compgen -G "$target/*/build/grpcio-sys-*/output" >/dev/null &&
            ! compgen -G "$target/*/*/build/grpcio-sys-*/output" >/dev/null; then
            cores=$(nproc)
            printf 'The first build compiles gRPC as well: about %d min on %d core(s).\n' \
                "$(((8 + cores - 1) / cores))" "$cores" >&2
        fi
        ;;
esac
# Shipped programs name their commit. Other builds do not, since each commit would compile everything again.
case " $* " in
    *' --release '*)
        ANKAIOS_COMMIT=${ANKAIOS_COMMIT-$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || true)}
        export ANKAIOS_COMMIT
        ;;
esac
exec "${ANKAIOS_CARGO:-cargo}" "$@"
