#!/bin/sh
# A cron job that every machine has and one machine runs:
#
#   */5 * * * * TENURE_STORE=etcd://10.0.0.1:2379 tenure exec --no-wait cleanup -- cleanup.sh /var/spool/reports
#
# Exit code 124 says that another machine has it. Nothing compares tokens on a plain
# disk, so the step is one that may be made twice.
set -eu
dir=$1
removed=0
for file in "$dir"/*.tmp; do
	[ -e "$file" ] || continue
	rm -f "$file"
	removed=$((removed + 1))
done
echo "$TENURE_NODE removed $removed files of $dir, token $TENURE_FENCING_TOKEN"
