#!/bin/sh
# A migration that runs to its end once, whichever machine starts it and however often it
# is killed:
#
#   tenure exec --once=2026-11-emails --once-for=0s migrate -- migrate.sh
#
# Each step is one transaction with the check of the token and the record of the step. A
# machine that is killed or paused leaves no step half done, and the next one continues
# with the first missing step. DATABASE_URL names the database, which needs the functions
# of fence/sqlfence/postgres.sql.
set -eu

# Otherwise the server may not notice that its client was killed, and the next leader waits
# for the locks of the step.
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
	echo "$1: done"
}

step 1-table 'CREATE TABLE email (account text PRIMARY KEY, address text NOT NULL)'
step 2-copy "INSERT INTO email SELECT name, name || '@example.com' FROM account; SELECT pg_sleep(${MIGRATE_SLOWLY:-0})"
step 3-index 'CREATE INDEX email_address ON email (address)'
