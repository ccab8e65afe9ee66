#!/bin/sh
# In place of an engine: the command of `exec CONTAINER COMMAND` runs on this machine.
shift 2
exec "$@"
