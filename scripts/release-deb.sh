#!/usr/bin/env bash
# The Debian packages ank-server, ank-agent and ank of this machine's architecture, in target/debian/. cargo-deb is
# built once into the cache folder.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

wanted=3.8.0
tools=$cache/tools/cargo-deb-$wanted
if [ ! -x "$tools/bin/cargo-deb" ]; then
    printf 'deb: building cargo-deb %s, once\n' "$wanted"
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 env -u CARGO_TARGET_DIR \
        scripts/cargo.sh install --quiet --locked --no-default-features --root "$tools" "cargo-deb@$wanted" </dev/null ||
        fail "cannot build cargo-deb $wanted" "it comes from crates.io: check the network"
fi
have dpkg-shlibdeps || install_packages dpkg-dev

scripts/cargo.sh build --release --locked --bins
# The switch that freezes threads for tests must not be on a device.
for program in ank-server ank-agent; do
    ! grep -q ANKAIOS_TEST_FREEZE "$target/release/$program" || fail "'$program' has the switches of builds for tests"
done
rm -rf target/man target/debian
mkdir -p target/debian
scripts/cargo.sh run --quiet --locked --example man -- target/man
# Debian's form of a changelog; the content is in CHANGELOG.md.
{
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    maintainer=$(sed -n 's/^maintainer = "\(.*\)"/\1/p' Cargo.toml)
    printf 'ankaios-lite (%s-1) unstable; urgency=medium\n\n  * See /usr/share/doc/*/CHANGELOG.md.\n\n' "$version"
    printf ' -- %s  %s\n' "$maintainer" "$(date -R -d "@$(git log -1 --format=%ct 2>/dev/null || date +%s)")"
} >target/man/changelog.Debian
for variant in server agent cli; do
    "$tools/bin/cargo-deb" --quiet --no-build --no-strip --variant "$variant" --output target/debian/
done
for package in target/debian/*.deb; do
    title "$package"
    dpkg-deb --info "$package" | grep -E '^ (Package|Version|Depends|Recommends|Suggests|Installed-Size)'
    dpkg-deb --contents "$package" | awk '$1 !~ /^d/ { print "  " $1, $3, $6 }'
done
