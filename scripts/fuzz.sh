#!/usr/bin/env bash
# Runs the fuzz targets of tests/fuzz with cargo-fuzz: fuzz.sh [SECONDS [TARGET...]], all targets for a minute each
# unless said otherwise. Needs a nightly compiler (`rustup toolchain install nightly`). cargo-fuzz is built once into
# the cache folder. Learned inputs are kept in target/fuzz/corpus; findings belong in tests/fuzz/found/<target>/.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

# Checks the arguments before minutes of compiling. With 0 seconds a target would never end.
usage='./justw fuzz [SECONDS [TARGET...]]'
seconds=${1:-60}
check_number "the time in seconds of '$usage'" "$seconds" 1 604800
shift || true
all=(configs control engines files hooks logs manifest masks messages probes records settings stored templates texts)
names=("$@")
[ "${#names[@]}" -gt 0 ] || names=("${all[@]}")
for name in "${names[@]}"; do
    [[ " ${all[*]} " == *" $name "* ]] || fail "there is no fuzz target '$name'" "$usage; targets are ${all[*]}"
done

wanted=0.13.2
tools=$cache/tools/cargo-fuzz-$wanted
rustup run nightly rustc --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal >&2 ||
    fail 'fuzzing needs a nightly compiler' 'rustup toolchain install nightly --profile minimal'
if [ ! -x "$tools/bin/cargo-fuzz" ]; then
    printf 'fuzz: building cargo-fuzz %s, once\n' "$wanted"
    env -u CARGO_TARGET_DIR scripts/cargo.sh install --quiet --locked --root "$tools" "cargo-fuzz@$wanted"
fi

ANKAIOS_FUZZ_SEEDS=$target/fuzz/seeds scripts/cargo.sh test --locked --quiet --test fuzz_bounded \
    corpus_of_each_target_is_written_where_cargo_fuzz_looks
export CARGO_TARGET_DIR=$target/fuzz PATH=$tools/bin:$PATH
# No sanitizer: the fuzzed code has no unsafe blocks, and without it twice as many inputs are tried.
RUSTUP_TOOLCHAIN=nightly scripts/cargo.sh fuzz build --fuzz-dir tests/fuzz --sanitizer none
built=$CARGO_TARGET_DIR/$(rustup run nightly rustc -vV | sed -n 's/^host: //p')/release
for name in "${names[@]}"; do
    title "$name, $seconds s"
    corpus=$target/fuzz/corpus/$name
    # Findings are written here. Once understood, they belong in the repository.
    mkdir -p "$corpus" "$target/fuzz/artifacts/$name"
    inputs=("$corpus" "$target/fuzz/seeds/$name")
    [ ! -d "tests/fuzz/found/$name" ] || inputs+=("tests/fuzz/found/$name")
    "$built/$name" -artifact_prefix="$target/fuzz/artifacts/$name/" -max_total_time="$seconds" -max_len=16384 \
        -timeout=20 -rss_limit_mb=4096 -print_final_stats=1 "${inputs[@]}" || {
        [ $? -ne 72 ] || exit 130 # Interrupted.
        fail "'$name' failed on an input, see above; it is in '$target/fuzz/artifacts/$name'" \
            "keep it in tests/fuzz/found/$name/, where the tests and the next run find it"
    }
done
