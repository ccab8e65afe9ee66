# Builds the tree that this layer lies in, with its uncommitted changes.
require ankaios-lite.inc
require ankaios-lite-crates.inc

inherit externalsrc

PV = "1.1.0+git"

EXTERNALSRC = "${@os.path.realpath(d.getVar('FILE_DIRNAME') + '/../../../..')}"
# Nothing is written into that tree.
# nooelint: oelint.vars.mispell.unknown
EXTERNALSRC_SYMLINKS = ""
# Only the sources are there already: the crates are fetched, unpacked and patched.
SRCTREECOVEREDTASKS = ""

# What the programs are made of. The class would take the whole tree, which may have a build folder and other layers in it.
ANKAIOS_SOURCES = "Cargo.lock Cargo.toml LICENSE ank_schema.json cross/link.rs cross/package proto src"
# nooelint: oelint.task.noanonpython
python () {
    tree = d.getVar('EXTERNALSRC')
    sources = ['%s/%s:True' % (tree, source) for source in d.getVar('ANKAIOS_SOURCES').split()]
    d.setVarFlag('do_compile', 'file-checksums', ' '.join(sources))
}

# What '--version' and the logs say, beside the version.
do_compile:prepend() {
    ANKAIOS_COMMIT=$(git -C ${S} describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || true)
    export ANKAIOS_COMMIT
}
