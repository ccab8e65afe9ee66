#!/usr/bin/env bash
# Checks the commits since the last release against the rules of CONTRIBUTING.md ("Commits"): the form and length of the
# subject, a body, no merge commits. Commits in the newest tag or in the base below are not checked.
#
# Sources without a git repository, and clones without any of these commits, have nothing to check: the script says so
# and succeeds.
. "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
cd "$root"

# The last commit before the rules.
base=2e15547acedd48b4487ccd6cc3babf922bc64be1
# Characters: `git log --oneline` and mails about a commit fit a terminal of 80 columns.
longest=72

# omit REASON: ends the script. `./justw test` lists the reason in its last lines.
omit() {
    warn "the history is not checked: $1"
    [ -z "${ANKAIOS_LEFT_OUT-}" ] || printf 'history: %s\n' "$1" >>"$ANKAIOS_LEFT_OUT"
    exit 0
}

violations=0
# violation COMMIT SUBJECT TEXT
violation() {
    violations=$((violations + 1))
    printf "%serror:%s commit %s '%s' %s\n" "$red" "$plain" "${1:0:12}" "$2" "$3" >&2
}

# Prints the number of characters of the text $1; in the locale C they would be bytes.
length() {
    local LC_ALL=C.UTF-8
    printf '%d' "${#1}"
}

# Returns whether the body $1 has more than lines such as 'Signed-off-by: ...'.
has_reason() {
    grep -qvE '^([A-Z][A-Za-z-]*-by: .*|Change-Id: .*)?$' <<<"$1"
}

# Returns whether the commit $1 changes pages and pictures only.
changes_only_pages() {
    local file changed=''
    while IFS= read -r -d '' file; do
        case $file in *.md | docs/*.svg) changed=yes ;; *) return 1 ;; esac
    done < <(git diff-tree --root --no-commit-id --name-only -r -z "$1")
    [ -n "$changed" ]
}

# check COMMIT PARENTS SUBJECT BODY
check() {
    local characters
    if [[ $2 == *' '* ]]; then
        violation "$1" "$3" "is a merge commit"
        return
    fi
    if ! [[ $3 =~ ^[a-z][a-z0-9_/.-]*:\ [^\ ] ]]; then
        violation "$1" "$3" "does not begin with 'area: ' in lower case"
    fi
    characters=$(length "$3")
    if [ "$characters" -gt "$longest" ]; then
        violation "$1" "$3" "has a subject of $characters characters, more than $longest"
    fi
    if ! has_reason "$4" && ! changes_only_pages "$1"; then
        violation "$1" "$3" "has no body that says why, and changes more than pages"
    fi
}

[ -e .git ] || omit "these sources are not a git repository"
have git || omit "git is not installed"

# First, where the commits to check begin.
tag=$(git describe --tags --abbrev=0 2>/dev/null || true)
begin=''
without=()
if git cat-file -e "$base^{commit}" 2>/dev/null; then
    begin=${base:0:12}
    without+=("^$base")
fi
if [ -n "$tag" ]; then
    begin=$tag
    without+=("^$tag")
fi
# A shallow clone does not have the changes of its oldest commits.
shallow=$(git rev-parse --git-path shallow)
if [ -s "$shallow" ]; then
    begin=${begin:-the beginning of this shallow clone}
    while read -r commit; do without+=("^$commit"); done <"$shallow"
fi
[ -n "$begin" ] || omit "it has neither a tag nor the commit ${base:0:12}"
commits=$(git rev-list HEAD "${without[@]}" --)

# Then each of them.
count=0
for commit in $commits; do
    {
        IFS= read -r parents
        IFS= read -r subject
        body=$(cat)
    } < <(git show --no-patch --no-show-signature --format='%P%n%s%n%b' "$commit")
    check "$commit" "$parents" "$subject" "$body"
    count=$((count + 1))
done

# Finally, the result.
[ "$violations" -eq 0 ] || fail "$violations violation(s) in $count commit(s) since $begin" \
    "the rules are in CONTRIBUTING.md ('Commits'); 'git rebase --interactive' rewords, squashes and removes merges"
if [ "$count" -eq 0 ] && [ -s "$shallow" ]; then omit "this shallow clone is too short"; fi
printf 'history: %d commit(s) since %s keep the rules\n' "$count" "$begin"
