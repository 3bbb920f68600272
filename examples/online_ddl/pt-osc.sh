#!/bin/sh
# For `lockstep ddl run ... --copy-with examples/online_ddl/pt-osc.sh`: lets pt-online-schema-change copy the table.
#
# start      makes the copy _<table>_new, which triggers keep in step with the table, and leaves both
# complete   exchanges the two in one RENAME, and drops the old table, and the triggers with it
#
# Both may be called again: start begins the copy from the start, and complete does what is left. It needs
# pt-online-schema-change (percona-toolkit) and the client `mysql` or `mariadb`. The account needs TRIGGER and, where
# the server writes a binary log, log_bin_trust_function_creators or SUPER.
set -eu

secret=$(mktemp)
trap 'rm -f "$secret"' EXIT
trap 'exit 143' INT TERM  # sh runs the trap of EXIT for no signal that ends it
chmod 600 "$secret"
cat > "$secret" <<END
[client]
host = $LOCKSTEP_DDL_HOST
port = $LOCKSTEP_DDL_PORT
user = $LOCKSTEP_DDL_USER
password = "$LOCKSTEP_DDL_PASSWORD"
loose-ssl-mode = $LOCKSTEP_DDL_SSL_MODE
${LOCKSTEP_DDL_SSL_CA:+ssl-ca = $LOCKSTEP_DDL_SSL_CA}
${LOCKSTEP_DDL_SSL_CERT:+ssl-cert = $LOCKSTEP_DDL_SSL_CERT}
${LOCKSTEP_DDL_SSL_KEY:+ssl-key = $LOCKSTEP_DDL_SSL_KEY}
END
table=$LOCKSTEP_DDL_TABLE
new=_${table}_new
old=_${table}_old

sql() {
  "$(command -v mysql || command -v mariadb)" --defaults-file="$secret" --batch --skip-column-names \
    "$LOCKSTEP_DDL_DATABASE" --execute "$1"
}

exists() {
  [ -n "$(sql "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '$1'")" ]
}

if [ "$LOCKSTEP_DDL_PHASE" = start ]; then
  # What an earlier call has left; its triggers would write to a table that is not there.
  for trigger in $(sql "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE()
      AND EVENT_OBJECT_TABLE = '$table' AND TRIGGER_NAME LIKE 'pt\\_osc\\_%'"); do
    sql "DROP TRIGGER IF EXISTS \`$trigger\`"
  done
  sql "DROP TABLE IF EXISTS \`$new\`"
  pt-online-schema-change --defaults-file="$secret" --execute --alter "$LOCKSTEP_DDL_CLAUSES" \
    --new-table-name "$new" --no-swap-tables --no-drop-triggers --no-drop-new-table --no-drop-old-table \
    --no-version-check --recursion-method none --set-vars lock_wait_timeout=2 --print \
    "D=$LOCKSTEP_DDL_DATABASE,t=$table"
  exit 0
fi

if exists "$new"; then
  sql "SET lock_wait_timeout = 2; RENAME TABLE \`$table\` TO \`$old\`, \`$new\` TO \`$table\`"
fi
sql "DROP TABLE IF EXISTS \`$old\`"
