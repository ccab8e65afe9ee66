#!/usr/bin/env bash
# Boots a Debian with its own systemd in a container (systemd-nspawn), installs the packages of `./justw release deb` there and
# plays tests/systemd/guest.sh: a real service manager, a real podman. The system is made once into the cache folder
# (600 MB), a run works on a copy. Without network; as fast as the machine.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

[ "$(id -u)" -eq 0 ] || fail "device systemd boots a system, which needs root" "run it as root"
grep -q ' cgroup2 ' /proc/self/mounts ||
    fail "device systemd needs cgroup2, which is not mounted here" "mount -t cgroup2 none /sys/fs/cgroup/unified"
missing=()
have debootstrap || missing+=(debootstrap)
have systemd-nspawn || missing+=(systemd-container)
[ "${#missing[@]}" -eq 0 ] || install_packages "${missing[@]}"

recipe=3 # Counts up when the system below changes.
system=$cache/systemd-test/system-$recipe
work=$target/systemd-test
if [ ! -e "$system/made" ]; then
    title "Making the system to boot"
    rm -rf "$cache"/systemd-test/system-*
    mkdir -p "$cache/systemd-test"
    debootstrap --variant=minbase \
        --include=systemd,systemd-sysv,dbus,podman,runc,netavark,aardvark-dns,iptables,catatonit,busybox-static,procps \
        bookworm "$system" >"$cache/systemd-test/debootstrap.log" 2>&1 ||
        fail "debootstrap failed" "see $cache/systemd-test/debootstrap.log"
    cat >"$system/etc/systemd/system/systemd-test.service" <<END
[Unit]
Description=The test
[Service]
Type=oneshot
ExecStart=/bin/bash /mnt/guest.sh
ExecStopPost=/bin/systemctl poweroff --no-block
StandardOutput=append:/mnt/console.log
StandardError=append:/mnt/console.log
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
END
    ln -s ../systemd-test.service "$system/etc/systemd/system/multi-user.target.wants/"
    rm -f "$system"/etc/systemd/system/timers.target.wants/*
    touch "$system/made"
fi

[ -n "$(ls target/debian/*.deb 2>/dev/null)" ] || scripts/release-deb.sh
# The switch that freezes threads is only in builds for tests.
scripts/cargo.sh build --quiet --locked --features multicall --bins --test tidy

rm -rf "$work"
mkdir -p "$work/disk"
trap 'rm -rf "$work/root"' EXIT
cp -a "$system" "$work/root"
cp target/debian/*.deb "$target/debug/ank-agent" "$target/debug/ank-server" tests/systemd/{guest,checks}.sh "$work/disk"
strip "$work/disk/ank-agent" "$work/disk/ank-server"
# install.sh reads files of the repository.
mkdir "$work/disk/repository"
cp -r cross "$work/disk/repository"

title "Booting"
# The payload gets a cgroup2 of its own on any machine, and the system calls and capabilities that runc needs.
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 timeout 900 systemd-nspawn --quiet --keep-unit --register=no --private-network \
    --capability=all --system-call-filter="@keyring bpf" --bind="$work/disk:/mnt" --directory="$work/root" --boot \
    </dev/null >"$work/boot.log" 2>&1 || true
grep -q '^GUEST: ' "$work/disk/console.log" 2>/dev/null || fail "the system did not boot" "see $work/boot.log"
sed -n 's/^GUEST: //p' "$work/disk/console.log"
grep -qE '^GUEST: [0-9]+ passed, 0 failed$' "$work/disk/console.log" || fail "it has failed" "see $work/disk/console.log"
