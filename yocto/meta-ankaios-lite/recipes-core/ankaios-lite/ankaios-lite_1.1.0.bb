SUMMARY = "Synchronous, thread-based Ankaios: workload orchestration for constrained ECUs"
SUMMARY:ank-multicall = "One file that is the server, the agent and the command line of Ankaios lite"
SUMMARY:ank-server = "Server of Ankaios lite: the desired state of a vehicle"
SUMMARY:ank-agent = "Agent of Ankaios lite: runs the containers of one node"
SUMMARY:ank = "Command line of Ankaios lite"
SUMMARY:${PN} = "All programs of Ankaios lite that were built"
DESCRIPTION = "\
    Runs containers with podman on the nodes of a vehicle, in the order their dependencies ask for, from one manifest: \
    a server with the desired state, an agent per node and a command line. Speaks the manifests, gRPC and control \
    interface of Eclipse Ankaios 1.x, without an async runtime. \
"
HOMEPAGE = "https://eclipse-ankaios.github.io/ankaios/"
BUGTRACKER = "https://github.com/eclipse-ankaios/ankaios/issues"
SECTION = "base"
CVE_PRODUCT = "ankaios"
LICENSE = "Apache-2.0"
LIC_FILES_CHKSUM = "file://LICENSE;md5=3b83ef96387f14655fc854ddc3c6bd57"

DEPENDS = "cmake-native zlib"

# The sources: the repository that this layer is a folder of, or a mirror, such as "host/path" with the protocol "https".
ANKAIOS_LITE_REPOSITORY ?= "${@os.path.realpath(d.getVar('FILE_DIRNAME') + '/../../../..')}"
ANKAIOS_LITE_PROTOCOL ?= "file"
SRC_URI = "\
    git://${ANKAIOS_LITE_REPOSITORY};protocol=${ANKAIOS_LITE_PROTOCOL};nobranch=1;destsuffix=${BP} \
    file://0001-bindings-for-any-vendor-in-the-target-triple.patch;patchdir=${CARGO_VENDORING_DIRECTORY}/grpcio-sys-0.13.0+1.56.2-patched \
    file://ank-agent.conf \
    file://ank-agent.init \
    file://ank-agent.service \
    file://ank-server.conf \
    file://ank-server.init \
    file://ank-server.service \
    file://ank.conf \
    file://ankaios.sysusers \
    file://state.yaml \
"
SRCREV = "9c0e8b17a8c747080454d334b482df40af9c87d2"

# The programs that are built; one file for all of them with 'multicall'.
PACKAGECONFIG ??= "server agent cli"
PACKAGECONFIG:class-native ??= "cli"
PACKAGECONFIG[server] = "--features server"
PACKAGECONFIG[agent] = "--features agent"
PACKAGECONFIG[cli] = "--features cli"
PACKAGECONFIG[multicall] = "--features multicall --bin ankaios"

inherit cargo cargo-update-recipe-crates systemd update-rc.d
# The user of the server. Without it nothing follows the keyword.
inherit_defer ${@bb.utils.contains('PACKAGECONFIG', 'server', 'useradd', '', d)}

require ${BPN}-crates.inc

# The bindings of gRPC know no 32-bit target, and the memory of the programs is bounded with glibc's malloc in mind.
COMPATIBLE_HOST = "(x86_64|aarch64).*-linux"
COMPATIBLE_HOST:libc-musl = "null"

CARGO_BUILD_FLAGS:append = " --no-default-features ${PACKAGECONFIG_CONFARGS}"

# cargo runs outside of the source folder and so does not see its .cargo/config.toml: the same flags again. Since gcc 15
# the headers of C++ no longer bring <cstdint> along, and C is C23 unless said otherwise; gRPC is older than that.
ANKAIOS_CFLAGS = "-fno-asynchronous-unwind-tables -fno-unwind-tables -ffunction-sections -fdata-sections"
CFLAGS:append = " ${ANKAIOS_CFLAGS} -std=gnu17"
CXXFLAGS:append = " -fno-exceptions ${ANKAIOS_CFLAGS} -fvisibility-inlines-hidden -include cstdint"

# Stripping is left to the packaging, which keeps what debuggers need.
export CARGO_PROFILE_RELEASE_STRIP = "none"

# What '--version' and the logs say, beside the version.
export ANKAIOS_COMMIT = "${@d.getVar('SRCREV')[:12]}"

# CMake 4 refuses the c-ares in gRPC, which asks for a version before 3.5.
export CMAKE_POLICY_VERSION_MINIMUM = "3.5"

# Of all lock files in the sources only the one of the programs counts.
do_update_crates:prepend() {
    rm -f ${S}/tests/*/Cargo.lock
}

# Where SRC_URI's own files are: UNPACKDIR came after scarthgap.
ANKAIOS_FILES = "${@d.getVar('UNPACKDIR') or d.getVar('WORKDIR')}"
ANKAIOS_BUILT = "${B}/target/${CARGO_TARGET_SUBDIR}"

install_program[doc] = "Installs the program of this name, or a link of this name to the file with all of them"
install_program() {
    if ${@bb.utils.contains('PACKAGECONFIG', 'multicall', 'true', 'false', d)}; then
        install -D -m 0755 ${ANKAIOS_BUILT}/ankaios ${D}${bindir}/ankaios
        ln -sf ankaios ${D}${bindir}/$1
    else
        install -D -m 0755 ${ANKAIOS_BUILT}/$1 ${D}${bindir}/$1
    fi
}

install_service[doc] = "Installs the program of this name, its settings, and what starts it with either init manager"
install_service() {
    install_program $1
    install -D -m 0644 ${ANKAIOS_FILES}/$1.conf ${D}${sysconfdir}/ankaios/$1.conf
    install -D -m 0644 ${ANKAIOS_FILES}/$1.service ${D}${systemd_system_unitdir}/$1.service
    install -D -m 0755 ${ANKAIOS_FILES}/$1.init ${D}${sysconfdir}/init.d/$1
}

do_install() {
    if ${@bb.utils.contains('PACKAGECONFIG', 'server', 'true', 'false', d)}; then
        install_service ank-server
        install -D -m 0644 ${ANKAIOS_FILES}/state.yaml ${D}${sysconfdir}/ankaios/state.yaml
        install -D -m 0644 ${ANKAIOS_FILES}/ankaios.sysusers ${D}${nonarch_libdir}/sysusers.d/ankaios.conf
    fi
    if ${@bb.utils.contains('PACKAGECONFIG', 'agent', 'true', 'false', d)}; then
        install_service ank-agent
    fi
    if ${@bb.utils.contains('PACKAGECONFIG', 'cli', 'true', 'false', d)}; then
        install_program ank
        install -D -m 0644 ${ANKAIOS_FILES}/ank.conf ${D}${sysconfdir}/ankaios/ank.conf
    fi
}

# A package without files is not made, so what was not built has none. ${PN} is nothing but the names of the others.
PACKAGES = "${PN}-src ${PN}-dbg ank-multicall ank-server ank-agent ank ${PN}"
ALLOW_EMPTY:${PN} = "1"

FILES:ank-multicall += "${bindir}/ankaios"
FILES:ank-server += "\
    ${bindir}/ank-server \
    ${sysconfdir}/ankaios/ank-server.conf \
    ${sysconfdir}/ankaios/state.yaml \
    ${sysconfdir}/init.d/ank-server \
    ${systemd_system_unitdir}/ank-server.service \
    ${nonarch_libdir}/sysusers.d/ankaios.conf \
"
FILES:ank-agent += "\
    ${bindir}/ank-agent \
    ${sysconfdir}/ankaios/ank-agent.conf \
    ${sysconfdir}/init.d/ank-agent \
    ${systemd_system_unitdir}/ank-agent.service \
"
FILES:ank += "${bindir}/ank ${sysconfdir}/ankaios/ank.conf"

CONFFILES:ank-server = "${sysconfdir}/ankaios/ank-server.conf ${sysconfdir}/ankaios/state.yaml"
CONFFILES:ank-agent = "${sysconfdir}/ankaios/ank-agent.conf"
CONFFILES:ank = "${sysconfdir}/ankaios/ank.conf"

ANKAIOS_SERVICES = "\
    ${@bb.utils.contains('PACKAGECONFIG', 'server', 'ank-server', '', d)} \
    ${@bb.utils.contains('PACKAGECONFIG', 'agent', 'ank-agent', '', d)} \
"
ANKAIOS_FILE = "${@bb.utils.contains('PACKAGECONFIG', 'multicall', 'ank-multicall', '', d)}"
RDEPENDS:${PN} = "${ANKAIOS_SERVICES} ${@bb.utils.contains('PACKAGECONFIG', 'cli', 'ank', '', d)}"
RDEPENDS:ank-server = "${ANKAIOS_FILE}"
RDEPENDS:ank-agent = "${ANKAIOS_FILE}"
RDEPENDS:ank = "${ANKAIOS_FILE}"
# podman is in meta-virtualization. A layer must not recommend what no layer has.
RRECOMMENDS:ank-agent = "${@bb.utils.contains('BBFILE_COLLECTIONS', 'virtualization-layer', 'podman', '', d)}"

SYSTEMD_PACKAGES = "${ANKAIOS_SERVICES}"
SYSTEMD_SERVICE:ank-server = "ank-server.service"
SYSTEMD_SERVICE:ank-agent = "ank-agent.service"

INITSCRIPT_PACKAGES = "${ANKAIOS_SERVICES}"
INITSCRIPT_NAME:ank-server = "ank-server"
INITSCRIPT_PARAMS:ank-server = "defaults 80 20"
INITSCRIPT_NAME:ank-agent = "ank-agent"
INITSCRIPT_PARAMS:ank-agent = "defaults 81 19"

USERADD_PACKAGES = "ank-server"
USERADD_PARAM:ank-server = "--system --no-create-home --home-dir ${localstatedir}/lib/ankaios --shell /sbin/nologin --user-group ankaios"

# The command line for tasks of a build, such as a look at the manifests of an image.
BBCLASSEXTEND = "native"
