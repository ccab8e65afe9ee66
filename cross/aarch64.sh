# Sourced after scripts/common.sh: which compiler builds for aarch64 on this machine, and with what settings.
# shellcheck shell=bash disable=SC2034,SC2154

cross_target=aarch64-unknown-linux-gnu
# Its own folder: another compiler's results here would make the next build for this machine start from the beginning.
cross_folder=$target/cross
cross_bin=$cross_folder/$cross_target/release
# Debian's compiler, by path: rustup's programs come first in PATH.
debian_rustc=/usr/bin/rustc
debian_cargo=/usr/bin/cargo

# has_target COMPILER: returns whether it has the standard library of the target.
has_target() {
    local library
    library=$("$1" --print target-libdir --target "$cross_target" 2>/dev/null) || return 1
    compgen -G "$library/libstd-*.rlib" >/dev/null
}
rustup_has_target() { have rustup && have rustc && has_target rustc; }
debian_has_target() { has_target "$debian_rustc"; }

# cross_cargo ARGUMENTS...: cargo with the compilers for the target.
cross_cargo() {
    (
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
        export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc CXX_aarch64_unknown_linux_gnu=aarch64-linux-gnu-g++
        export AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
        export CARGO_TARGET_DIR=$cross_folder
        rustup_has_target || export ANKAIOS_CARGO=$debian_cargo RUSTC=$debian_rustc
        exec nice "$root/scripts/cargo.sh" "$@" --target "$cross_target"
    )
}
