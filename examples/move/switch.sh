#!/bin/sh
# Leads the application: it reads the file `to` before each write. A rename is one step, so that no write sees half of it.
folder=$(dirname "$0")
case "$LOCKSTEP_CUTOVER_DIRECTION" in
  there) place=new ;;
  back) place=old ;;
  *) exit 3 ;;
esac
echo "$place" > "$folder/.to" && mv "$folder/.to" "$folder/to"
