package main

import "github.com/spf13/cobra"

// examples of the verbs, by their paths. A test parses each.
func examples() map[string]string {
	return map[string]string{
		"tenure": `  tenure serve                                   # elections for this machine, to try things out
  tenure exec billing -- ./reconcile.sh          # runs it while leading "billing", here or elsewhere
  tenure leader billing
  tenure step-down billing`,
		"tenure exec": `  tenure exec billing -- ./reconcile.sh --all
  tenure exec --no-wait nightly -- backup /var/lib/app     # from cron, on every host
  tenure exec --once=schema-42 migrations -- ./migrate.sh
  tenure exec --store=etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379 billing -- ./reconcile.sh`,
		"tenure serve": `  tenure serve
  tenure serve --listen=127.0.0.1:7400 --store=etcd://10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  tenure serve --listen=10.0.0.9:7400 --cert=tls.crt --key=tls.key --tokens=tokens.json --policy=policy.json`,
		"tenure serve token": `  tenure serve token node-1 --expires=720h`,
		"tenure leader": `  tenure leader billing
  tenure leader billing -o name`,
		"tenure watch": `  tenure watch billing
  tenure watch 'shard-*' -o ndjson
  tenure watch billing --until=led               # waits for a leader`,
		"tenure history":    `  tenure history billing --limit=5`,
		"tenure groups":     `  tenure groups 'shard-*'`,
		"tenure candidates": `  tenure candidates billing`,
		"tenure sessions":   `  tenure sessions -o json`,
		"tenure step-down": `  tenure step-down billing --cool-down=10m --reason=maintenance
  tenure step-down billing --token=43 --yes      # only if it is still that term`,
		"tenure transfer":      `  tenure transfer billing node-2`,
		"tenure cordon":        `  tenure cordon node-1 --reason='disk is failing'`,
		"tenure uncordon":      `  tenure uncordon node-1`,
		"tenure policy":        `  tenure policy set billing --members=node-1,node-2`,
		"tenure policy get":    `  tenure policy get billing -o yaml`,
		"tenure policy set":    `  tenure policy set billing --members=node-1,node-2 --min-ttl=4s --max-ttl=30s`,
		"tenure explain":       `  tenure explain --ttl=8s --beat=2s --misses=3 --rto=30s --pause=500ms`,
		"tenure doctor":        `  tenure doctor --ttl=8s --measure=30s`,
		"tenure version":       `  tenure version -o json`,
		"tenure epoch":         `  tenure epoch raise --seen=43`,
		"tenure epoch show":    `  tenure epoch show`,
		"tenure epoch raise":   `  tenure epoch raise --seen=43                   # the highest token that any sink has seen`,
		"tenure fence":         `  tenure fence mark orders --sink=postgres://10.0.0.5/shop`,
		"tenure fence mark":    `  tenure fence mark orders --sink=postgres://10.0.0.5/shop`,
		"tenure fence advance": `  tenure fence advance orders --sink=http://127.0.0.1:7420 --deployment=do2jx6qwbtlc2 --group=billing --token=43`,
	}
}

// exemplify gives the verbs their examples.
func exemplify(cmd *cobra.Command, all map[string]string) {
	cmd.Example = all[cmd.CommandPath()]
	for _, verb := range cmd.Commands() {
		exemplify(verb, all)
	}
}
