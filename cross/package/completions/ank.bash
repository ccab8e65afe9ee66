# Asks ank itself for the script, which then asks it for candidates.
# shellcheck shell=bash disable=SC1090
source <(COMPLETE=bash ank)
