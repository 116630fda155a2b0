#!/bin/sh
# A leader in sh and curl, over the HTTP API of `tenure serve`.
#
#   lead.sh GROUP NODE COMMAND [ARG...]   stand for the group; run the command while leading
#   lead.sh watch GROUP                   print each change of leader, until interrupted
#
# TENURE_URL   where the service is (default http://127.0.0.1:7400)
# TENURE_TOKEN the bearer token that says who we are, if the service wants one
#
# The command finds its term in TENURE_TERM: the fencing token, which it must show with
# every write, for nothing here can stop a write that is already on its way.
# Exit codes: the command's own; 75 the lease was lost and the command was stopped.
set -u

url=${TENURE_URL:-http://127.0.0.1:7400}

# call METHOD PATH BODY SECONDS: prints the body, then a line with the status, 000 if
# there was no answer. The token goes in by standard input: arguments can be seen by others.
call() {
	printf 'header = "Authorization: Bearer %s"\n' "${TENURE_TOKEN:-none}" |
		{ if [ -n "${TENURE_TOKEN:-}" ]; then cat; else cat >/dev/null; fi; } |
		curl --silent --config - --max-time "$4" --request "$1" --header 'Content-Type: application/json' \
			--data "$3" --write-out '\n%{http_code}\n' "$url/v1$2"
}

# field JSON NAME: the first value of that name.
field() {
	printf '%s' "$1" | grep -o "\"$2\":\"\{0,1\}[^,\"}]*" | head -n 1 | sed 's/^"[^"]*":"\{0,1\}//'
}

# look: sets now to hundredths of a second on a clock that nobody sets. Where there is none,
# full seconds of one that somebody might. It starts no process where it can: a signal to
# the whole group ends those, and an empty number would end this script.
now=0
look() {
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
	# A stream ends with its instance: begin again behind the last event that came.
	last=
	while :; do
		exec 3>&1
		last=$(printf 'header = "Authorization: Bearer %s"\nheader = "Last-Event-ID: %s"\n' "${TENURE_TOKEN:-none}" "$last" |
			if [ -n "${TENURE_TOKEN:-}" ]; then cat; else grep -v Authorization; fi |
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

# This start of this process. The service tells a retry from another process by it, so it is
# kept for the life of the process, and never longer.
instance=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')

# Campaign: stand in line until we lead. The lease is counted from when the call was sent
# plus the time that it was held: the service does not know how long its answer takes.
term=
while [ -z "$term" ]; do
	look
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

# stop SIGNAL: to all of the command's group, or to what is about to become it.
stop() { kill -s "$1" -- "-$work" 2>/dev/null || kill -s "$1" "$work" 2>/dev/null; }

# Set before the command starts: a signal in between would leave the command running. And
# whatever ends this script ends the command.
work='' asked=''
trap 'asked=1; [ -z "$work" ] || stop TERM' TERM INT HUP
trap 'code=$?; [ -z "$work" ] || stop KILL; exit $code' EXIT

# In a process group of its own, so that what the command starts is stopped with it.
(
	export TENURE_TERM="$term" TENURE_GROUP="$group" TENURE_DEPLOYMENT="$(field "$reply" deployment)"
	if command -v setsid >/dev/null 2>&1; then exec setsid "$@"; fi
	exec perl -e 'setpgrp(0, 0); exec @ARGV; exit 127' -- "$@"
) &
work=$!
if [ -n "$asked" ]; then stop TERM; fi

margin=$((ttl / 100)) # a tenth of the TTL: to stop takes time too
claim="{\"node_id\":\"$node\",\"term\":$term,\"handle\":\"$handle\"}"
lost=
while kill -0 "$work" 2>/dev/null; do
	look
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
			say "is asked to give up"
			stop TERM
			;;
		esac
		;;
	409)
		lost="another leads, or nobody does"
		break
		;;
	esac
	# Half of a quarter of the TTL, so that there is time for another try, and never beyond
	# the moment to stop.
	look
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
# The work has returned, and what it left behind is stopped: only now may another begin. If
# an operator asked for a transfer, the service hands the group to that node.
stop KILL
work=''
reply=$(call POST "/groups/$group/resign" "$claim" 5)
say "gave $group up: ${reply##*
}"
exit $code
