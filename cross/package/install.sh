#!/bin/sh
# Installs ank-server, ank-agent and ank, or those that -t names, on a system without packages: each with its settings and
# manual pages, server and agent with their service, ank with completions. Nothing is enabled or started, existing settings
# are kept. A second run updates. To remove everything it installed, run the command that it prints at the end:
# <prefix>/bin/ank-uninstall.sh.
#
#   cross/package/install.sh [-t PARTS] [--from DIR] [--prefix DIR] [--init systemd|sysv|none] [--destdir DIR]
#
#   -t         what to install: server, agent or cli, or several of them: server,cli; both (all three, the default); none
#              (all three without services)
#   --from     folder of the programs (default: target/release of this repository)
#   --prefix   folder for programs, manual pages and completions (default: /usr/local)
#   --init     init system of the services (default: the one found in --destdir)
#   --destdir  root folder of a system image to install into (default: this machine)
set -eu
# All users can read the installed files, with any umask of the calling shell.
umask 022

parts=both from='' prefix=/usr/local init='' destdir=''
here=$(cd -- "$(dirname -- "$0")" && pwd)
top=$(dirname -- "$(dirname -- "$here")")

fail() {
    printf 'error: %s\n' "$1" >&2
    printf 'hint: %s\n' "$2" >&2
    exit 1
}
while [ $# -gt 0 ]; do
    case $1 in
    -h | --help)
        sed -n '2,/^set/{s/^# \{0,1\}//p}' "$0"
        exit 0
        ;;
    -t | --from | --prefix | --init | --destdir) [ $# -ge 2 ] || fail "'$1' needs a value" "$0 --help" ;;
    *) fail "unknown option '$1'" "$0 --help" ;;
    esac
    case $1 in
    -t) parts=$2 ;;
    --from) from=$2 ;;
    --prefix) prefix=$2 ;;
    --init) init=$2 ;;
    --destdir) destdir=$2 ;;
    esac
    shift 2
done
case $prefix in '' | /*) ;; *) fail "'--prefix $prefix' is not an absolute path" "for example --prefix /opt/ankaios" ;; esac
services=yes
case $parts in
none) chosen=server,agent,cli services=no ;;
both) chosen=server,agent,cli ;;
*) chosen=$parts ;;
esac
known=no
for part in $(printf '%s' "$chosen" | tr ',' ' '); do
    case $part in
    server | agent | cli) known=yes ;;
    *) known=no && break ;;
    esac
done
case $chosen in *[!a-z,]*) known=no ;; esac
[ "$known" = yes ] || fail "'-t $parts' is not known" "server, agent or cli, several of them as server,cli, both or none"
# wants PART: returns whether its program is installed.
wants() { case ,$chosen, in *",$1,"*) ;; *) return 1 ;; esac }
# serves PART: returns whether its settings and its service are installed as well.
serves() { [ "$services" = yes ] && wants "$1"; }
programs=''
if wants server; then programs="$programs ank-server"; fi
if wants agent; then programs="$programs ank-agent"; fi
if wants cli; then programs="$programs ank"; fi
[ -n "$from" ] || from=$top/target/release
# any FILE...: returns whether one of them is in the system to install into.
any() {
    for file; do [ ! -e "$destdir$file" ] || return 0; done
    return 1
}
looked_for=''
if [ -z "$init" ] && { serves server || serves agent; }; then
    # Debian's systemd has a folder for init scripts as well.
    if any /run/systemd/system /usr/bin/systemctl /bin/systemctl /usr/lib/systemd/systemd /lib/systemd/systemd; then
        init=systemd
    elif any /etc/init.d; then
        init=sysv
    else
        looked_for="systemd (/run/systemd/system, systemctl, /usr/lib/systemd/systemd) nor SysV init (/etc/init.d)"
    fi
fi
case $init in systemd | sysv | none) ;; '') init=none ;; *) fail "'--init $init' is not known" "systemd, sysv or none" ;; esac
[ "$services" = yes ] || init=none
for program in $programs; do
    [ -x "$from/$program" ] || fail "'$from/$program' is missing" "cargo build --release, or --from DIR"
done
[ -e "$here/ank.conf" ] || fail "'$here' has no settings" "run it from a complete copy of the repository"
# Before anything is installed, so that no installation stops half-way.
for folder in "$prefix/bin" /etc/ankaios; do
    mkdir -p "$destdir$folder" 2>/dev/null || true
    [ -w "$destdir$folder" ] || fail "'$destdir$folder' cannot be written" "run it as root, or choose a --destdir"
done

uninstall=$prefix/bin/ank-uninstall.sh
before=''
if [ -e "$destdir$uninstall" ]; then before=$(sed -n "/^done <<'FILES'\$/,/^FILES\$/{//d;p}" "$destdir$uninstall"); fi
# put MODE SOURCE TARGET: installs a file, which ank-uninstall.sh removes.
list=''
put() {
    mkdir -p "$destdir$(dirname -- "$3")"
    # Beside it and renamed, since a program that runs cannot be written to.
    cp "$2" "$destdir$3.new"
    chmod "$1" "$destdir$3.new"
    mv -f "$destdir$3.new" "$destdir$3"
    list="$list$3
"
}
# put_settings SOURCE TARGET: installs a file that is kept if it exists, and never removed.
put_settings() {
    if [ -e "$destdir$2" ]; then
        printf 'kept: %s\n' "$2"
        return
    fi
    mkdir -p "$destdir$(dirname -- "$2")"
    cp "$1" "$destdir$2"
    chmod 0644 "$destdir$2"
}

for program in $programs; do put 0755 "$from/$program" "$prefix/bin/$program"; done
[ -d "$top/target/man" ] || printf "no manual pages: 'cargo run --example man -- target/man' makes them\n"
# Each program's own pages; those of the commands of ank begin with its name.
for page in "$top"/target/man/man*/*; do
    case $page in
    */ank-server.8) wants server || continue ;;
    */ank-agent.8) wants agent || continue ;;
    */man1/*) wants cli || continue ;;
    esac
    [ -e "$page" ] || continue
    put 0644 "$page" "$prefix/share/man/$(basename -- "$(dirname -- "$page")")/$(basename -- "$page")"
done

# Keys in it have modes of their own, which the programs check.
if [ ! -d "$destdir/etc/ankaios/certs" ]; then
    mkdir "$destdir/etc/ankaios/certs"
fi
if wants cli; then
    put 0644 "$here/completions/ank.bash" "$prefix/share/bash-completion/completions/ank"
    put 0644 "$here/completions/ank.zsh" "$prefix/share/zsh/site-functions/_ank"
    put 0644 "$here/completions/ank.fish" "$prefix/share/fish/vendor_completions.d/ank.fish"
    put_settings "$here/ank.conf" /etc/ankaios/ank.conf
fi
if serves server; then
    put_settings "$here/ank-server.conf" /etc/ankaios/ank-server.conf
    put_settings "$here/state.yaml" /etc/ankaios/state.yaml
fi
if serves agent; then put_settings "$here/ank-agent.conf" /etc/ankaios/ank-agent.conf; fi

changed=$(mktemp)
trap 'rm -f "$changed"' EXIT
for name in server agent; do
    serves "$name" || continue
    case $init in
    systemd)
        sed "s|/usr/bin/ank-|$prefix/bin/ank-|" "$here/ank-$name.service" >"$changed"
        put 0644 "$changed" "/etc/systemd/system/ank-$name.service"
        ;;
    sysv)
        sed "s|^DAEMON=/usr/bin/|DAEMON=$prefix/bin/|" "$here/ank-$name.init" >"$changed"
        put 0755 "$changed" "/etc/init.d/ank-$name"
        ;;
    esac
done
if wants server && [ "$init" != none ]; then
    if [ "$init" = systemd ]; then put 0644 "$here/ankaios.sysusers" /usr/lib/sysusers.d/ankaios.conf; fi
    if [ -n "$destdir" ]; then
        [ "$init" = systemd ] || printf "the server runs as the user 'ankaios', which must exist in the image\n"
    elif [ "$init" = systemd ] && command -v systemd-sysusers >/dev/null; then
        systemd-sysusers ankaios.conf
    elif ! grep -q '^ankaios:' /etc/passwd; then
        # The group may be left of an earlier installation. The second way is busybox's.
        if grep -q '^ankaios:' /etc/group; then group='--gid ankaios'; else group=--user-group; fi
        # shellcheck disable=SC2086
        useradd --system $group --home-dir /var/lib/ankaios --shell /usr/sbin/nologin ankaios 2>/dev/null ||
            {
                grep -q '^ankaios:' /etc/group || addgroup -S ankaios
                adduser -S -D -H -h /var/lib/ankaios -G ankaios ankaios
            } >/dev/null 2>&1 || true
        if ! grep -q '^ankaios:' /etc/passwd || ! grep -q '^ankaios:' /etc/group; then
            fail "no user 'ankaios' could be made" "make a system user and a group of this name, then run this again"
        fi
    fi
fi

# After a run with other options the uninstaller must still remove the files of an earlier run.
list=$(printf '%s\n%s' "$before" "$list" | sed '/^$/d' | sort -u)
{
    cat <<'END'
#!/bin/sh
# Removes what install.sh has installed. Settings in /etc/ankaios, the state in /var/lib/ankaios and the user stay, and
# workloads keep running. DESTDIR names an image of a system to remove it from.
DESTDIR=${DESTDIR-}
END
    printf "folder='%s'\n" "$prefix/bin"
    cat <<'END'
# Otherwise the uninstaller of an image would remove files of this machine.
if ! [ "$(cd -- "$(dirname -- "$0")" && pwd -P)" = "$(cd -- "$DESTDIR$folder" 2>/dev/null && pwd -P)" ]; then
    echo "error: '$0' is not in '$DESTDIR$folder', where it was installed; nothing was removed" >&2
    echo "hint: for an image of a system, name its root folder: DESTDIR=<folder> $0" >&2
    exit 1
fi
if ! [ -w "$(dirname -- "$0")" ]; then
    echo "error: '$0' cannot be removed; run it as root" >&2
    exit 1
fi
if [ -z "$DESTDIR" ]; then
    for service in ank-agent ank-server; do
        if [ -e "/etc/systemd/system/$service.service" ] && [ -d /run/systemd/system ]; then
            systemctl disable --now "$service" 2>/dev/null
        fi
        if [ -x "/etc/init.d/$service" ]; then
            "/etc/init.d/$service" stop
            if command -v update-rc.d >/dev/null; then update-rc.d -f "$service" remove; fi
        fi
    done
fi
while read -r file; do
    rm -f "$DESTDIR$file"
done <<'FILES'
END
    printf '%s\n' "$list"
    cat <<'END'
FILES
if [ -z "$DESTDIR" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
rm -f "$0"
END
} >"$changed"
put 0755 "$changed" "$uninstall"
if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi

# shellcheck disable=SC2016
printf 'installed%s in %s; to remove it: %s%s\n' "$programs" "$destdir$prefix" "${destdir:+DESTDIR='$destdir' }" "$destdir$uninstall"
for name in server agent; do
    serves "$name" || continue
    again="$([ -z "$before" ] || echo ", or restart what runs")"
    case $init in
    systemd) printf 'to start: systemctl enable --now ank-%s%s\n' "$name" "$again" ;;
    sysv) printf "to start: /etc/init.d/ank-%s start%s; at each boot: 'update-rc.d ank-%s defaults'\n" "$name" "$again" "$name" ;;
    esac
done
if [ -n "$looked_for" ]; then
    printf "warning: no service was installed: '%s' has neither %s\n" "${destdir:-/}" "$looked_for" >&2
    printf 'hint: choose the init system with --init systemd or --init sysv; --init none installs no service without this warning\n' >&2
fi
