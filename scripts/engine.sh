# Sourced: a podman with its own configuration, image and container store in one folder, so that nothing
# here touches the containers of the machine, and no image is pulled. Needs common.sh.
# shellcheck shell=bash

# engine_use DIR: from here on every `podman`, also one started by an agent, works in that store.
engine_use() {
    export CONTAINERS_CONF=$1/containers.conf CONTAINERS_STORAGE_CONF=$1/storage.conf
    export CONTAINERS_REGISTRIES_CONF=$1/registries.conf
}

# engine_create DIR: an empty store with the image docker.io/library/alpine:latest, made of busybox.
engine_create() {
    local dir=$1 driver
    mkdir -p "$dir"
    # runc by default, because crun refuses machines with both cgroup versions mounted. File locks, because the shared
    # memory ones belong to the machine's own podman. No network: nothing here needs any.
    cat >"$dir/containers.conf" <<END
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
netns = "none"
log_driver = "k8s-file"

[engine]
runtime = "${ANKAIOS_TEST_RUNTIME:-runc}"
events_logger = "file"
lock_type = "file"
tmp_dir = "$dir/tmp"
END
    # The short name alpine:latest means the image below, and no registry is asked by accident.
    cat >"$dir/registries.conf" <<END
unqualified-search-registries = ["docker.io"]
short-name-mode = "disabled"
END
    for driver in overlay vfs; do
        cat >"$dir/storage.conf" <<END
[storage]
driver = "$driver"
graphroot = "$dir/store"
runroot = "$dir/run"
END
        engine_use "$dir"
        # A store inside a container cannot always use overlay; vfs is slow and works everywhere.
        ! engine_import "$dir" 2>"$dir/import.log" || return 0
        engine_clear "$dir"
    done
    cat "$dir/import.log" >&2
    fail "podman cannot make an image in its own store '$dir'" "see the lines above"
}

# engine_import DIR: the image, out of Debian's static busybox with a link per applet.
engine_import() {
    local tree=$1/image applet
    mkdir -p "$tree/bin" "$tree/etc" "$tree/tmp"
    cp /bin/busybox "$tree/bin/busybox"
    for applet in $(/bin/busybox --list); do
        [ "$applet" = busybox ] || ln -s busybox "$tree/bin/$applet"
    done
    tar -C "$tree" -c . | podman import --quiet --change 'ENV PATH=/bin' --change 'CMD ["/bin/sh"]' - docker.io/library/alpine:latest >/dev/null
    local done=$?
    rm -rf "$tree"
    return "$done"
}

# engine_clear DIR: unmounts and removes the files that podman left; as root directly, else in podman's namespace.
engine_clear() {
    local dir=$1 mount as_owner=()
    [ "$(id -u)" -eq 0 ] || as_owner=(podman unshare)
    while read -r _ mount _; do
        umount -l "$mount" 2>/dev/null || true
    done < <(tac /proc/self/mounts | grep -F " $dir/" || true)
    "${as_owner[@]}" rm -rf "$dir/store" "$dir/run" "$dir/tmp"
}

# engine_end_lost DIR: ends containers of the store that podman does not know any more; nothing else could.
engine_end_lost() {
    local dir=$1 process pid
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        [[ $(tr '\0' ' ' 2>/dev/null <"$process/cmdline") == *conmon\ *" $dir/"* ]] || continue
        # shellcheck disable=SC2046
        kill -KILL $(cat "$process/task/$pid/children" 2>/dev/null) "$pid" 2>/dev/null || true
    done
}

# engine_remove DIR: all its containers, then the store itself.
engine_remove() {
    local dir=$1
    [ -e "$dir/storage.conf" ] || return 0
    engine_use "$dir"
    # --time 0: without the ten seconds that a shell takes. A store that podman cannot read is removed anyway.
    podman pod rm --all --force --time 0 >/dev/null 2>&1 || true
    podman rm --all --force --time 0 >/dev/null 2>&1 || true
    engine_end_lost "$dir"
    engine_clear "$dir"
    rm -f "$dir"/*.conf
}
