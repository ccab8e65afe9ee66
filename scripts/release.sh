#!/usr/bin/env bash
# Makes the parts of a release: release.sh [deb|crates]..., without a name both. `deb` builds the Debian packages into
# target/debian/, `crates` writes the crates that Cargo.lock names into the Yocto layer.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

[ $# -gt 0 ] || set -- crates deb
for part; do
    case $part in
        deb | crates) ;;
        *) fail "a release has no part '$part'" "./justw release [deb|crates]..." ;;
    esac
done
for part; do
    case $part in
        deb) scripts/release-deb.sh ;;
        crates) python3 yocto/crates.py ;;
    esac
done
