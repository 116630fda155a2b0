#!/bin/sh
# A cron job that is installed on every machine and runs on one:
#
#   */5 * * * * TENURE_STORE=etcd://10.0.0.1:2379 tenure exec --no-wait cleanup -- cleanup.sh /var/spool/reports
#
# Exit code 124: another machine runs it. A plain disk does not check tokens, so the job
# must be safe to run twice.
set -eu
dir=$1
removed=0
for file in "$dir"/*.tmp; do
	[ -e "$file" ] || continue
	rm -f "$file"
	removed=$((removed + 1))
done
echo "$TENURE_NODE removed $removed files of $dir, token $TENURE_FENCING_TOKEN"
