#!/bin/sh
# Installs ank-server, ank-agent and ank with services, settings, manual pages and completions on a system without
# packages. Nothing is enabled or started, existing settings are kept. A second run updates. To remove everything it
# installed, run the command that it prints at the end: <prefix>/bin/ank-uninstall.sh.
#
#   cross/package/install.sh [-t server|agent|both|none] [--from DIR] [--prefix DIR] [--init systemd|sysv|none] [--destdir DIR]
#
#   -t         services to install; the programs are always installed (default: both)
#   --from     folder of the programs (default: target/release of this repository)
#   --prefix   folder for programs, manual pages and completions (default: /usr/local)
#   --init     init system of the services (default: the one of this machine)
#   --destdir  root folder of a system image to install into (default: this machine)
set -eu

services=both from='' prefix=/usr/local init='' destdir=''
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
    -t) services=$2 ;;
    --from) from=$2 ;;
    --prefix) prefix=$2 ;;
    --init) init=$2 ;;
    --destdir) destdir=$2 ;;
    esac
    shift 2
done
case $prefix in '' | /*) ;; *) fail "'--prefix $prefix' is not an absolute path" "for example --prefix /opt/ankaios" ;; esac
case $services in server | agent | both | none) ;; *) fail "'-t $services' is not known" "server, agent, both or none" ;; esac
[ -n "$from" ] || from=$top/target/release
if [ -z "$init" ]; then
    init=none
    if [ -d "$destdir/etc/init.d" ]; then init=sysv; fi
    if [ -d "$destdir/run/systemd/system" ] || [ -x "$destdir/usr/bin/systemctl" ]; then init=systemd; fi
fi
case $init in systemd | sysv | none) ;; *) fail "'--init $init' is not known" "systemd, sysv or none" ;; esac
for program in ank-server ank-agent ank; do
    [ -x "$from/$program" ] || fail "'$from/$program' is missing" "cargo build --release, or --from DIR"
done
[ -e "$here/ank.conf" ] || fail "'$here' has no settings" "run it from a complete copy of the repository"
# Before anything is installed, so that nothing is installed by halves.
for folder in "$prefix/bin" /etc/ankaios; do
    mkdir -p "$destdir$folder" 2>/dev/null || true
    [ -w "$destdir$folder" ] || fail "'$destdir$folder' cannot be written" "run it as root, or choose a --destdir"
done

uninstall=$prefix/bin/ank-uninstall.sh
before=''
if [ -e "$destdir$uninstall" ]; then before=$(sed -n "/^done <<'FILES'\$/,/^FILES\$/{//d;p}" "$destdir$uninstall"); fi
# put MODE SOURCE TARGET: what ank-uninstall.sh removes.
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
# put_settings SOURCE TARGET: kept if it is there, and not removed.
put_settings() {
    if [ -e "$destdir$2" ]; then
        printf 'kept: %s\n' "$2"
        return
    fi
    mkdir -p "$destdir$(dirname -- "$2")"
    cp "$1" "$destdir$2"
    chmod 0644 "$destdir$2"
}
wants() { [ "$services" = both ] || [ "$services" = "$1" ]; }

for program in ank-server ank-agent ank; do put 0755 "$from/$program" "$prefix/bin/$program"; done
[ -d "$top/target/man" ] || printf "no manual pages: 'cargo run --example man -- target/man' makes them\n"
for page in "$top"/target/man/man*/*; do
    [ -e "$page" ] || continue
    put 0644 "$page" "$prefix/share/man/$(basename -- "$(dirname -- "$page")")/$(basename -- "$page")"
done
put 0644 "$here/completions/ank.bash" "$prefix/share/bash-completion/completions/ank"
put 0644 "$here/completions/ank.zsh" "$prefix/share/zsh/site-functions/_ank"
put 0644 "$here/completions/ank.fish" "$prefix/share/fish/vendor_completions.d/ank.fish"

put_settings "$here/ank.conf" /etc/ankaios/ank.conf
if wants server; then
    put_settings "$here/ank-server.conf" /etc/ankaios/ank-server.conf
    put_settings "$here/state.yaml" /etc/ankaios/state.yaml
fi
if wants agent; then put_settings "$here/ank-agent.conf" /etc/ankaios/ank-agent.conf; fi

changed=$(mktemp)
trap 'rm -f "$changed"' EXIT
for name in server agent; do
    wants "$name" || continue
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

# A run with other options must not make the uninstaller forget what an earlier one has installed.
list=$(printf '%s\n%s' "$before" "$list" | sed '/^$/d' | sort -u)
{
    cat <<'END'
#!/bin/sh
# Removes what install.sh has installed. Settings in /etc/ankaios, the state in /var/lib/ankaios and the user stay, and
# workloads go on running. DESTDIR names an image of a system to remove it from.
DESTDIR=${DESTDIR-}
END
    printf "folder='%s'\n" "$prefix/bin"
    cat <<'END'
# Otherwise that of an image would remove what this machine has.
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
printf 'installed in %s; to remove it: %s%s\n' "$destdir$prefix" "${destdir:+DESTDIR='$destdir' }" "$destdir$uninstall"
for name in server agent; do
    wants "$name" || continue
    again="$([ -z "$before" ] || echo ", or restart what runs")"
    case $init in
    systemd) printf 'to start: systemctl enable --now ank-%s%s\n' "$name" "$again" ;;
    sysv) printf "to start: /etc/init.d/ank-%s start%s; at each boot: 'update-rc.d ank-%s defaults'\n" "$name" "$again" "$name" ;;
    esac
done
