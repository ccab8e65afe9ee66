#compdef ank
# Asks ank itself for the script, which then asks it for candidates.
source <(COMPLETE=zsh ank)
_clap_dynamic_completer_ank "$@"
