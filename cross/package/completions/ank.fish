# Asks ank itself for the script, which then asks it for candidates.
COMPLETE=fish ank | source
