#!/usr/bin/env bash
# Boots a Debian in qemu, installs the packages of `just deb` there and plays tests/systemd/guest.sh as root: a real
# systemd, a real podman. The system is made once into the cache folder (600 MB) and never changed by a run.
#
# Needs root for debootstrap. Without hardware virtualisation qemu emulates, which takes some minutes.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

skip() {
    printf 'systemd-test: skipped: %s\n' "$1"
    exit 0
}
[ "$(uname -m)" = x86_64 ] || skip "the system that is booted is x86_64"
[ "$(id -u)" -eq 0 ] || skip "debootstrap needs root"
for program in debootstrap qemu-system-x86_64 mke2fs; do
    have "$program" || skip "'$program' is not installed (apt-get install debootstrap qemu-system-x86 e2fsprogs)"
done

recipe=1 # Counts up when the system below changes.
system=$cache/systemd-test/system-$recipe
work=$target/systemd-test
if [ ! -e "$system/made" ]; then
    title "Making the system to boot"
    rm -rf "$cache"/systemd-test/system-*
    mkdir -p "$cache/systemd-test"
    debootstrap --variant=minbase \
        --include=systemd,systemd-sysv,dbus,udev,kmod,podman,runc,netavark,catatonit,busybox-static,linux-image-cloud-amd64,iproute2,procps,ca-certificates \
        bookworm "$system" >"$cache/systemd-test/debootstrap.log" 2>&1 ||
        fail "debootstrap failed" "see $cache/systemd-test/debootstrap.log"
    cat >"$system/etc/systemd/system/systemd-test.service" <<END
[Unit]
Description=The test
[Service]
Type=oneshot
ExecStart=/bin/sh -c 'mount /dev/vdb /mnt && /bin/bash /mnt/guest.sh'
ExecStopPost=/sbin/poweroff -f
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
END
    mkdir -p "$system/etc/systemd/system/multi-user.target.wants"
    ln -s ../systemd-test.service "$system/etc/systemd/system/multi-user.target.wants/"
    # Only delays the start.
    rm -f "$system"/etc/systemd/system/timers.target.wants/*
    touch "$system/made"
fi

[ -n "$(ls target/debian/*.deb 2>/dev/null)" ] || tests/scripts/deb.sh
# The switch that freezes threads is only in builds for tests.
tests/scripts/cargo.sh build --quiet --locked --bins

rm -rf "$work"
mkdir -p "$work/disk"
cp target/debian/*.deb "$target/debug/ank-agent" "$target/debug/ank-server" tests/systemd/guest.sh "$work/disk"
strip "$work/disk/ank-agent" "$work/disk/ank-server"
mke2fs -q -t ext4 -d "$system" "$work/root.img" 3G
mke2fs -q -t ext4 -d "$work/disk" "$work/disk.img" 200M

if grep -qE '^flags.* (vmx|svm)( |$)' /proc/cpuinfo && [ -w /dev/kvm ]; then
    accelerator=(-accel kvm -cpu host)
else
    accelerator=(-accel "tcg,thread=multi" -cpu max)
fi
title "Booting (${accelerator[1]})"
timeout "${ANKAIOS_SYSTEMD_TEST_LIMIT:-1500}" qemu-system-x86_64 "${accelerator[@]}" -m 1536 -smp 2 -nographic -no-reboot \
    -kernel "$system/vmlinuz" -initrd "$system/initrd.img" \
    -append "root=/dev/vda rw console=ttyS0 panic=-1 quiet systemd.show_status=0 loglevel=3" \
    -drive "file=$work/root.img,if=virtio,format=raw,cache=unsafe" -drive "file=$work/disk.img,if=virtio,format=raw" \
    </dev/null >"$work/console.log" 2>&1 || true
rm -f "$work/root.img" "$work/disk.img"
tr -d '\r' <"$work/console.log" | sed -n 's/^.*GUEST: //p'
grep -qE 'GUEST: [0-9]+ passed, 0 failed' "$work/console.log" ||
    fail "the test in the booted system failed or did not come to its end" "see $work/console.log"
