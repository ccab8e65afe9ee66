#!/usr/bin/env bash
# A device: a guest of qemu with Debian 13, its own kernel, systemd and control groups of version 2. Installs the packages
# of `./justw release deb` there and plays tests/device/guest.sh, which has its power cut twice while an update is open: qemu is
# killed, and the guest booted again from the same disk. The system is made once into the cache folder (1.5 GB), a run works
# on a copy. Without network; quick with a /dev/kvm of the machine itself, else ten minutes and more.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

[ "$(id -u)" -eq 0 ] || fail "device qemu makes a system, which needs root" "run it as root"
missing=()
have debootstrap || missing+=(debootstrap)
have qemu-system-x86_64 || missing+=(qemu-system-x86)
have mke2fs || missing+=(e2fsprogs)
[ "${#missing[@]}" -eq 0 ] || install_packages "${missing[@]}"
[ "$(uname -m)" = x86_64 ] || fail "device qemu boots a guest for x86_64" "use such a machine"

recipe=1 # Counts up when the system below changes.
system=$cache/device-test/system-$recipe
work=$target/device-test
if [ ! -e "$system.made" ]; then
    title "Making the system to boot"
    rm -rf "$cache/device-test"
    mkdir -p "$cache/device-test"
    packages=systemd,systemd-sysv,dbus,podman,crun,netavark,aardvark-dns,iptables,nftables,catatonit,busybox-static,procps
    packages+=,initramfs-tools,linux-image-cloud-amd64
    debootstrap --variant=minbase --include="$packages" trixie "$system" >"$cache/device-test/debootstrap.log" 2>&1 ||
        fail "debootstrap failed" "see $cache/device-test/debootstrap.log"
    # A small initramfs that knows the disk and the console, whatever machine made it.
    printf 'MODULES=most\nCOMPRESS=zstd\n' >"$system/etc/initramfs-tools/conf.d/device"
    ls "$system"/boot/initrd.img-* >/dev/null 2>&1 || chroot "$system" update-initramfs -c -k all
    cat >"$system/etc/systemd/system/device-test.service" <<'END'
[Unit]
Description=The test
After=multi-user.target
[Service]
Type=idle
ExecStart=/bin/bash /opt/device/guest.sh
StandardOutput=file:/dev/ttyS0
StandardError=file:/dev/ttyS0
TimeoutStartSec=infinity
[Install]
WantedBy=multi-user.target
END
    ln -s ../device-test.service "$system/etc/systemd/system/multi-user.target.wants/"
    rm -f "$system"/etc/systemd/system/timers.target.wants/*
    ln -sf /dev/null "$system/etc/systemd/system/serial-getty@ttyS0.service"
    printf '/dev/vda / ext4 defaults 0 1\n' >"$system/etc/fstab"
    printf 'device\n' >"$system/etc/hostname"
    rm -rf "$system"/var/cache/apt/archives/*.deb
    touch "$system.made"
fi

[ -n "$(ls target/debian/*.deb 2>/dev/null)" ] || scripts/release-deb.sh
rm -rf "$work"
mkdir -p "$work"
qemu=
trap '[ -z "$qemu" ] || kill -KILL "$qemu" 2>/dev/null; rm -f "$work/disk.img"' EXIT
rm -rf "$system/opt/device"
mkdir -p "$system/opt/device"
cp target/debian/*.deb tests/device/guest.sh tests/systemd/checks.sh "$system/opt/device"
mke2fs -q -t ext4 -d "$system" "$work/disk.img" 4G
console=$work/console.log
: >"$console"

# On a machine that is a guest itself, /dev/kvm may stop a kernel that unpacks itself ("KVM internal error"), so it is
# not used there. ANKAIOS_DEVICE_ACCEL says otherwise: kvm or tcg.
acceleration=${ANKAIOS_DEVICE_ACCEL:-tcg}
[ -n "${ANKAIOS_DEVICE_ACCEL-}" ] || [ ! -w /dev/kvm ] || grep -q '^flags.* hypervisor' /proc/cpuinfo || acceleration=kvm

# boot: starts the guest, whose console is added to the log.
boot() {
    qemu-system-x86_64 -accel "$acceleration" -cpu max -machine q35 -smp 2 -m 1024 -nographic -nodefaults -no-reboot \
        -kernel "$(echo "$system"/boot/vmlinuz-*)" -initrd "$(echo "$system"/boot/initrd.img-*)" \
        -append "root=/dev/vda rw console=ttyS0 quiet panic=-1 systemd.show_status=0" \
        -drive "file=$work/disk.img,format=raw,if=virtio,cache=writethrough" \
        -device virtio-rng-pci -chardev "file,id=console,path=$console,append=on" -serial chardev:console </dev/null >"$work/qemu.log" 2>&1 &
    qemu=$!
}
ended() {
    # A guest that kvm has given up hangs.
    ! grep -q 'KVM internal error' "$work/qemu.log" || kill -KILL "$qemu" 2>/dev/null
    ! kill -0 "$qemu" 2>/dev/null
}
printed() { [ "$(grep -c "^GUEST: $1" "$console")" -ge "$2" ] || ended; }

for cut in 1 2; do
    title "Boot $cut"
    boot
    wait_until 900 printed "cut the power" "$cut" || fail "the guest hangs" "see $console"
    ! ended || fail "the guest ended by itself" "see $console and $work/qemu.log"
    kill -KILL "$qemu"
    wait "$qemu" 2>/dev/null || true
    printf 'The power is cut.\n' >>"$console"
done
title "Boot 3"
boot
wait_until 900 printed "the end" 1 || fail "the guest hangs" "see $console"
wait_until 120 ended || fail "the guest does not power off" "see $console"
qemu=
sed -n 's/\r$//; s/^GUEST: //p' "$console"
[ "$(grep -c '^GUEST: [0-9]* passed, 0 failed' "$console")" -eq 3 ] || fail "it has failed" "see $console"
