#!/usr/bin/env bash
# The system tests: stest.sh, on this machine's podman, in an image and container store of their own; stest.sh --engine
# [crun|runc]..., on podman of a newer Debian with these runtimes (both without a name), as root, four minutes each.
#
# That Debian is a root which is made once in the cache folder (800 MB, a minute) and used as it is. The tests see this
# machine's repository and compiled programs at the same paths, have processes, mounts and names of their own, and a root
# of their own: with a mere chroot `podman import` fails. Control groups of version 1 are bound folder by folder, without
# the one of version 2 beside them, which crun refuses; where there is version 2 alone, it is bound as it is.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

release=trixie
cargo=${CARGO_HOME:-$HOME/.cargo}
rustup=${RUSTUP_HOME:-$HOME/.rustup}
recipe=2 # Counts up when the root below changes.
system=$cache/engines/$release-$recipe

if [ "${1-}" = --inside ]; then
    # inside SYSTEM PROGRAM RUNTIME: process 1 of the new namespaces.
    system=$2 program=$3 runtime=$4
    mount --make-rprivate /
    mount --bind "$system" "$system"
    mount -t proc proc "$system/proc"
    mount --rbind /dev "$system/dev"
    mount -t sysfs -o ro sysfs "$system/sys" 2>/dev/null || mount --rbind /sys "$system/sys"
    mount -t tmpfs -o mode=1777 tmpfs "$system/tmp"
    mount -t tmpfs -o mode=755 tmpfs "$system/run"
    if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
        mount --rbind /sys/fs/cgroup "$system/sys/fs/cgroup"
    else
        mount -t tmpfs -o mode=755 tmpfs "$system/sys/fs/cgroup"
        for folder in /sys/fs/cgroup/*/; do
            name=$(basename "$folder")
            [ "$name" != unified ] || continue
            mkdir "$system/sys/fs/cgroup/$name"
            mount --bind "$folder" "$system/sys/fs/cgroup/$name"
        done
    fi
    for folder in "$root" "$target" "$cargo" "$rustup"; do
        mkdir -p "$system$folder"
        mount --rbind "$folder" "$system$folder"
    done
    cp -L /etc/resolv.conf "$system/etc/resolv.conf"
    cp /etc/ssl/certs/ca-certificates.crt "$system/etc/ssl/certs/ca-certificates.crt"
    cd "$system"
    mkdir -p .old
    pivot_root . .old
    cd "$root"
    umount -l /.old
    # The tests build programs for this release, so their cache is in this root as well.
    export PATH=$cargo/bin:/usr/sbin:/usr/bin:/sbin:/bin XDG_CACHE_HOME=/var/cache ANKAIOS_TEST_RUNTIME=$runtime
    export PODMAN_IGNORE_CGROUPSV1_WARNING=1 ANKAIOS_LEAVE_NOTHING_OUT=1
    printf '%s, %s\n' "$(podman --version)" "$("$runtime" --version | head -n 1)"
    # It waits for processes whose parent was killed, as any init does.
    exec catatonit -- "$program" --test-threads="${RUST_TEST_THREADS:-$((2 * $(nproc)))}"
fi

if [ $# -eq 0 ]; then
    ANKAIOS_LEAVE_NOTHING_OUT=1 scripts/cargo.sh test --locked --test system
    exit
fi
[ "$1" = --engine ] || fail "the system tests know no '$1'" "./justw stest [--engine [crun|runc]...]"
shift
for runtime; do
    case $runtime in
        crun | runc) ;;
        *) fail "there are no system tests with '$runtime'" "./justw stest [--engine [crun|runc]...]" ;;
    esac
done
[ "$(id -u)" -eq 0 ] || leave_out engines "their root needs the rights of root"
unshare --mount --pid --uts --ipc --fork true 2>/dev/null || leave_out engines "no namespaces of their own can be made here"
have debootstrap || install_packages debootstrap
if [ ! -e "$system/made" ]; then
    title "Making the root of Debian $release"
    rm -rf "$cache"/engines
    mkdir -p "$cache/engines"
    packages=podman,crun,runc,netavark,aardvark-dns,iptables,nftables,catatonit,busybox-static,procps,iproute2,openssl
    packages+=,ca-certificates,python3,python3-venv,mosquitto,mosquitto-clients,gcc,libc6-dev
    debootstrap --variant=minbase --include="$packages" "$release" "$system.part" >"$cache/engines/debootstrap.log" 2>&1 ||
        leave_out engines "Debian $release could not be fetched; see $cache/engines/debootstrap.log"
    rm -rf "$system.part/var/cache/apt/archives"
    mv "$system.part" "$system"
    touch "$system/made"
fi

title "Building the system tests"
program=$(scripts/cargo.sh test --locked --features multicall --test system --no-run --message-format=json 2>/dev/null |
    python3 -c 'import json, sys
for line in sys.stdin:
    of = json.loads(line)
    if of.get("executable") and of["target"]["name"] == "system":
        print(of["executable"])')
[ -n "$program" ] || fail "the system tests could not be built" "scripts/cargo.sh test --locked --features multicall --test system --no-run"

[ $# -gt 0 ] || set -- crun runc
for runtime; do
    title "System tests on Debian $release with $runtime"
    unshare --mount --pid --uts --ipc --fork --kill-child "$0" --inside "$system" "$program" "$runtime"
done
