#!/bin/sh
# A cron job that is installed on every machine and runs on one of them. The key of --once
# names the run; in a crontab % is written as \%:
#
#   TENURE_STORE=https://10.0.0.9:7400
#   */5 * * * * tenure exec --once=cleanup-$(date +\%F-\%H\%M) cleanup -- cleanup.sh /var/spool/reports
#
# The other machines wait and end with 0. If this job fails or its machine crashes, another
# machine runs it again. A plain disk does not check tokens, so the job must be safe to run
# twice.
set -eu
dir=$1
removed=0
for file in "$dir"/*.tmp; do
	[ -e "$file" ] || continue
	rm -f "$file"
	removed=$((removed + 1))
done
echo "$TENURE_NODE removed $removed files of $dir, token $TENURE_FENCING_TOKEN"
