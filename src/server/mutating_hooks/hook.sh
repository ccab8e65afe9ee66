#!/bin/sh
# A hook of the unit tests: does what the script beside it says.
. "$0.script"
