# The recipes of this repository. `./justw` runs them where `just` is not installed.
#
# Everything longer than a line lives in scripts/. cargo is always called through
# scripts/cargo.sh, so that every recipe compiles with the same settings and gRPC's C++ only once.

set shell := ["bash", "-euo", "pipefail", "-c"]

cargo := "scripts/cargo.sh"

# List the recipes
[private]
default:
    @'{{just_executable()}}' --justfile '{{justfile()}}' --list --unsorted --list-heading $'./justw RECIPE [ARGUMENT]...\n'

# Install missing Debian packages on this machine. Every recipe that needs them does it first.
[private]
setup:
    @scripts/setup.sh

# The three programs, as the tests use them
[group('start')]
build: setup
    {{cargo}} build --locked --features multicall --bins --test tidy

# A cluster of two agents on real podman with an example; `demo stop` removes it
[group('start')]
demo *action: setup
    @scripts/demo.sh {{action}}

# Everything that must pass before a change is sent: check, trace, all tests
[group('test')]
test: setup
    @scripts/test.sh '{{just_executable()}}'

# Single programs are checked with a test, so that their dependencies have the features that they have in all other builds.
#
# Format, clippy, scripts, commits, dependencies (licenses, advisories; needs the network)
[group('test')]
check: setup
    {{cargo}} fmt --all --check
    scripts/history.sh
    shellcheck justw .ci/run scripts/*.sh tests/systemd/*.sh tests/device/*.sh cross/*.sh cross/package/*.sh cross/package/*.init cross/package/deb/*/*
    {{cargo}} clippy --locked --all-targets --features multicall -- -D warnings
    for component in server agent cli; do \
        {{cargo}} check --locked --bins --test tidy --no-default-features --features "$component"; \
    done
    {{cargo}} test --locked --features multicall --test tidy
    scripts/deny.sh

# Requirements without code or test; `trace --strict` fails when there are any
[group('test')]
trace *args:
    @scripts/trace.sh {{args}}

# Tests on real podman; `stest --engine [crun|runc]` on that of a newer Debian, as root
[group('test')]
stest *args: setup
    @scripts/stest.sh {{args}}

# The simulation of whole clusters from seeds; `sim 42` repeats one and shows it
[group('test')]
sim seed='': setup
    @scripts/sim.sh {{quote(seed)}}

# The fuzz targets under cargo-fuzz, a minute each; `fuzz 600 masks` is one for ten
[group('test')]
fuzz *args: setup
    @scripts/fuzz.sh {{args}}

# The tests on a machine without time for them; `test-busy loops process 5` is a part
[group('test')]
test-busy *args: setup
    @scripts/test-busy.sh {{args}}

# Packages on a booted Debian: `device systemd` in a container, `device qemu` in a guest; as root
[group('test')]
device kind: setup
    @scripts/device.sh {{quote(kind)}}

# Release programs for aarch64, or one: `cross aarch64 agent`; `cross test` runs them under qemu
[group('deliver')]
cross *args: setup
    @cross/build.sh {{args}}

# The parts of a release: `release deb`, Debian packages; `release crates`, the list for Yocto
[group('deliver')]
release *parts: setup
    @scripts/release.sh {{parts}}

# Sizes and idle memory of the release programs against the budget
[group('measure')]
size: setup
    @scripts/size.sh

# Measures the release programs: `bench agent tls` are parts, `bench help` lists them
[group('measure')]
bench *parts: setup
    @scripts/bench.sh {{parts}}
