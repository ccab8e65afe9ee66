#!/usr/bin/env bash
# Runs as root in the booted system (scripts/device-systemd.sh): installs the packages, lets systemd supervise server
# and agent, breaks both, removes the packages, and repeats this with install.sh and with the init scripts. /mnt has the
# packages, the programs of a build for tests, and the files of the repository that install.sh reads.
set -uo pipefail
export LC_ALL=C HOME=/root
exec 2>&1

. "$(dirname -- "${BASH_SOURCE[0]}")/checks.sh"

not() { ! "$@"; }
show() { systemctl show --value --property "$2" "$1"; }
is() { [ "$(show "$1" "$2")" = "$3" ] || { show "$1" "$2"; return 1; }; }
status_has() { show "$1" StatusText | grep -F "$2" || { show "$1" StatusText; return 1; }; }
running() { ank get workloads | grep -E "^$1 +agent_A +podman +Running" || { ank get workloads; return 1; }; }
all_running() { running web && running db; }
# Pids of the containers: the same before and after means that they were left alone.
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
check "there is a folder for certificates" [ "$(stat -c '%a %U' /etc/ankaios/certs)" = "755 root" ]
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
cp /etc/ankaios/state.yaml /tmp/web.yaml
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
useradd other
check "a member of the group commands" runuser -u member -- ank get agents
check "others do not" not runuser -u other -- ank get agents
check "nothing listens on the network" not grep -q ' 0A ' <(tail -n +2 /proc/net/tcp /proc/net/tcp6 | awk '{ print " " $4 " " }')
before=$(containers)
say "containers: $(echo "$before" | tr '\n' ' ')"
monitor=$(pgrep -o conmon)
check "conmon does not get the socket of the manager" not grep -qz '^NOTIFY_SOCKET\|^WATCHDOG' "/proc/$monitor/environ"
check "conmon is outside of the agent's unit" not grep -q ank-agent "/proc/$monitor/cgroup"
workload=$(echo "$before" | head -n 1 | cut -d ' ' -f 2)
if grep -qx -- -900 "/proc/$(show ank-agent MainPID)/oom_score_adj"; then
    say "the agent is protected from a lack of memory"
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
check "it has the applied workloads" within 120 status_has ank-server "1 agent connected; 2 workloads"
check "both workloads still run" within 120 all_running
check "the containers are untouched" untouched

say "--- a workload and a user that attack"
# `flood` requests the state of 500 workloads without end and reads no response.
{
    cat <<'END'
apiVersion: v1
workloads:
  flood:
    runtime: podman
    agent: agent_A
    controlInterfaceAccess:
      allowRules:
        - {type: StateRule, operation: ReadWrite, filterMasks: ["*"]}
    runtimeConfig: |
      image: docker.io/library/alpine:latest
      commandOptions: ["--user", "1000"]
      commandArgs:
        - sh
        - -c
        - |
          {
              printf '\011\012\007\022\005\061\056\061\056\060'
              while :; do printf '\007\032\005\012\001\170\032\000'; done
          } >/run/ankaios/control_interface/output
END
    for number in $(seq 498); do
        printf '  stored_%s: {runtime: podman, agent: nobody, runtimeConfig: "image: registry.example/stored:1.2.3"}\n' "$number"
    done
} >/tmp/attack.yaml
from=$(date '+%F %T')
check "the attacker can be applied" ank apply --no-wait /tmp/attack.yaml
check "it runs" within 60 running flood
check "it is connected" within 20 sh -c "journalctl --unit ank-agent --since '$from' | grep -q 'connection established.*flood'"
sleep 20
check "it still runs" running flood
check "others are served" timeout 5 ank get workloads
own_memory() { awk '$1 == "RssAnon:" { print $2 }' "/proc/$(show "$1" MainPID)/status"; }
for unit in ank-server ank-agent; do
    say "own memory of $unit: $(own_memory "$unit") KiB"
    check "$unit stays below 60 MiB" [ "$(own_memory "$unit")" -lt 61440 ]
done
check "the agent stays connected" not sh -c "journalctl --unit ank-server --since '$from' | grep -F \"connection of 'agent_A'\""
check "another user sees no pipes" not runuser -u other -- ls /run/ankaios-agent
pipe=$(echo /run/ankaios-agent/agent_A_io/flood*/control_interface/output)
check "the pipe is there" [ -p "$pipe" ]
check "another user does not open it" not runuser -u other -- sh -c ": >$pipe"
check "nor adds a folder" not runuser -u other -- mkdir /run/ankaios-agent/agent_A_io/more
check "the attack can be deleted" ank apply -d /tmp/attack.yaml
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
check "it has the applied workloads" within 120 status_has ank-server "1 agent connected; 2 workloads"
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
say "--- install.sh, with systemd"
for package in /mnt/*.deb; do dpkg-deb --extract "$package" /opt/from; done
install_sh() { /mnt/repository/cross/package/install.sh --from /opt/from/usr/bin "$@"; }
both() { # A startup manifest with the workloads that still run.
    cat /tmp/web.yaml
    sed -n '/^  db:/,$p' /tmp/db.yaml
}
check "it installs" install_sh
check "there is a folder for certificates" [ "$(stat -c '%a %U' /etc/ankaios/certs)" = "755 root" ]
check "it starts nothing" is ank-agent ActiveState inactive
both >/etc/ankaios/state.yaml
echo '# by the user' >>/etc/ankaios/ank-agent.conf
check "enable --now starts the installed programs" systemctl enable --now ank-server ank-agent
check "the agent is the one in /usr/local" [ "$(readlink "/proc/$(show ank-agent MainPID)/exe")" = /usr/local/bin/ank-agent ]
check "it has adopted the workloads" within 120 status_has ank-agent "2 workloads: 2 running"
check "it installs over itself while both run" install_sh
check "the settings of the user are kept" grep -q 'by the user' /etc/ankaios/ank-agent.conf
printf 'apiVersion: v1\nworkloads: {}\nconfigs:\n  seen: "yes"\n' >/tmp/config.yaml
check "a manifest can be applied" ank apply /tmp/config.yaml
check "the agent restarts" systemctl restart ank-agent
check "it has adopted the workloads" within 120 status_has ank-agent "2 workloads: 2 running"
check "the containers are untouched" untouched
check "it uninstalls" /usr/local/bin/ank-uninstall.sh
check "both have ended" not pgrep -x 'ank-agent|ank-server'
find /etc /usr/local /usr/lib/sysusers.d /var/lib/ankaios '(' -name 'ank*' -o -name '_ank' -o -name state.yaml -o -name 'desired-state*' ')' \
    ! -type d ! -name '*.previous' 2>/dev/null | sort >/tmp/left
printf '%s\n' /etc/ankaios/ank-agent.conf /etc/ankaios/ank-server.conf /etc/ankaios/ank.conf /etc/ankaios/state.yaml \
    /var/lib/ankaios/desired-state.json >/tmp/left-expected
check "only settings and state are left" diff /tmp/left /tmp/left-expected
check "the containers are untouched" untouched

say "--- install.sh, with init scripts"
userdel ankaios
rm -r /var/lib/ankaios
check "it installs and makes the user" install_sh --init sysv
check "there is a user for the server" getent passwd ankaios
script() { "/etc/init.d/ank-$1" "$2"; }
says() { # TEXT, COMMAND...
    local text=$1 output
    shift
    output=$("$@" 2>&1)
    [ "$output" = "$text" ] || { echo "$output"; return 1; }
}
answers() { # CODE, COMMAND...
    local code=$1
    shift
    "$@"
    [ $? -eq "$code" ]
}
pid_of() { cat "/run/ank-$1.pid"; }
check "the server starts" says "Starting ank-server" script server start
check "the agent starts" says "Starting ank-agent" script agent start
check "both workloads run" within 120 all_running
check "the server is the user" [ "$(stat -c %U "/proc/$(pid_of server)")" = ankaios ]
check "its files are its own" [ "$(stat -c '%U %a' /var/lib/ankaios /var/log/ank-server.log | tr '\n' ' ')" = "ankaios 700 ankaios 640 " ]
say "the agent's protection from a lack of memory: $(cat "/proc/$(pid_of agent)/oom_score_adj")"
pid=$(pid_of agent)
check "a second start does nothing" says "ank-agent is running already" script agent start
check "it is the same process" [ "$(pid_of agent)" = "$pid" ]
check "the status shows it" says "ank-agent running" script agent status
check "the agent restarts" script agent restart
check "it is another process" [ "$(pid_of agent)" != "$pid" ]
check "both workloads run" within 120 all_running
kill -KILL "$(pid_of agent)"
check "the status shows that it was killed" within 10 answers 3 script agent status
echo $$ >/run/ank-agent.pid
check "it starts although its pid was given to another process" says "Starting ank-agent" script agent start
check "both workloads run" within 120 all_running
check "a manifest can be applied" ank apply /tmp/config.yaml
check "the server restarts" script server restart
check "it has the applied config" within 30 eval 'ank get configs | grep seen'
check "both workloads run" within 120 all_running
check "the agent stops" says "Stopping ank-agent" script agent stop
check "a second stop does nothing" says "ank-agent is not running" script agent stop
check "the status shows it" answers 3 script agent status
check "wrong settings are an error at once" answers 1 env ANKAGENT_NAME='no name' /etc/init.d/ank-agent start
script agent start
check "it uninstalls" /usr/local/bin/ank-uninstall.sh
check "both have ended" not pgrep -x 'ank-agent|ank-server'
check "nothing starts them again" [ -z "$(find /etc/init.d /etc/rc?.d -name '*ank-*')" ]
check "the state is left" [ -s /var/lib/ankaios/desired-state.json ]
check "the containers are untouched" untouched
say "$passed passed, $failed failed"
sync
