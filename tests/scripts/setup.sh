#!/usr/bin/env bash
# Installs what building and testing needs and this machine does not have. Asks the machine first, so a
# second run takes no time and a machine that has everything needs neither apt nor root.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

missing=()
# need PACKAGE COMMAND...: the package is missing when the command fails.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
static_busybox() { [ -x /bin/busybox ] && ! ldd /bin/busybox; }
first_file() { local file; for file; do [ -e "$file" ] && return; done; return 1; }

# gRPC is C++ and built with cmake.
need g++ have g++
need make have make
need cmake have cmake
need pkg-config have pkg-config
need ccache have ccache
# The engine, and what an image without a registry is made of. Rootless podman needs the last two.
need podman have podman
need runc have runc
# podman does not start without its network program, which Debian only recommends.
need netavark first_file /usr/lib/podman/netavark /usr/libexec/podman/netavark /usr/local/{lib,libexec}/podman/netavark
need catatonit first_file /usr/libexec/podman/catatonit /usr/bin/catatonit
need busybox-static static_busybox
need uidmap have newuidmap
need fuse-overlayfs have fuse-overlayfs
# The checks of the scripts and of the tags, the client in another language, network faults and certificates in tests.
need shellcheck have shellcheck
need iproute2 have ip
need git have git
need openssl have openssl
need python3 have python3
need python3-venv python3 -c 'import ensurepip, venv'

[ "${#missing[@]}" -eq 0 ] || install_packages "${missing[@]}"

have cargo || fail "cargo is not installed" "install Rust: https://rustup.rs"
cd "$root"
wanted=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml)
present=$(rustc --version | cut -d ' ' -f 2)
[ "$(printf '%s\n%s\n' "$wanted" "$present" | sort -V | head -n 1)" = "$wanted" ] ||
    fail "Rust $present is too old, $wanted or newer is needed" "rustup update stable"
for component in rustfmt clippy; do
    name=${component/rustfmt/fmt}
    cargo "$name" --version >/dev/null 2>&1 && continue
    have rustup || fail "cargo $name is not installed" "install the Rust component '$component'"
    rustup component add "$component"
done
