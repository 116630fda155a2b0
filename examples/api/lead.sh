#!/bin/sh
# A leader in sh and curl, over the HTTP API of `tenure serve`.
#
#   lead.sh GROUP NODE COMMAND [ARG...]   campaign for the group; run the command while leading
#   lead.sh watch GROUP                   print each change of leader, until interrupted
#
# TENURE_STORE             URL of the service (default http://127.0.0.1:7400)
# TENURE_STORE_CREDENTIAL  bearer credential, if the service needs one
#
# The command gets the variables that `tenure exec` sets: TENURE_GROUP, TENURE_NODE,
# TENURE_DEPLOYMENT and TENURE_FENCING_TOKEN. It must send the token with every write,
# because this script cannot stop a write that is already on its way.
# Exit codes: the command's own; 75 the lease was lost and the command was stopped.
set -u

url=${TENURE_STORE:-http://127.0.0.1:7400}

# call METHOD PATH BODY SECONDS: prints the body, then a line with the status, 000 without
# an answer. curl reads the credential from standard input, because other users see arguments.
call() {
	printf 'header = "Authorization: Bearer %s"\n' "${TENURE_STORE_CREDENTIAL:-none}" |
		{ if [ -n "${TENURE_STORE_CREDENTIAL:-}" ]; then cat; else cat >/dev/null; fi; } |
		curl --silent --config - --max-time "$4" --request "$1" --header 'Content-Type: application/json' \
			--data "$3" --write-out '\n%{http_code}\n' "$url/v1$2"
}

# field JSON NAME: the first value of that name.
field() {
	printf '%s' "$1" | grep -o "\"$2\":\"\{0,1\}[^,\"}]*" | head -n 1 | sed 's/^"[^"]*":"\{0,1\}//'
}

# read_clock: sets now to hundredths of a second on a clock that cannot be set, or, without
# /proc, to the seconds of the wall clock. It avoids starting a process: a signal to the
# process group would end it, and an empty number would end this script.
now=0
read_clock() {
	if [ -r /proc/uptime ]; then
		read -r up _ </proc/uptime
		now=${up%.*}${up#*.}
	else
		seconds=$(date +%s)
		now=${seconds:-${now%??}}00
	fi
}

say() { echo "$(basename "$0"): $*" >&2; }

if [ "${1:-}" = watch ] && [ $# -eq 2 ]; then
	# A stream ends with its instance: continue after the last event.
	last=
	while :; do
		exec 3>&1
		last=$(printf 'header = "Authorization: Bearer %s"\nheader = "Last-Event-ID: %s"\n' "${TENURE_STORE_CREDENTIAL:-none}" "$last" |
			if [ -n "${TENURE_STORE_CREDENTIAL:-}" ]; then cat; else grep -v Authorization; fi |
			curl --silent --no-buffer --config - "$url/v1/groups/$2/watch" | {
			while IFS= read -r line; do
				case $line in
				id:*) last=${line#id: } ;;
				data:*) printf '%s\n' "${line#data: }" >&3 ;;
				esac
			done
			printf '%s' "$last"
		})
		sleep 1
	done
fi

if [ $# -lt 3 ]; then
	say "usage: lead.sh GROUP NODE COMMAND [ARG...], or lead.sh watch GROUP"
	exit 2
fi
group=$1 node=$2
shift 2

# Identifies this process. With it the service recognises a retry, so it stays the same for
# the life of the process, and no longer.
instance=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')

# Campaign until we lead. The lease is counted from when the call was sent, plus the time
# for which the service held it: the service does not know how long its answer travels.
term=
while [ -z "$term" ]; do
	read_clock
	sent=$now
	reply=$(call POST "/groups/$group/campaign?wait=30s" "{\"node_id\":\"$node\",\"instance\":\"$instance\",\"ttl_ms\":${TENURE_TTL_MS:-8000}}" 45)
	status=${reply##*
}
	case $status in
	200)
		term=$(field "$reply" term) handle=$(field "$reply" handle) ttl=$(field "$reply" ttl_ms)
		held=$(field "$reply" held_ms)
		until=$((sent + (${held:-0} + ttl) / 10))
		;;
	409 | 429 | 5?? | 000)
		wait=$(field "$reply" retry_after_ms)
		sleep "$(awk "BEGIN { print ${wait:-1000} / 1000 }")"
		;;
	*)
		say "campaign: $reply"
		exit 1
		;;
	esac
done
say "leads $group with term $term"

# stop SIGNAL: signals the command's process group, or the command before it has one.
stop() { kill -s "$1" -- "-$work" 2>/dev/null || kill -s "$1" "$work" 2>/dev/null; }

# Set before the command starts: otherwise a signal in between leaves the command running.
# The end of this script ends the command.
work='' asked=''
trap 'asked=1; [ -z "$work" ] || stop TERM' TERM INT HUP
trap 'code=$?; [ -z "$work" ] || stop KILL; exit $code' EXIT

# In its own process group, so that processes of the command are stopped with it.
(
	export TENURE_FENCING_TOKEN="$term" TENURE_GROUP="$group" TENURE_NODE="$node" TENURE_DEPLOYMENT="$(field "$reply" deployment)"
	if command -v setsid >/dev/null 2>&1; then exec setsid "$@"; fi
	exec perl -e 'setpgrp(0, 0); exec @ARGV; exit 127' -- "$@"
) &
work=$!
if [ -n "$asked" ]; then stop TERM; fi

margin=$((ttl / 100)) # a tenth of the TTL, to stop the command
claim="{\"node_id\":\"$node\",\"term\":$term,\"handle\":\"$handle\"}"
lost=
while kill -0 "$work" 2>/dev/null; do
	read_clock
	left=$((until - margin - now))
	if [ "$left" -le 0 ]; then
		lost="not renewed in time"
		break
	fi
	sent=$now
	reply=$(call POST "/groups/$group/renew" "$claim" "$(awk "BEGIN { print $left / 100 }")")
	case ${reply##*
} in
	200)
		granted=$(field "$reply" ttl_ms)
		if [ -n "$granted" ]; then until=$((sent + granted / 10)); fi
		case $reply in *'"requests":'*)
			say "asked to give up"
			stop TERM
			;;
		esac
		;;
	409)
		lost="this node no longer leads"
		break
		;;
	esac
	# An eighth of the TTL, so that there is time for a retry, and never beyond the moment to
	# stop.
	read_clock
	nap=$((ttl / 80)) left=$((until - margin - now))
	if [ "$left" -lt "$nap" ]; then nap=$left; fi
	if [ "$nap" -gt 0 ]; then sleep "$(awk "BEGIN { print $nap / 100 }")"; fi
done

if [ -n "$lost" ]; then
	stop KILL
	wait "$work" 2>/dev/null
	work=''
	say "lost $group: $lost"
	exit 75
fi
wait "$work"
code=$?
# The command has ended, and the processes that it left behind are stopped: now another node
# may lead. If an operator asked for a transfer, the service hands the group to that node.
stop KILL
work=''
reply=$(call POST "/groups/$group/resign" "$claim" 5)
say "resigned from $group: ${reply##*
}"
exit $code
