# The recipes of this repository. `./justw` runs them where `just` is not installed.
#
# Everything longer than a line lives in scripts/. cargo is always called through
# scripts/cargo.sh, so that every recipe compiles with the same settings and gRPC's C++ only once.

set shell := ["bash", "-euo", "pipefail", "-c"]

cargo := "scripts/cargo.sh"

# List the recipes
[private]
default:
    @'{{just_executable()}}' --justfile '{{justfile()}}' --list --unsorted

# Install missing Debian packages on this machine; a second run does nothing
[group('start')]
setup:
    @scripts/setup.sh

# Build the three programs (development profile, with the features and dependencies that the tests compile)
[group('start')]
build: setup
    {{cargo}} build --locked --features multicall --bins --test tidy

# Start a cluster of two agents on real podman, run the storage example and leave it running
[group('start')]
demo: setup
    @scripts/demo.sh

# Stop the cluster of `demo` and remove its containers and files
[group('start')]
demo-stop:
    @scripts/demo-stop.sh

# Everything that must pass: check, deny, advisories, trace, all tests. CI runs this; the last lines list skipped steps
[group('test')]
test: setup
    @scripts/test.sh '{{just_executable()}}'

# Single programs are checked with a test, so that their dependencies have the features that they have in all other builds.
#
# Formatting, clippy as errors, shell scripts, the rules of tests/tidy.rs, the form of the commits since the last release
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

# Licenses, forbidden crates and sources of the dependencies
[group('test')]
deny: setup
    @scripts/deny.sh

# Known vulnerabilities of the dependencies; needs the network
[group('test')]
advisories: setup
    @scripts/deny.sh advisories

# The seeded simulation of server, agents and engine; `./justw sim 42` repeats one run
[group('test')]
sim seed='': setup
    @scripts/sim.sh {{quote(seed)}}

# A busy cluster for some minutes: memory, descriptors, threads and wake-ups must stay flat
[group('test')]
soak minutes='60': setup
    @scripts/soak.sh {{quote(minutes)}}

# The fuzz targets under cargo-fuzz, a minute each; `./justw fuzz 600 masks` runs one for ten minutes
[group('test')]
fuzz *args: setup
    @scripts/fuzz.sh {{args}}

# The test programs beside two busy processes for each core, and held to half of a core; `./justw test-busy loops process 5` is a part
[group('test')]
test-busy *args: setup
    @scripts/test-busy.sh {{args}}

# The tests that run real podman, in an image and container store of their own
[group('test')]
stest: setup
    ANKAIOS_LEAVE_NOTHING_OUT=1 {{cargo}} test --locked --test system

# The system tests on a newer Debian's podman with crun and with runc, in a root of its own; as root, about four minutes each
[group('test')]
engines *runtimes: setup
    @scripts/engines.sh {{runtimes}}

# Build for another architecture: `./justw cross aarch64`, or one component of `server`, `agent`, `cli`, `multicall`
[group('device')]
cross architecture='aarch64' component='all': setup
    @cross/build.sh '{{architecture}}' '{{component}}'

# Build for aarch64 and run the programs under qemu with this machine's `ank` and the fake engine
[group('device')]
cross-test: setup
    @cross/test.sh

# Write the crates that Cargo.lock names into the Yocto layer
[group('device')]
yocto-crates: setup
    @python3 yocto/crates.py

# Packages, units and watchdog on a real systemd, booted in a container; as root, two minutes
[group('test')]
systemd-test: setup
    @scripts/systemd-test.sh

# Packages, control groups 2 and power cuts within updates, in a guest of qemu; as root, ten minutes
[group('test')]
device-test: setup
    @scripts/device-test.sh

# Requirements without code or test; `./justw trace --strict` fails when there are any
[group('test')]
trace *args:
    @scripts/trace.sh {{args}}

# Debian packages ank-server, ank-agent and ank in target/debian
[group('deliver')]
deb: setup
    @scripts/deb.sh

# Stripped sizes and idle memory of the release programs against the budget
[group('measure')]
size: setup
    @scripts/size.sh

# Size, memory, CPU and delays of the release programs; `./justw bench server`, `tls`, `agent`, `control`, `lifecycle`, `modes`, `usage`, `boot`, `update`, `size` or `load` is one part; PEER_BIN=<folder> beside other programs
[group('measure')]
bench *names: setup
    @scripts/bench.sh {{names}}

# Draw the pictures of README.md from real runs: the terminal of the demo, the numbers of `bench` (20 minutes)
[group('measure')]
pictures: setup
    @scripts/pictures.sh
