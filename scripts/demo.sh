#!/usr/bin/env bash
# Starts a server and two agents on real podman, runs the storage example of scripts/demo in three acts, prints the
# states of the workloads, checks their order, and leaves the cluster running for experiments. `demo.sh stop` stops that
# cluster and removes its containers, images and files.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/engine.sh"
. "$root/scripts/cluster.sh"

demo=$cache/demo
manifest=scripts/demo/storage.yaml
cd "$root"

stop_demo() {
    if [ ! -d "$demo" ]; then
        printf 'demo: nothing to stop\n'
        return
    fi
    cluster_stop "$demo"
    engine_remove "$demo/engine"
    rm -rf "$demo"
    printf 'demo: stopped, its containers and files are removed\n'
}
case "$*" in
    '') ;;
    stop)
        stop_demo
        exit 0
        ;;
    *) fail "the demo knows no '$*'" './justw demo, or ./justw demo stop' ;;
esac

bin=$(program_folder)
ank=$bin/ank

[ ! -d "$demo" ] || stop_demo
mkdir -p "$demo"

recorder=
# A demo that ends early leaves no process behind.
give_up() {
    local code=$?
    [ -z "$recorder" ] || kill "$recorder" 2>/dev/null || true
    [ "$code" -eq 0 ] || { cluster_stop "$demo"; engine_remove "$demo/engine"; warn "demo ended early; logs are in '$demo'"; }
}
trap give_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

title 'Starting ank-server, agent_A and agent_B on podman'
engine_create "$demo/engine"
cluster_start "$demo" "$bin" agent_A agent_B
printf 'server  %s (no TLS, loopback only)\n' "$ANK_SERVER_URL"
printf 'agents  agent_A, agent_B\n'
printf 'podman  %s, containers and images in %s\n' "$(podman --version | cut -d ' ' -f 3)" "${demo/#$HOME/\~}/engine"

# Every change of a state, as `ank` sees it: microseconds, workload, state. All rows of one table have one time.
states=$demo/states
# The first state of a line applies: the text about dependencies may have more.
row='^([a-zA-Z0-9_-]+) [^(]* ([A-Z][A-Za-z]+\([A-Za-z]+\)|AgentDisconnected|NotScheduled|Removed) '
record() {
    local name state line at=0
    local -A last=()
    while IFS= read -r line; do
        [[ $line != 'WORKLOAD NAME '* ]] || at=$(now_us)
        [[ $line =~ $row ]] || continue
        name=${BASH_REMATCH[1]} state=${BASH_REMATCH[2]}
        [ "${last[$name]-}" != "$state" ] || continue
        last[$name]=$state
        printf '%s\t%s\t%s\n' "$at" "$name" "$state"
    done
}
: >"$states"
mkfifo "$demo/frames"
record <"$demo/frames" >>"$states" &
"$ank" get workloads -w >"$demo/frames" 2>>"$demo/watch.log" &
recorder=$!

# Begins the records of an act.
from_here() { from=$(($(wc -l <"$states") + 1)) started=$(now_us); }
act() {
    title "$1"
    from_here
}
# shown COMMAND ARGUMENT...: prints the command as typed, then runs it.
shown() {
    printf '%s$ ank %s%s\n' "$dim" "$*" "$plain"
    "$ank" "$@"
}
recorded() { tail -n "+$from" "$states"; }
# reached WORKLOAD STATE...: returns whether each workload has been in its state during this act.
reached() {
    while [ $# -gt 0 ]; do
        recorded | grep -F "$(printf '\t%s\t%s' "$1" "$2")" >/dev/null || return 1
        shift 2
    done
}
happened() {
    local at name state colour since
    printf '\nWhat happened:\n'
    while IFS=$'\t' read -r at name state; do
        case $state in
            Running* | Succeeded*) colour=$green ;;
            Failed*) colour=$red ;;
            *) colour=$dim ;;
        esac
        since=$((at > started ? (at - started) / 10000 : 0))
        printf '%3d.%02d s   %-18s%s%s%s\n' $((since / 100)) $((since % 100)) "$name" "$colour" "$state" "$plain"
    done < <(recorded)
}

# first WORKLOAD PATTERN: time of the first state of this act that matches, or nothing.
# Through the environment: gawk removes backslashes from values of -v.
first() { recorded | name=$1 pattern=$2 awk -F '\t' '!done && $2 == ENVIRON["name"] && $3 ~ ENVIRON["pattern"] { print $1; done = 1 }'; }
failures=0
# in_order TEXT TIME...: checks that all times are there, and in this order.
in_order() {
    local text=$1 mark=ok colour=$green before=0 at
    shift
    for at; do
        [ -n "$at" ] && [ "$at" -ge "$before" ] && before=$at && continue
        mark=NO colour=$red failures=$((failures + 1))
        break
    done
    printf '%s %s %s %s\n' "$colour" "$mark" "$plain" "$text"
}
begun='^(Pending\(Starting\)|Running|Succeeded|Failed)'
waiting='^Pending\(WaitingToStart\)'

act '1. Workloads that wait for each other, also across agents'
printf 'storage_provider fails on purpose: error_handler waits for that.\n'
shown apply "$manifest"
wait_until 60 reached logger 'Succeeded(Ok)' init_storage 'Succeeded(Ok)' \
    storage_provider 'Failed(ExecFailed)' error_handler 'Succeeded(Ok)' || warn "not every workload came to its end within 60 s"
happened
in_order 'storage_provider waited until init_storage was Succeeded(Ok)' "$(first storage_provider "$waiting")" \
    "$(first init_storage '^Succeeded\(Ok\)')" "$(first storage_provider "$begun")"
in_order 'logger started when storage_provider was Running(Ok)' "$(first logger "$waiting")" \
    "$(first storage_provider '^Running\(Ok\)')" "$(first logger "$begun")"
in_order 'error_handler started only after storage_provider was Failed(ExecFailed)' "$(first error_handler "$waiting")" \
    "$(first storage_provider '^Failed\(ExecFailed\)')" "$(first error_handler "$begun")"

act '2. A workload that waits for one that does not exist yet'
shown --quiet delete workload error_handler
shown --no-wait apply scripts/demo/restart_service.yaml
wait_until 10 reached restart_service 'Pending(WaitingToStart)' || warn 'restart_service does not wait'
shown graph restart_service
printf 'error_handler comes back with the manifest:\n'
shown --quiet apply "$manifest"
wait_until 60 reached restart_service 'Succeeded(Ok)' || warn 'restart_service did not end within 60 s'
happened
in_order 'restart_service waited until error_handler was Succeeded(Ok)' "$(first restart_service "$waiting")" \
    "$(first error_handler '^Succeeded\(Ok\)')" "$(first restart_service "$begun")"

act '3. Deleting a workload while another one needs it'
shown --quiet apply scripts/demo/storage_long.yaml
wait_until 20 reached storage_provider 'Running(Ok)' logger 'Running(Ok)' || warn 'logger and storage_provider do not run'
from_here # While both are replaced, the old and the new one have the same name.
shown delete workload storage_provider
wait_until 10 reached logger 'Succeeded(Ok)' storage_provider 'Stopping(RequestedAtRuntime)' || warn 'storage_provider was not stopped'
happened
in_order 'storage_provider waited as Stopping(WaitingToStop) until logger had ended' \
    "$(first storage_provider '^Stopping\(WaitingToStop\)')" "$(first logger '^Succeeded\(Ok\)')" \
    "$(first storage_provider '^Stopping\(RequestedAtRuntime\)')"

kill "$recorder" 2>/dev/null || true
recorder=
[ "$failures" -eq 0 ] || fail "$failures of these did not hold"

cat >"$demo/env" <<END
# Source this to use the demo cluster with ank, and to its containers with podman.
export ANK_SERVER_URL=$ANK_SERVER_URL ANK_INSECURE=true
export CONTAINERS_CONF=$CONTAINERS_CONF CONTAINERS_STORAGE_CONF=$CONTAINERS_STORAGE_CONF
export CONTAINERS_REGISTRIES_CONF=$CONTAINERS_REGISTRIES_CONF
export PATH="$bin:\$PATH"
END

title 'The cluster keeps running: try these'
try() { printf '  %-44s%s# %s%s\n' "$1" "$dim" "$2" "$plain"; }
try "source ${demo/#$HOME/\~}/env" 'sets the paths of ank, the server and the containers'
try 'ank get workloads' 'the workloads and their states'
try 'ank apply scripts/demo/storage_long.yaml' 'a logger that ends after 10 s and its storage'
try 'ank delete workload storage_provider' 'waits until logger has ended'
try 'podman ps --all' 'the containers behind it'
try './justw demo stop' 'ends the cluster and removes everything'
