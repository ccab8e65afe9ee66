#!/usr/bin/env bash
# Draws the pictures of README.md from real runs on this machine: docs/demo.svg is the terminal while the demo runs,
# docs/bench.svg the numbers of `./justw bench` (beside a peer with PEER_BIN=<folder>).
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
. "$root/scripts/cluster.sh"
cd "$root"

python=$cache/venv-pictures/bin/python
if ! "$python" -c 'import pyte, rich' 2>/dev/null; then
    python3 -m venv --clear "$cache/venv-pictures"
    "$python" -m pip install --quiet 'pyte==0.8.2' 'rich==15.0.0'
fi

columns=110
recorded=$(mktemp)
trap 'rm -f "$recorded"' EXIT
program_folder >/dev/null # Compiled before, so that the picture begins with the demo.
script --quiet --return --command "stty cols $columns rows 100; scripts/demo.sh" "$recorded" </dev/null
scripts/demo.sh stop
# Only the first act, since the others look the same. The first line is that of `script`.
tail -n +2 "$recorded" | "$python" scripts/terminal_svg.py './justw demo' "$columns" 'Starting ank-server' '2. A workload' \
    >docs/demo.svg

scripts/bench.sh
cp "$target/bench.svg" docs/bench.svg
printf 'Drawn: docs/demo.svg, docs/bench.svg\n'
