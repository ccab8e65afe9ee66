#!/usr/bin/env bash
# Stops the cluster that demo.sh left running and removes its containers, images and files.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/engine.sh"
. "$root/scripts/cluster.sh"

demo=$cache/demo
if [ ! -d "$demo" ]; then
    printf 'demo: nothing to stop\n'
    exit 0
fi
cluster_stop "$demo"
engine_remove "$demo/engine"
rm -rf "$demo"
printf 'demo: stopped, its containers and files are removed\n'
