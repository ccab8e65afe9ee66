#!/usr/bin/env bash
# Starts a server and two agents on real podman, applies tests/demo/storage.yaml, shows the states that the
# workloads went through and checks their order, then leaves the cluster running to play with.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/tests/scripts/engine.sh"
. "$root/tests/scripts/cluster.sh"

demo=$cache/demo
manifest=tests/demo/storage.yaml
cd "$root"

bin=$(program_folder)
ank=$bin/ank

[ ! -d "$demo" ] || tests/scripts/demo-stop.sh
mkdir -p "$demo"

recorder=
# Whatever goes wrong below: no process of ours outlives a demo that did not get to its end.
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

# Every change of a state, as `ank` sees it: microseconds, workload, state.
states=$demo/states
record() {
    local name state line
    local -A last=()
    while IFS= read -r line; do
        [[ $line =~ ^([a-zA-Z0-9_-]+)\ .*\ ([A-Z][A-Za-z]+\([A-Za-z]+\)|AgentDisconnected|NotScheduled|Removed)\  ]] || continue
        name=${BASH_REMATCH[1]} state=${BASH_REMATCH[2]}
        [ "${last[$name]-}" != "$state" ] || continue
        last[$name]=$state
        printf '%s\t%s\t%s\n' "$(now_us)" "$name" "$state"
    done
}
: >"$states"
mkfifo "$demo/frames"
record <"$demo/frames" >>"$states" &
"$ank" get workloads -w >"$demo/frames" 2>>"$demo/watch.log" &
recorder=$!

title "ank apply $manifest"
started=$(now_us)
"$ank" apply "$manifest"

settled() {
    grep -q $'\tlogger\tSucceeded(Ok)' "$states" && grep -q $'\tinit_storage\tSucceeded(Ok)' "$states" &&
        grep -q $'\tstorage_provider\tFailed(ExecFailed)' "$states" && grep -q $'\terror_handler\tSucceeded(Ok)' "$states"
}
wait_until 60 settled || warn "not every workload came to its end within 60 s"
kill "$recorder" 2>/dev/null || true
recorder=

title 'What happened'
while IFS=$'\t' read -r at name state; do
    case $state in
        Running* | Succeeded*) colour=$green ;;
        Failed*) colour=$red ;;
        *) colour=$dim ;;
    esac
    since=$((at > started ? (at - started) / 10000 : 0))
    printf '%3d.%02d s   %-18s%s%s%s\n' $((since / 100)) $((since % 100)) "$name" "$colour" "$state" "$plain"
done <"$states"

# first WORKLOAD PATTERN: time of the first state that matches, or nothing.
first() { awk -F '\t' -v name="$1" -v pattern="$2" '$2 == name && $3 ~ pattern { print $1; exit }' "$states"; }
failures=0
# in_order TEXT EARLIER LATER: two times, both there and in this order.
in_order() {
    if [ -n "$2" ] && [ -n "$3" ] && [ "$2" -le "$3" ]; then
        printf '%s ok %s %s\n' "$green" "$plain" "$1"
    else
        printf '%s NO %s %s\n' "$red" "$plain" "$1"
        failures=$((failures + 1))
    fi
}
begun='^(Pending\(Starting\)|Running|Succeeded|Failed)'
title 'What the manifest asks for'
in_order 'storage_provider waited until init_storage was Succeeded(Ok)' \
    "$(first init_storage '^Succeeded\(Ok\)')" "$(first storage_provider "$begun")"
in_order 'logger started when storage_provider was Running(Ok)' \
    "$(first storage_provider '^Running\(Ok\)')" "$(first logger "$begun")"
in_order 'error_handler started only after storage_provider was Failed(ExecFailed)' \
    "$(first storage_provider '^Failed\(ExecFailed\)')" "$(first error_handler "$begun")"
[ "$failures" -eq 0 ] || exit 1

cat >"$demo/env" <<END
# Source this to talk to the demo cluster with ank, and to its containers with podman.
export ANK_SERVER_URL=$ANK_SERVER_URL ANK_INSECURE=true
export CONTAINERS_CONF=$CONTAINERS_CONF CONTAINERS_STORAGE_CONF=$CONTAINERS_STORAGE_CONF
export CONTAINERS_REGISTRIES_CONF=$CONTAINERS_REGISTRIES_CONF
export PATH="$bin:\$PATH"
END

title 'The cluster keeps running: play on'
try() { printf '  %-44s%s# %s%s\n' "$1" "$dim" "$2" "$plain"; }
try "source ${demo/#$HOME/\~}/env" 'finds ank, the server and the containers'
try 'ank get workloads' 'what runs where'
try 'ank apply tests/demo/restart_service.yaml' 'waits for error_handler, which is done'
try 'ank apply tests/demo/storage_long.yaml' 'longer sleeps, then within 20 s:'
try 'ank delete workload storage_provider' 'Stopping(WaitingToStop) until logger ends'
try 'podman ps --all' 'the containers behind it'
try './justw demo-stop' 'ends the cluster and removes everything'
