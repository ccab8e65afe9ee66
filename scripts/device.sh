#!/usr/bin/env bash
# Tests the packages on a booted Debian, as root: device.sh systemd, in a container (two minutes: packages, units,
# watchdog), device.sh qemu, in a guest with a kernel of its own (ten minutes: control groups 2, power cuts within updates).
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

case "$*" in
    systemd | qemu) exec "$root/scripts/device-$1.sh" ;;
    *) fail "there is no device '$*'" "./justw device systemd|qemu" ;;
esac
