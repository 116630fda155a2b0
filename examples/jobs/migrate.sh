#!/bin/sh
# A migration that runs to its end once, whichever machine begins it and however often
# it is killed on the way:
#
#   tenure exec --once=2026-11-emails migrate -- migrate.sh
#
# Each step is one transaction with the fence and with the note that it was made: a
# machine that was killed or paused in the middle leaves nothing half done, and the one
# that takes over goes on with the first step that is missing. DATABASE_URL says where;
# the database has sqlfence's functions (fence/sqlfence/postgres.sql).
set -eu

# A server that does not notice that its client was killed keeps the locks of the step,
# and the next leader waits for them.
export PGOPTIONS="${PGOPTIONS:-} -c client_connection_check_interval=1s"

step() { # name, statement
	psql -X -q -o /dev/null -v ON_ERROR_STOP=1 -v step="$1" -v deployment="$TENURE_DEPLOYMENT" -v grp="$TENURE_GROUP" \
		-v token="$TENURE_FENCING_TOKEN" -v session="$TENURE_FENCING_SESSION" -v node="$TENURE_NODE" "$DATABASE_URL" <<-SQL
		BEGIN;
		SELECT tenure_guard('schema', :'deployment', :'grp', :token, :'session');
		CREATE TABLE IF NOT EXISTS migration (step text PRIMARY KEY, token bigint NOT NULL, node text NOT NULL);
		SELECT NOT EXISTS (SELECT FROM migration WHERE step = :'step') AS missing \gset
		\if :missing
		$2;
		INSERT INTO migration VALUES (:'step', :token, :'node');
		\endif
		COMMIT;
	SQL
	echo "$1: made"
}

step 1-table 'CREATE TABLE email (account text PRIMARY KEY, address text NOT NULL)'
step 2-copy "INSERT INTO email SELECT name, name || '@example.com' FROM account; SELECT pg_sleep(${MIGRATE_SLOWLY:-0})"
step 3-index 'CREATE INDEX email_address ON email (address)'
