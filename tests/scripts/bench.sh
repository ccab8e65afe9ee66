#!/usr/bin/env bash
# Measures the release programs: all of it, or what is named. Medians and means of many; other load on the
# machine shows all the same.
#
#   size     stripped binaries, idle memory
#   server   simulated agents: memory and CPU of the server, delay of events
#   tls      mutual TLS next to plain text
#   agent    real podman: memory, CPU, delays, a crash loop
#   control  control interface: round trips, memory and threads with 50 sessions
#   lifecycle  CPU of the agent with 100 workloads that are checked every 500 ms
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/tests/scripts/cluster.sh"
cd "$root"

names=("$@")
[ "${#names[@]}" -gt 0 ] || names=(size server tls agent control lifecycle)
for name in "${names[@]}"; do
    case $name in
        size | server | tls | agent | control | lifecycle) ;;
        *) fail "there is nothing to measure called '$name'" "just bench [size|server|tls|agent|control|lifecycle]..." ;;
    esac
done

tests/scripts/cargo.sh build --locked --release --bins --example bench
work=$(mktemp -d "$target/bench.XXXXXX") # On a disk, which /tmp need not be.
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

failed=0
for name in "${names[@]}"; do
    case $name in
        size)
            title 'Size and idle memory'
            tests/scripts/size.sh || warn 'above the promise'
            ;;
        server | tls)
            title "${name^}"
            as_after_boot "$target/release" "$work/programs"
            "$target/release/examples/bench" "$name" "$work/programs" || failed=1
            ;;
        agent) tests/scripts/bench-agent.sh ;;
        control)
            title 'Control interface'
            tests/scripts/cargo.sh build --locked --release --example fake-podman
            tests/scripts/cargo.sh bench --locked --bench control || failed=1
            ;;
        lifecycle)
            title 'Checks of workloads'
            tests/scripts/cargo.sh build --locked --release --example fake-podman
            tests/scripts/cargo.sh bench --locked --bench lifecycle || failed=1
            ;;
    esac
done
exit "$failed"
