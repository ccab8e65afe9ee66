#!/usr/bin/env bash
# Installs the Debian packages for building and testing that this machine lacks. Looks for programs first, so a second
# run takes no time, and a machine that has everything needs neither apt nor root.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

missing=()
# need PACKAGE COMMAND...: the package is missing when the command fails.
need() {
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
static_busybox() { [ -x /bin/busybox ] && ! ldd /bin/busybox; }
# helper NAME: one of podman's own programs.
helper() { first_file {/usr,/usr/local}/{lib,libexec}/podman/"$1"; }
either() { have "$1" || have "$2"; }
first_file() { local file; for file; do [ -e "$file" ] && return; done; return 1; }

# gRPC is C++ and built with cmake.
need g++ have g++
need make have make
need cmake have cmake
need pkg-config have pkg-config
need ccache have ccache
# The engine, and the parts of an image without a registry. Rootless podman needs the last two.
need podman have podman
need runc have runc
# Debian only recommends the programs for the network of containers: podman does not start without the first, a container with
# podman's default network not without a firewall's program, names not without the DNS server; rootless ones need pasta
# or slirp4netns.
need netavark helper netavark
need aardvark-dns helper aardvark-dns
need iptables first_file {/usr,/usr/local}/{sbin,bin}/iptables
need nftables first_file {/usr,/usr/local}/{sbin,bin}/nft
need slirp4netns either slirp4netns pasta
need catatonit first_file /usr/libexec/podman/catatonit /usr/bin/catatonit
need busybox-static static_busybox
need uidmap have newuidmap
need fuse-overlayfs have fuse-overlayfs
# The checks of the scripts and of the tags, the client in another language, network faults and certificates in tests.
need shellcheck have shellcheck
need iproute2 have ip
# The broker of docs/examples/mqtt, and its clients.
need mosquitto first_file /usr/sbin/mosquitto /usr/bin/mosquitto
need mosquitto-clients have mosquitto_pub
need git have git
need openssl have openssl
need python3 have python3
need libfaketime first_file /usr/lib/*/faketime/libfaketimeMT.so.1 /usr/lib/faketime/libfaketimeMT.so.1
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
