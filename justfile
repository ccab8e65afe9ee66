# The recipes of this repository. `./justw` runs them where `just` is not installed.
#
# Everything longer than a line lives in tests/scripts/. cargo is always called through
# tests/scripts/cargo.sh, so that every recipe compiles with the same settings and gRPC's C++ only once.

set shell := ["bash", "-euo", "pipefail", "-c"]

cargo := "tests/scripts/cargo.sh"

# List the recipes
[private]
default:
    @'{{just_executable()}}' --justfile '{{justfile()}}' --list --unsorted

# Install what is missing on this machine (Debian packages; a second run does nothing)
[group('start')]
setup:
    @tests/scripts/setup.sh

# Build the three programs (development profile)
[group('start')]
build: setup
    {{cargo}} build --locked --bins

# Start a cluster of two agents on real podman, run the storage example and leave it running
[group('start')]
demo: setup
    @tests/scripts/demo.sh

# Stop the cluster of `demo` and remove its containers and files
[group('start')]
demo-stop:
    @tests/scripts/demo-stop.sh

# Everything that has to pass: check, all tests, trace. What CI runs
[group('test')]
test: setup check trace
    {{cargo}} test --locked

# Formatting, clippy as errors, shell scripts, the rules of tests/tidy.rs, dependencies
[group('test')]
check: setup deny
    {{cargo}} fmt --check
    shellcheck justw .ci/run tests/scripts/*.sh
    {{cargo}} clippy --locked --all-targets -- -D warnings
    {{cargo}} test --locked --test tidy

# Licenses, forbidden crates and sources of the dependencies; advisories where they can be fetched
[group('test')]
deny:
    @tests/scripts/deny.sh

# The seeded simulation of server, agents and engine; `just sim 42` repeats one run
[group('test')]
sim seed='':
    ANKAIOS_SIM_SEED='{{seed}}' {{cargo}} test --locked --lib simulation -- --nocapture

# A busy cluster for so many minutes: what its programs hold and how often they wake up must stay flat
[group('test')]
soak minutes='60': setup
    ANKAIOS_SOAK_MINUTES='{{minutes}}' ANKAIOS_SOAK_CURVE='target/soak.csv' {{cargo}} test --locked --test process_soak -- --nocapture

# The fuzz targets under cargo-fuzz, a minute each; `just fuzz 600 masks` runs one for ten minutes
[group('test')]
fuzz *args: setup
    @tests/scripts/fuzz.sh {{args}}

# The tests that run real podman, in an image and container store of their own
[group('test')]
stest: setup
    {{cargo}} test --locked --test 'system_*'

# Requirements without code or test; `just trace --strict` fails when there are any
[group('test')]
trace *args:
    @tests/scripts/trace.sh {{args}}

# Stripped sizes and idle memory of the release programs against the budget
[group('measure')]
size: setup
    @tests/scripts/size.sh

# Size, memory, CPU and delays of the release programs; `just bench server`, `tls`, `agent`, `control`, `size` or `load` is one part; PEER_BIN=<folder> beside other programs
[group('measure')]
bench *names: setup
    @tests/scripts/bench.sh {{names}}
