#!/usr/bin/env bash
# Installs the packages for building for aarch64 and running the result on this machine: a C++ compiler, a Rust standard
# library for that target, qemu and the target's C library. Looks for them first, so a second run does nothing.
# shellcheck source=scripts/common.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/common.sh"
cd "$root"
# shellcheck source=cross/aarch64.sh
. cross/aarch64.sh

missing=()
# need PACKAGE COMMAND...: the package is missing when the command fails.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}

need gcc-aarch64-linux-gnu have aarch64-linux-gnu-gcc
need g++-aarch64-linux-gnu have aarch64-linux-gnu-g++
need qemu-user-static have qemu-aarch64-static
# qemu runs the programs with Debian's own C library of that architecture, not with the compiler's copy: a program
# that meets both hangs in pthread_create.
need libc6:arm64 [ -e /lib/ld-linux-aarch64.so.1 ]
need libgcc-s1:arm64 [ -e /lib/aarch64-linux-gnu/libgcc_s.so.1 ]
need libstdc++6:arm64 [ -e /usr/lib/aarch64-linux-gnu/libstdc++.so.6 ]
if ! rustup_has_target; then
    need rustc-web [ -x "$debian_rustc" ]
    need cargo-web [ -x "$debian_cargo" ]
    # In the version of the compiler, or it cannot be read.
    need libstd-rust-web-dev:arm64 debian_has_target
fi
if [ "${#missing[@]}" -gt 0 ]; then
    have dpkg || fail "these are missing and this is not a Debian machine: ${missing[*]}" \
        "install a C++ compiler for aarch64 and qemu-user; 'rustup target add $cross_target'"
    if ! dpkg --print-foreign-architectures | grep -qx arm64; then
        as_root dpkg --add-architecture arm64
    fi
    install_packages "${missing[@]}"
fi

rustup_has_target && exit
debian_has_target || fail "Debian's Rust compiler has no standard library for $cross_target" \
    "'rustup target add $cross_target', or install libstd-rust-web-dev:arm64 in the version of rustc-web"
wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
present=$("$debian_rustc" --version | cut -d ' ' -f 2)
[ "$(printf '%s\n%s\n' "$wanted" "$present" | sort -V | head -n 1)" = "$wanted" ] ||
    fail "Debian's Rust $present is too old, $wanted or newer is needed" \
        "'apt-get update' and upgrade rustc-web (it comes with security updates), or 'rustup target add $cross_target'"
