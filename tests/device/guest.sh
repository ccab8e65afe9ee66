#!/usr/bin/env bash
# Runs as root in the booted guest (scripts/device-qemu.sh), at each boot: the first installs the packages, starts both
# services and leaves an update open, in which the power is cut; the next ones check the result. /opt/device has the packages.
# The number of the boot is on the disk.
set -uo pipefail
export LC_ALL=C HOME=/root
exec 2>&1

# shellcheck source=../systemd/checks.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/checks.sh"

is_active() { [ "$(systemctl is-active "$1")" = active ] || { systemctl status --no-pager "$1"; return 1; }; }
running() { ank get workloads | grep -E "^$1 +agent_A +podman +Running" || { ank get workloads; return 1; }; }
is_phase() { ank get updates | grep -E "^$1 +$2 " || { ank get updates; return 1; }; }
says() { [ "$(ank logs "$1" 2>/dev/null | tail -n 1)" = "$2" ] || { ank logs "$1"; return 1; }; }
one_container() { [ "$(podman ps --format '{{.Names}}' | grep -c "^$1\.")" = 1 ] || { podman ps --all; return 1; }; }
shown_usage() { ank top 2>/dev/null | grep -E "^web +agent_A .*[0-9]" || { ank top; return 1; }; }

# web VERSION HEALTHY_MS COMMAND
web() {
    cat <<END
apiVersion: v1
workloads:
  web:
    runtime: podman
    agent: agent_A
    restartPolicy: ALWAYS
    runtimeConfig: |
      image: docker.io/library/busybox:latest
      commandArgs: ["sh", "-c", "echo version $1; $3"]
      lifecycle:
        restart: { maxRestarts: 2, backoffMs: 1000 }
        update: { healthyMs: $2, deadlineMs: 120000, onFailure: ROLLBACK }
END
}

# Asks the script outside to cut the power, after all earlier lines are on their way.
cut() {
    echo "$1" >/opt/device/stage
    sync /opt/device/stage
    say "$passed passed, $failed failed"
    say "cut the power"
    sleep 600
}

stage=$(cat /opt/device/stage 2>/dev/null || echo 0)
say "--- boot $stage: $(systemctl --version | head -n 1), $(podman --version), kernel $(uname -r)"
check "control groups are those of version 2 alone" [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]
case $stage in
    0)
        mkdir -p /tmp/image/bin
        cp /bin/busybox /tmp/image/bin
        for applet in sh sleep echo; do ln -s busybox "/tmp/image/bin/$applet"; done
        tar -C /tmp/image -c . | podman --log-level error import --quiet - docker.io/library/busybox:latest >/dev/null || say "no image"
        check "packages can be installed" dpkg --install /opt/device/ank-server_*.deb /opt/device/ank-agent_*.deb /opt/device/ank_*.deb
        web 1 1000 'sleep 1000000' >/etc/ankaios/state.yaml
        check "enable --now answers when both are ready" systemctl enable --now ank-server ank-agent
        check "the agent runs the startup manifest" within 120 running web
        check "the load of a workload is shown" within 60 shown_usage
        say "$(ank top 2>/dev/null | sed 's/$/ |/' | tr '\n' ' ')"
        # A good update whose trial lasts longer than the time until the power is cut.
        web 2 20000 'sleep 1000000' >/tmp/web-2.yaml
        check "an update can be applied" ank apply --no-wait /tmp/web-2.yaml
        check "its workload runs" within 240 says web "version 2"
        check "the update is open" within 30 is_phase 1 TRIAL
        cut 1
        ;;
    1)
        check "the server is up by itself" within 60 is_active ank-server
        check "the agent is up by itself" within 60 is_active ank-agent
        check "the update that was open is remembered" within 60 is_phase 1 '(TRIAL|GOOD)'
        check "its version runs" within 120 says web "version 2"
        check "the update is good in the end" within 180 is_phase 1 GOOD
        check "there is one container of it" one_container web
        # A bad one, which fails only after the power was cut.
        web 3 60000 'sleep 15; exit 1' >/tmp/web-3.yaml
        check "a bad update can be applied" ank apply --no-wait /tmp/web-3.yaml
        check "its workload runs" within 240 says web "version 3"
        check "the update is open" within 30 is_phase 2 TRIAL
        cut 2
        ;;
    *)
        check "the server is up by itself" within 60 is_active ank-server
        check "the agent is up by itself" within 60 is_active ank-agent
        check "the bad update is rolled back in the end" within 240 is_phase 2 UNDONE
        check "the version before runs" within 120 says web "version 2"
        check "there is one container of it" within 30 one_container web
        check "it is still version 2 that is desired" sh -c "ank get state desiredState.workloads.web | grep -q 'version 2'"
        check "no unit has failed" [ -z "$(systemctl --failed --plain --no-legend)" ]
        say "$(ank get updates | sed 's/$/ |/' | tr '\n' ' ')"
        say "$passed passed, $failed failed"
        say "the end"
        systemctl poweroff --no-block
        ;;
esac
