# Sourced: an insecure server with agents on loopback, each with a log and a pid file in one folder. The
# programs outlive the script that starts them; cluster_stop ends them. Needs common.sh.
# shellcheck shell=bash disable=SC2154

# program_folder: where the three programs are. Release programs if they are built, else the
# development profile that the tests use, with their features and dependencies, so that a fresh machine compiles all once.
program_folder() {
    if [ -x "$target/release/ank-server" ] && [ -x "$target/release/ank-agent" ] && [ -x "$target/release/ank" ]; then
        "$root/scripts/cargo.sh" build --locked --bins --release >&2 && printf '%s/release' "$target"
    else
        "$root/scripts/cargo.sh" build --locked --features multicall --bins --test tidy >&2 && printf '%s/debug' "$target"
    fi
}

# Exit code of a script that measured more than the promise. With other codes it could not measure.
# shellcheck disable=SC2034
above_promise=3

# check_bench_settings: fails if a variable of the environment for benches has no usable value.
check_bench_settings() {
    local part
    check_number BENCH_ROUNDS "${BENCH_ROUNDS:-5}" 1 1000
    check_number BENCH_SECONDS "${BENCH_SECONDS:-60}" 1 86400
    check_number SIZE_SECONDS "${SIZE_SECONDS:-60}" 1 86400
    for part in ${BENCH_PARTS-}; do
        case $part in
            connected | idle | starts | exits | deletes | crash_loop | modes | usage) ;;
            *) fail "BENCH_PARTS names '$part'" "the parts of 'agent' are connected, idle, starts, exits, deletes, crash_loop, modes and usage" ;;
        esac
    done
}

# as_after_boot FROM TO: copies of the programs that are not in the page cache, so that memory is measured as on a
# device. A file that was just written is in memory as a whole, and is mapped in large pieces. Pages of a file that a
# parallel demo maps as well are counted in part only.
as_after_boot() {
    local program
    mkdir -p "$2"
    for program in ank-server ank-agent ank; do
        cp "$1/$program" "$2/$program"
        sync "$2/$program"
        dd if="$2/$program" iflag=nocache count=0 status=none
    done
}

# Returns whether this process runs that program already, or has ended.
launched() { is_program "$1" "$2" || ! kill -0 "$1"; }

# launch DIR NAME COMMAND...: runs it in the background, output to DIR/NAME.log, pid to DIR/NAME.pid.
launch() {
    local dir=$1 name=$2
    shift 2
    setsid "$@" </dev/null >>"$dir/$name.log" 2>&1 &
    printf '%s\n' "$!" >"$dir/$name.pid"
    wait_until 10 launched "$!" "${1##*/}" || true # Until then it has the name of a shell.
}

server_gone() { not_program "$(cat "$1/server.pid")" ank-server; }
server_answers() { "$1" get agents; }
answers_or_gone() { server_answers "$2" || server_gone "$1"; }
agent_known() { [[ $'\n'$("$1" get agents) == *$'\n'"$2 "* ]]; }

# cluster_start DIR BIN AGENT...: sets ANK_SERVER_URL and ANK_INSECURE and waits until all agents are known. The server
# reads DIR/ank-server.conf if it exists.
cluster_start() {
    local dir=$1 bin=$2 port name options=()
    shift 2
    [ ! -e "$dir/ank-server.conf" ] || options=(--server-config "$dir/ank-server.conf")
    mkdir -p "$dir/run"
    # Settings of the user's own cluster must not reach this one.
    for name in "${!ANK_@}" "${!ANKSERVER_@}" "${!ANKAGENT_@}"; do unset "$name"; done
    for port in {25551..25570}; do
        ! port_used "$port" || continue
        export ANK_SERVER_URL=http://127.0.0.1:$port ANK_INSECURE=true
        : >"$dir/server.log"
        launch "$dir" server "$bin/ank-server" --insecure --address "127.0.0.1:$port" "${options[@]}"
        wait_until 10 answers_or_gone "$dir" "$bin/ank" || true
        ! server_gone "$dir" || continue # Another program was quicker with this port.
        server_answers "$bin/ank" >/dev/null || break
        for name; do
            launch "$dir" "$name" "$bin/ank-agent" --insecure --name "$name" \
                --server-url "$ANK_SERVER_URL" --run-folder "$dir/run"
        done
        for name; do
            wait_until 10 agent_known "$bin/ank" "$name" && continue
            tail -n 20 "$dir/$name.log" >&2
            fail "agent '$name' did not connect within 10 s" "its last lines are above"
        done
        return 0
    done
    [ -e "$dir/server.pid" ] || fail "the ports 25551 to 25570 are all in use" "end one of the servers there"
    tail -n 20 "$dir/server.log" >&2
    ! server_gone "$dir" || fail "the server ends as soon as it is started" "its last lines are above"
    fail "the server did not answer within 10 s" "its last lines are above"
}

# cluster_stop DIR: ends agents, then the server. Containers keep running.
cluster_stop() {
    local pidfile
    for pidfile in "$1"/*.pid; do
        [ ! -e "$pidfile" ] || [ "${pidfile##*/}" = server.pid ] || stop_program "$pidfile" ank-agent
    done
    stop_program "$1/server.pid" ank-server
}
