# The release 1.1.0, the tag v1.1.0. It is built by who chooses it: PREFERRED_VERSION_ankaios-lite = "1.1.0".
require ankaios-lite.inc
require ankaios-lite-crates.inc

DEFAULT_PREFERENCE = "-1"

# The repository that this layer is a folder of, or a mirror, such as "host/path" with the protocol "https".
ANKAIOS_LITE_REPOSITORY ?= "${@os.path.realpath(d.getVar('FILE_DIRNAME') + '/../../../..')}"
ANKAIOS_LITE_PROTOCOL ?= "file"
SRC_URI += "git://${ANKAIOS_LITE_REPOSITORY};protocol=${ANKAIOS_LITE_PROTOCOL};nobranch=1;destsuffix=${BP}"
# The commit of the tag. It is written here when there is one ("Releases" in CONTRIBUTING.md), so zeros cannot be fetched.
SRCREV = "0000000000000000000000000000000000000000"

# What '--version' and the logs say, beside the version.
export ANKAIOS_COMMIT = "${@d.getVar('SRCREV')[:12]}"
