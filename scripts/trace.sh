#!/usr/bin/env bash
# Compares the requirements of docs/requirements.md with the tags in the sources, and lists missing implementations and
# tests. Only --strict fails for those. A tag with an unknown id is always an error.
#
# --list also names complete requirements.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

strict=0 list=0
for argument; do
    case $argument in
        --strict) strict=1 ;;
        --list) list=1 ;;
        *) fail "unknown argument '$argument'" "./justw trace [--strict] [--list]" ;;
    esac
done

# id<TAB>needs of each requirement in one section: a line '- `id`', and below it '*needs.* text', or only a text, which
# is a reason.
# shellcheck disable=SC2016
requirements() {
    sed -n "/^## $1\$/,/^## /p" docs/requirements.md |
        sed -n '/^- `swdd~/ { N; s/^- `\([^`]*\)`\n *\(\*\([^*]*\)\.\*\)\{0,1\}.*/\1\t\3/p; }'
}

# kind<TAB>id<TAB>place of every tag. The sources need not be a git repository. Built files are left out.
tags() {
    grep -rnoIE --exclude-dir=target '\[(impl|utest|itest|stest)->[^]]*\]' src proto tests | sort |
        sed -n 's/^\([^:]*:[0-9]*\):\[\([a-z]*\)->\(.*\)\]$/\2\t\3\t\1/p'
}

awk -F '\t' -v strict="$strict" -v list="$list" '
    # A few ids lack their version; any version in a tag is meant then.
    function known(id) { if (id in needs) return id; sub(/~[0-9]+$/, "", id); return id in needs ? id : "" }
    source == "requirements" || source == "own" { if (!($1 in needs)) order[++count] = $1; needs[$1] = $2 }
    source == "replaced" {
        replaced[$1] = $2
        if (!($1 in needs)) { printf "error: docs/requirements.md replaces the unknown id %s\n", $1; unknown++ }
    }
    source == "tags" {
        id = known($2)
        if (id == "") { printf "error: %s: unknown requirement id %s\n", $3, $2; unknown++ }
        else have[id, $1] = 1
    }
    END {
        for (i = 1; i <= count; i++) {
            id = order[i]
            if (id in replaced) { skipped++; continue }
            missing = ""
            n = split(needs[id], wanted, /[ ,]+/)
            for (k = 1; k <= n; k++) if (wanted[k] != "" && !((id, wanted[k]) in have)) {
                missing = missing " " wanted[k]
                lacking[wanted[k]]++
            }
            if (missing != "") { open++; printf "missing%-18s %s\n", missing, id }
            else { complete++; if (list) printf "complete                  %s\n", id }
        }
        printf "trace: %d requirements: %d complete, %d replaced by what Ankaios does today, %d open (without impl %d, utest %d, itest %d, stest %d)\n",
            count, complete, skipped, open, lacking["impl"], lacking["utest"], lacking["itest"], lacking["stest"]
        if (unknown) printf "trace: %d unknown ids\n", unknown
        exit unknown > 0 || (strict && open > 0)
    }
' source=requirements <(requirements 'Of Ankaios') source=own <(requirements 'Our own') \
    source=replaced <(requirements Replaced) source=tags <(tags)
