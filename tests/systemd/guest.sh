#!/usr/bin/env bash
# Runs as root in the booted system (tests/scripts/systemd-test.sh): installs the packages, lets systemd supervise server and agent, breaks
# both, removes the packages. /mnt has the packages and the programs of a build for tests.
set -uo pipefail
export LC_ALL=C HOME=/root
exec 2>&1

passed=0 failed=0
say() { printf 'GUEST: %s\n' "$*"; }
check() { # TEXT COMMAND...
    local text=$1 output
    shift
    if output=$("$@" 2>&1); then
        passed=$((passed + 1))
        say "ok: $text"
    else
        failed=$((failed + 1))
        say "FAILED: $text: ${output:0:600}"
    fi
}
# Waits for a condition, up to SECONDS.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { "$@"; return 1; }
        sleep 0.5
    done
}
not() { ! "$@"; }
show() { systemctl show --value --property "$2" "$1"; }
is() { [ "$(show "$1" "$2")" = "$3" ] || { show "$1" "$2"; return 1; }; }
status_has() { show "$1" StatusText | grep -F "$2" || { show "$1" StatusText; return 1; }; }
running() { ank get workloads | grep -E "^$1 +agent_A +podman +Running" || { ank get workloads; return 1; }; }
all_running() { running web && running db; }
# Pids of the containers: the same before and after means that nobody touched them.
containers() { podman ps --format '{{.Names}} {{.Pid}}' | sort; }
untouched() { [ "$(containers)" = "$before" ] || { echo "before: $before; now: $(containers)"; return 1; }; }
restarted_by_watchdog() { # UNIT, RESTARTS BEFORE
    [ "$(show "$1" NRestarts)" -gt "$2" ] && [ "$(show "$1" ActiveState)" = active ] &&
        journalctl --unit "$1" --no-pager | grep -q 'Watchdog timeout'
}

cat >/etc/containers/containers.conf <<'END'
[containers]
netns = "none"
pids_limit = 0
[engine]
runtime = "runc"
END
mkdir -p /tmp/image/bin
cp /bin/busybox /tmp/image/bin
for applet in sh sleep; do ln -s busybox "/tmp/image/bin/$applet"; done
tar -C /tmp/image -c . | podman --log-level error import --quiet - docker.io/library/alpine:latest >/dev/null || say "no image"
say "$(systemctl --version | head -n 1), $(podman --version), kernel $(uname -r)"

say "--- installation"
check "packages can be installed" dpkg --install /mnt/ank-server_*.deb /mnt/ank-agent_*.deb /mnt/ank_*.deb
for unit in ank-server ank-agent; do
    check "installing alone does not start $unit" is "$unit" ActiveState inactive
    check "installing alone does not enable $unit" [ "$(systemctl is-enabled "$unit")" = disabled ]
    check "the unit of $unit is clean" systemd-analyze verify --man=no "/usr/lib/systemd/system/$unit.service"
done
check "there is a user for the server" getent passwd ankaios
check "pages of the manual are there" [ -e /usr/share/man/man1/ank-apply.1.gz ]

say "--- both services"
cat >/etc/ankaios/state.yaml <<'END'
apiVersion: v1
workloads:
  web:
    runtime: podman
    agent: agent_A
    restartPolicy: ALWAYS
    runtimeConfig: |
      image: docker.io/library/alpine:latest
      commandArgs: ["sleep", "100000"]
END
check "enable --now answers when both are ready" systemctl enable --now ank-server ank-agent
for unit in ank-server ank-agent; do
    check "$unit is active" is "$unit" ActiveState active
    check "$unit notifies" is "$unit" Type notify
    check "$unit has its watchdog" is "$unit" WatchdogUSec 10s
done
check "the server serves the agent" within 60 status_has ank-server "1 agent connected; 1 workload"
check "the agent runs the startup manifest" within 120 status_has ank-agent "1 workload: 1 running"
sed 's/  web:/  db:/' /etc/ankaios/state.yaml >/tmp/db.yaml
check "a manifest can be applied" ank apply /tmp/db.yaml
check "both workloads run" within 120 all_running
say "server: $(show ank-server StatusText)"
say "agent: $(show ank-agent StatusText)"
useradd --groups ankaios member
useradd stranger
check "a member of the group commands" runuser -u member -- ank get agents
check "others do not" not runuser -u stranger -- ank get agents
check "nothing listens on the network" not grep -q ' 0A ' <(tail -n +2 /proc/net/tcp /proc/net/tcp6 | awk '{ print " " $4 " " }')
before=$(containers)
say "containers: $(echo "$before" | tr '\n' ' ')"
monitor=$(pgrep -o conmon)
check "conmon is not told where the manager listens" not grep -qz '^NOTIFY_SOCKET\|^WATCHDOG' "/proc/$monitor/environ"
check "conmon is outside of the agent's unit" not grep -q ank-agent "/proc/$monitor/cgroup"
workload=$(echo "$before" | head -n 1 | cut -d ' ' -f 2)
if grep -qx -- -900 "/proc/$(show ank-agent MainPID)/oom_score_adj"; then
    say "the agent is the last that a lack of memory hits"
else
    say "not shown: this machine gives systemd no right to protect the agent from a lack of memory"
fi
check "workloads are not protected like the agent" grep -qx 0 "/proc/$workload/oom_score_adj"
say "limits of a workload: $(grep -E 'core|open files' "/proc/$workload/limits" | tr -s ' ' | tr '\n' ';')"

say "--- restarts"
check "the agent restarts" systemctl restart ank-agent
check "it has adopted its workloads" within 120 status_has ank-agent "2 workloads: 2 running"
check "its containers are untouched" untouched
kill -KILL "$(show ank-server MainPID)"
check "a killed server comes back" within 60 is ank-server NRestarts 1
check "it knows what was applied" within 120 status_has ank-server "1 agent connected; 2 workloads"
check "both workloads still run" within 120 all_running
check "the containers are untouched" untouched

say "--- frozen threads (programs of a build for tests)"
mkdir -p /run/freeze
chmod 777 /run/freeze
cp /mnt/ank-agent /mnt/ank-server /opt
for unit in ank-server ank-agent; do
    mkdir -p "/run/systemd/system/$unit.service.d"
    printf '[Service]\nExecStart=\nExecStart=/opt/%s\nEnvironment=ANKAIOS_TEST_FREEZE=/run/freeze\nReadWritePaths=/run/freeze\n' \
        "$unit" >"/run/systemd/system/$unit.service.d/freeze.conf"
done
# A mount namespace is what the agent's unit must not have.
sed -i /ReadWritePaths/d /run/systemd/system/ank-agent.service.d/freeze.conf
systemctl daemon-reload
systemctl restart ank-server ank-agent
check "the agent of the test has adopted its workloads" within 120 status_has ank-agent "2 workloads: 2 running"
count=$(show ank-agent NRestarts)
touch /run/freeze/scheduler
check "a frozen scheduler is killed by the watchdog and the agent restarted" within 120 restarted_by_watchdog ank-agent "$count"
say "$(journalctl --unit ank-agent --no-pager --output cat | grep -E 'frozen|Waiting for the thread|Watchdog timeout|Main process exited' | tail -n 4 | tr '\n' '|')"
check "the next agent has adopted its workloads" within 120 status_has ank-agent "2 workloads: 2 running"
check "the containers are untouched" untouched
count=$(show ank-server NRestarts)
touch /run/freeze/server && chown ankaios /run/freeze/server
check "a frozen server is killed by the watchdog and restarted" within 120 restarted_by_watchdog ank-server "$count"
check "it knows what was applied" within 120 status_has ank-server "1 agent connected; 2 workloads"
check "both workloads still run" within 120 all_running
check "the containers are untouched" untouched
check "no core file was written" [ -z "$(find / -xdev -name 'core*' -type f -size +100k -newer /run/freeze 2>/dev/null)" ]
rm -r /run/systemd/system/ank-*.service.d
systemctl daemon-reload

say "--- an upgrade"
echo '# by the user' >>/etc/ankaios/ank-agent.conf
check "the packages can be installed over themselves" dpkg --install --force-confold /mnt/ank-server_*.deb /mnt/ank-agent_*.deb /mnt/ank_*.deb
check "the settings of the user are kept" grep -q 'by the user' /etc/ankaios/ank-agent.conf
check "the new agent has adopted its workloads" within 120 status_has ank-agent "2 workloads: 2 running"
check "the agent is that of the package" [ "$(readlink "/proc/$(show ank-agent MainPID)/exe")" = /usr/bin/ank-agent ]
check "the containers are untouched" untouched

say "--- exposure"
for unit in ank-server ank-agent; do
    say "$(systemd-analyze security --no-pager "$unit.service" | tail -n 1)"
done

say "--- removal"
check "a stopped agent leaves its workloads alone" systemctl stop ank-agent
check "the containers are untouched" untouched
check "it ends in order" is ank-agent Result success
check "the packages can be purged" dpkg --purge ank ank-agent ank-server
check "nothing of them is left" [ -z "$(find /etc/ankaios /usr/bin/ank* /var/lib/ankaios /usr/lib/systemd/system/ank-* /etc/systemd/system/*/ank-* 2>/dev/null)" ]
check "the containers are untouched" untouched
say "$passed passed, $failed failed"
sync
