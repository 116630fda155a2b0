SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Each module is tested by what its own go.mod says, as its users will build it.
export GOWORK := off
# A checkout that belongs to another user, as in many containers, cannot be
# stamped with its revision: go build would fail on it.
export GOFLAGS := $(strip $(GOFLAGS) $(if $(findstring -buildvcs,$(GOFLAGS)),,-buildvcs=false))

# Not lab/comparison/: client-go alone is hundreds of packages to fetch and compile, for code that
# nobody imports. It is checked by make lint tidy MODULES=./lab/comparison/ and by its own run.
MODULES := $(sort $(dir $(shell find . -name go.mod -not -path './.*' -not -path './lab/comparison/*' -not -path '*/testdata/*' -not -path '*/node_modules/*')))
# The tools module has no code of ours, only versions.
CODE := $(filter-out ./tools/,$(MODULES))

# The packages in which bugs can be planted.
PLANTED := ./sim/... ./lease/... ./internal/... ./store/... ./pulse ./shard

SEEDS ?= 10000

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# `tenure version` shows the revision although the go command does not stamp it.
REVISION_FLAG = -ldflags=-X=main.revision=$(shell git -c safe.directory=* describe --always --abbrev=40 --exclude='*' --dirty 2>/dev/null)

# The programs of a fleet, side by side, where the lab finds them.
.PHONY: programs
programs:
	@echo "building"; for p in server/cmd/engine server/cmd/tenure reference/cmd/fleet lab/cmd/labfleet lab/cmd/lab lab/cmd/chaos; do go build -C $${p%%/*} '$(REVISION_FLAG)' -o $(CURDIR)/.cache/bin/ ./$${p#*/}; done

.PHONY: run
run: programs ## start a fleet (etcd, ledger, three nodes, two workers) and tell what happens, until Ctrl-C
	@exec .cache/bin/lab up $(ARGS)

.PHONY: demo
demo: programs ## ten seconds: a leader is paused, another leads, the stale write is refused
	@exec .cache/bin/lab demo $(ARGS)

.PHONY: lab-quick
lab-quick: programs ## two minutes: experiments with real faults, on etcd and on Raft, each checked by the names of the guarantees
	@exec .cache/bin/lab run quick $(ARGS)

# 99 is a threshold that was not met: that is a finding too, and is written down.
.PHONY: lab
lab: programs ## hours, on a machine that does nothing else: every experiment in full, then docs/findings.md; says first how long, and goes on where it was stopped
	@code=0; .cache/bin/lab run all $(ARGS) || code=$$?; \
	if [ $$code -eq 0 ] || [ $$code -eq 99 ]; then .cache/bin/lab report --out docs || code=$$?; fi; \
	exit $$code

.PHONY: lab-report
lab-report: programs ## docs/findings.md from the results that there are, and from the comments in docs/lab/findings.tmpl
	@exec .cache/bin/lab report --out docs

.PHONY: strategies
strategies: programs ## hours, on a machine that does nothing else: election strategies beside each other, under the same faults; goes on where it was stopped (ARGS='--only redlock --fault pause')
	@exec .cache/bin/lab strategies $(ARGS)

.PHONY: strategies-report
strategies-report: programs ## write what make strategies has measured into docs/strategies.md
	@exec .cache/bin/lab strategies --report docs

.PHONY: build
build: ## build every package of every module
	@for m in $(CODE); do echo "build $$m"; (cd $$m && go build ./...); done

# Under the race detector a process waits for a second before it ends, and the tests
# start hundreds.
RACE := GORACE=atexit_sleep_ms=10 go test -race

# Packages of the root module that take long under the race detector, or start programs.
SLOW := ./electortest ./store/mem ./internal/enginetest ./internal/servertest ./deploy ./docs
# Packages of the other modules that start no program.
SERVER_UNIT := ./advise ./auth ./cli ./console ./feed ./httpapi ./inventory ./metric ./openapi ./operator ./service ./storeapi ./storecli ./supervise/...
REFERENCE_UNIT := ./api ./client ./compactor ./fencedwriter ./schedule ./sequencer ./wait ./worker ./ledger/api
LAB_UNIT := ./check ./history ./load ./measure ./plot ./report

# rest lists the packages of the module here that are not in a list.
rest = $$(go list ./... | grep -vxF "$$(go list $(1))")

.PHONY: test
test: programs ## five minutes: unit tests, contracts in memory, the simulator, planted bugs, and a fleet that survives a paused leader
	@echo "test the library"; $(RACE) $(call rest,./sim/... $(SLOW))
	@echo "test the contracts and the simulator"; go test ./electortest ./sim/... ./store/mem
	@echo "test the planted bugs"; go test -tags planted -run Plant $(PLANTED)
	@echo "test server"; cd server && $(RACE) $(SERVER_UNIT)
	@echo "test reference"; cd reference && $(RACE) $(REFERENCE_UNIT)
	@echo "test lab"; cd lab && go test $(LAB_UNIT)
	@.cache/bin/lab demo

.PHONY: test-system
test-system: programs ## twenty minutes: everything else, with real servers, processes and faults
	@echo "build the servers that the tests start: once, ten minutes"; go test -timeout 60m -run '^TestBuilt$$' ./internal/servertest
	@echo "test the library: real time"; $(RACE) $(SLOW)
	@$(RACE) -short ./sim/...
	@$(MAKE) -j2 system-modules system-programs
	@go run ./sim/cmd/sim -seeds 2000
	@$(MAKE) lab-quick

# These two run side by side: their tests wait for servers and leases more than they compute.
.PHONY: system-modules system-programs
system-modules:
	@for m in $(filter-out ./ ./server/ ./reference/ ./lab/,$(CODE)); do echo "test $$m"; (cd $$m && $(RACE) ./...); done

system-programs:
	@echo "test server"; cd server && $(RACE) $(call rest,$(SERVER_UNIT))
	@echo "test reference"; cd reference && $(RACE) $(call rest,$(REFERENCE_UNIT))
	@echo "test lab"; cd lab && $(RACE) $(call rest,$(LAB_UNIT))

# Both cores are kept busy meanwhile: these tests once failed only then.
.PHONY: test-flaky
test-flaky: ## ten minutes: tests that have failed under load, COUNT (40) times each while both cores are busy
	@trap 'kill $$(jobs -p)' EXIT; for i in 1 2; do (while :; do :; done) & done; \
	cd server && go test -count=$(or $(COUNT),40) -run '^TestReadyAndStop$$' ./cmd/tenure ./cmd/engine && go test -count=$(or $(COUNT),40) -run '^TestRewound' ./service

.PHONY: test-flood
test-flood: ## five minutes (FLOOD): 300 connections campaign in a loop, and none of 20 leaders loses its lease of 3 s
	@cd server && TENURE_FLOOD=$(or $(FLOOD),5m) go test -count=1 -v -timeout 60m -run '^TestFlood$$' ./cmd/tenure

.PHONY: test-long
test-long: ## forty minutes: 200 rounds of a leader that is cut off, 50 on each other engine, 50 of a ledger that is killed, 100 of a service and its engine, 10 minutes of Raft on busy cores
	@cd store/etcd && TENURE_ROUNDS=200 go test -count=1 -v -timeout 60m -run 'TestNoOverlap' .
	@cd store/kubernetes && TENURE_ROUNDS=50 go test -count=1 -v -timeout 60m -run '^TestAPIServer$$/^together$$/^no_overlap$$' .
	@for m in postgres consul zookeeper redis; do (cd store/$$m && TENURE_ROUNDS=50 go test -count=1 -v -timeout 60m -run '^TestNoOverlap$$' .); done
	@cd reference && TENURE_ROUNDS=50 go test -count=1 -v -timeout 60m -run 'TestKilledLedger' ./ledger
	@cd reference && TENURE_ROUNDS=20 TENURE_DISK_SECONDS=20 go test -count=1 -v -timeout 60m -run '^(TestLedgerLost|TestLedgerShared|TestDiskError)$$' ./node
	@cd server && TENURE_ROUNDS=100 go test -count=1 -v -timeout 60m -run '^TestServiceAndEngineKilled$$' ./cmd/tenure
	@cd raft && TENURE_BURN=10m go test -count=1 -v -timeout 60m -run 'TestLANBurner' .

# Committed as it was compiled, so that nobody needs npm to test it.
.PHONY: typescript
typescript: ## compile clients/typescript into its dist (needs Node 20 and npm 11)
	@rm -rf .cache/typescript && mkdir -p .cache/typescript && cp -R clients/typescript/. .cache/typescript/
	@cd .cache/typescript && rm -rf dist && npm ci --silent && npm run --silent build && \
	sha256sum $$(LC_ALL=C ls dist/*.js) $$(LC_ALL=C ls dist/*.ts) package-lock.json $$(LC_ALL=C ls src/*.ts) tsconfig.json > sources && mv sources dist/sources.txt && \
	rm -rf $(CURDIR)/clients/typescript/dist && cp -R dist $(CURDIR)/clients/typescript/dist

.PHONY: test-clients
test-clients: ## half an hour: 50 rounds (ROUNDS) of each fault for the leaders in Python and TypeScript, with deadlines to the letter, on a machine that does nothing else
	@cd server && TENURE_ROUNDS=$(if $(filter command line environment,$(origin ROUNDS)),$(ROUNDS),50) go test -count=1 -v -timeout 120m -run '^TestClientsStop$$' ./cmd/tenure 2>&1 | grep --line-buffered -e 'rounds in' -e FAIL -e 'work stopped' -e '^ok'

FUZZTIME ?= 5m

.PHONY: fuzz-service
fuzz-service: ## five minutes (FUZZTIME) of whatever can be sent to the service: no panic, no 5xx, every refusal a problem
	@cd server && go test -run '^$$' -fuzz '^FuzzRequest$$' -fuzztime $(FUZZTIME) ./service

ROUNDS ?= 30

.PHONY: bench-failover
bench-failover: ## crash, resign and transfer on every engine, beside etcd's own election: about six minutes, on a machine that does nothing else
	@cd lab && TENURE_BENCH=$(ROUNDS) go test -count=1 -timeout 60m -parallel 9 -run '^TestFailover$$' ./bench -v 2>&1 | grep --line-buffered -v -e '^=== ' -e '--- PASS'

.PHONY: bench-engines
bench-engines: ## crashes and handovers on PostgreSQL, Kubernetes, Consul, ZooKeeper and Redis, beside the usual way of each: ten minutes (ROUNDS=20), on a machine that does nothing else
	@cd lab/comparison && TENURE_BENCH_ENGINES=$(if $(filter command line environment,$(origin ROUNDS)),$(ROUNDS),20) go test -count=1 -timeout 60m -run '^TestEngines$$' . -v 2>&1 | grep --line-buffered -v -e '^=== ' -e '--- PASS'

.PHONY: bench-fence
bench-fence: ## what the fence costs in PostgreSQL and MariaDB, and what group commit gains in the ledger: four minutes (ROUNDS=7), on a machine that does nothing else
	@cd fence/pgxfence && TENURE_ROUNDS=$(if $(filter command line environment,$(origin ROUNDS)),$(ROUNDS),7) go test -run '^$$' -bench . -benchtime 1x . | grep -e '×' -e FAIL
	@cd reference && TENURE_BENCH=1 go test -count=1 -v -run '^TestGroupCommitBar$$' ./ledger | grep -v -e '^=== '

.PHONY: bench-fleet
bench-fleet: ## the fleet's bars: calls, failovers, handovers, ten million jobs, nine nodes: twenty minutes, on a machine that does nothing else
	@cd lab && TENURE_BENCH_FLEET=50 go test -count=1 -v -timeout 60m -run '^TestFleet' ./bench 2>&1 | grep --line-buffered -v -e '^=== ' -e '--- PASS'

.PHONY: bench-service
bench-service: ## the service's bars: campaigns, reads, 10,000 groups, 10,000 watchers: four minutes, on a machine that does nothing else
	@cd lab && TENURE_BENCH_SERVICE=30 go test -count=1 -v -timeout 30m -run '^TestService' ./bench 2>&1 | grep --line-buffered -v -e '^=== ' -e '--- PASS'

.PHONY: bench-scale
bench-scale: ## a thousand candidates on etcd: at rest, on busy cores, after an outage: twenty minutes (BUSY=10m), on a machine that does nothing else
	@cd store/etcd && TENURE_BENCH_SCALE=1 TENURE_BUSY=$(or $(BUSY),10m) go test -count=1 -v -timeout 60m -run '^TestScale' . 2>&1 | grep --line-buffered -v -e '^=== '
	@cd store/etcd && for n in 500 1000; do TENURE_CANDIDATES=$$n go test -count=1 -v -timeout 20m -run '^TestOutage$$' . 2>&1 | grep --line-buffered -v -e '^=== '; done

.PHONY: bench-exec
bench-exec: ## what `tenure exec` costs, then 100 rounds of each of its faults with deadlines to the letter, 50 of cron and of --isolate, and an outage of 60 s: twenty minutes, on a machine that does nothing else
	@cd server && TENURE_BENCH_EXEC=100 go test -count=1 -v -timeout 30m -run '^TestExecCost$$' ./cmd/tenure 2>&1 | grep --line-buffered -v -e '^=== ' -e '--- PASS'
	@cd server && TENURE_ROUNDS=100 go test -count=1 -v -timeout 60m -parallel 10 -run '^(TestExecStops|TestExecEngineGone)$$' ./cmd/tenure 2>&1 | grep --line-buffered -e 'rounds;' -e FAIL -e 'past the deadline' -e '^ok'
	@cd server && TENURE_ROUNDS=50 TENURE_OUTAGE=60s go test -count=1 -v -timeout 60m -parallel 5 -run '^(TestExecCron|TestExecIsolated|TestExecOutage)$$' ./cmd/tenure 2>&1 | grep --line-buffered -e 'rounds;' -e 'service down' -e FAIL -e '^ok'

.PHONY: bench-console
bench-console: ## the console's bars in a real browser: changes until they are visible, 10,000 groups, weight: five minutes, on a machine that does nothing else
	@cd server && TENURE_BENCH_CONSOLE=$(if $(filter command line environment,$(origin ROUNDS)),$(ROUNDS),100) go test -count=1 -v -timeout 30m -run '^TestBars$$' ./console/browser 2>&1 | grep --line-buffered -e ': bar ' -e '^--- FAIL' -e '^ok' -e '^FAIL' -e Error

# The page is committed as it was built, so that nobody needs npm to build the programs. It is built in a
# copy: node_modules has documents and packages that the tests of this repository must not find.
.PHONY: console
console: ## build the web console from server/console/web/src into server/console/web/dist (needs Node 20 and npm 11)
	@rm -rf .cache/console-build && mkdir -p .cache/console-build && cp -R server/console/web/. .cache/console-build/
	@cd .cache/console-build && npm ci --silent && rm -rf dist && npm run --silent build -- --logLevel warn && rm -rf $(CURDIR)/server/console/web/dist && cp -R dist $(CURDIR)/server/console/web/dist
	@cd server && go test -count=1 ./console

.PHONY: test-console
test-console: ## two minutes: the web console in Chromium
	@cd server && go test -count=1 -v -run '^TestBrowser$$' ./console/browser

.PHONY: console-picture
console-picture: ## run the browser tests, and keep the picture that they make for docs/console.md
	@cd server && go test -count=1 ./console/browser && cp $(CURDIR)/.cache/console/console.png $(CURDIR)/docs/console.png

RUN ?= ^Test

# Rows that were not run again keep what was seen before; make clean forgets it.
.PHONY: compare
compare: ## Tenure beside etcdctl lock, consul lock, client-go and redsync, into docs/comparison.md: ten minutes, after a quarter of an hour to build them, once; RUN=TestResign for one row
	@echo "what is not in .cache/compare yet is built first: on two cores that takes a quarter of an hour"
	@cd lab/comparison && go test -count=1 -v -timeout 3h -parallel 6 -run '$(RUN)' . 2>&1 | grep --line-buffered -v -e '^=== ' -e '--- PASS'
	@cd lab/comparison && go run .

.PHONY: sim
sim: ## simulate SEEDS worlds (10000): loss, delay, drift, pause, crash
	@go run ./sim/cmd/sim -seeds $(SEEDS)

.PHONY: bench-pulse
bench-pulse: ## kill -9 of leaders with a keeper: 100 rounds on etcd beside its own election, three members, 10,000 groups, every other engine, and a keeper at rest: fifteen minutes, on a machine that does nothing else
	@cd server && TENURE_BENCH_PULSE=100 go test -count=1 -timeout 60m -run '^TestPulseBench$$' ./engines -v 2>&1 | grep --line-buffered -e 'at most' -e 'at least' -e FAIL -e '^ok'
	@TENURE_BENCH_PULSE=1 go test -count=1 -timeout 60m -run '^TestAtRest$$' ./pulse -v 2>&1 | grep --line-buffered -e 'at most' -e FAIL -e '^ok'

.PHONY: test-pulse-long
test-pulse-long: ## an hour: 10,000 (TRIALS) hostile trials of processes that look dead and live, at a TTL of 3 s: no session ends as died
	@TENURE_TRIALS=$(or $(TRIALS),10000) go test -count=1 -timeout 5h -run '^TestTrials$$' ./pulse -v 2>&1 | grep --line-buffered -e 'trials of' -e FAIL -e SKIP -e '^ok'

.PHONY: bench-detectors
bench-detectors: ## ways to notice a death, side by side: TTL, SWIM with three settings, hint, proof: time, mistakes, messages: ROUNDS (30) kills, FOR (2m) each disturbance: fifteen minutes, on a machine that does nothing else
	@cd lab && TENURE_BENCH_DETECTORS=$(ROUNDS) TENURE_BENCH_FOR=$(or $(FOR),2m) go test -count=1 -v -timeout 2h -run '^TestDetectors$$' ./bench 2>&1 | grep --line-buffered -v -e '^=== ' -e '--- PASS' -e ' keeper: '

.PHONY: bench-raft
bench-raft: ## Raft with Heartbeats from 100 ms: leaders lost without a kill in BURN (10m), at rest and on busy cores, then ROUNDS (100) kills with and without keepers: stops at the first that loses none; an hour, on a machine that does nothing else
	@cd raft && TENURE_BENCH_RAFT=$(if $(filter command line environment,$(origin ROUNDS)),$(ROUNDS),100) TENURE_BURN=$(or $(BURN),10m) go test -count=1 -v -timeout 5h -run '^TestHeartbeats$$' . | grep --line-buffered -v -e '^=== ' -e '--- PASS'

.PHONY: bench-shards
bench-shards: ## 10,000 shards over ten processes on one etcd: shares, a kill with and without proof of death, a join, a rolling restart: ten minutes, on a machine that does nothing else
	@cd store/etcd && TENURE_BENCH_SHARDS=1 go test -count=1 -v -timeout 60m -run '^TestShards$$' . 2>&1 | grep --line-buffered -v -e '^=== '

.PHONY: bench-lock
bench-lock: ## a million names in turn in memory, 50,000 on etcd (NAMES, ETCD_NAMES): tokens increase, and the store stays small: twenty minutes
	@TENURE_LOCK_NAMES=$(or $(NAMES),1000000) go test -count=1 -v -timeout 60m -run '^TestNamesInTurn$$' ./lock 2>&1 | grep -v -e '^=== '
	@cd store/etcd && TENURE_LOCK_NAMES=$(or $(ETCD_NAMES),50000) go test -count=1 -v -timeout 60m -run '^TestNamesInTurn$$' . 2>&1 | grep -v -e '^=== '

.PHONY: sim-planted
sim-planted: ## plant every bug and require that the simulator catches it
	@go run -tags planted ./sim/cmd/sim -planted -seeds 2000

.PHONY: mutations
mutations: ## apply every mutation of tools/mutations/*.txt to a copy and require that its test fails; ARGS=machine for one list
	@tools/mutations/run $(ARGS)

.PHONY: check
check: fmt lint rules tidy ## everything that needs no run: gofmt, the linter (with go vet's analyzers), rules, tidy

.PHONY: fmt
fmt: ## gofmt
	@echo "gofmt"; bad=$$(gofmt -l .); if [ -n "$$bad" ]; then echo "not formatted, run gofmt -w:"; echo "$$bad"; exit 1; fi

# The linter is named after the versions it was built from, so a stale one is
# never used and a fresh checkout with a kept cache does not build it again.
.PHONY: lint
lint: export GOLANGCI_LINT_CACHE := $(CURDIR)/.cache/golangci-lint-cache
lint: ## golangci-lint with go vet's analyzers, also of the planted build
	@lint="$(CURDIR)/.cache/golangci-lint-$$(go env GOVERSION)-$$(git hash-object tools/go.sum)"; \
	if [ ! -x "$$lint" ]; then \
		echo "building golangci-lint (once)"; rm -f .cache/golangci-lint-go*; \
		(cd tools && go build -o "$$lint" github.com/golangci/golangci-lint/v2/cmd/golangci-lint); \
	fi; \
	for m in $(CODE); do for tags in "" $$(git -c safe.directory=* grep -qE '^//go:build .*planted' -- $$m && echo planted); do \
		echo "lint $$m$${tags:+ -tags $$tags}"; \
		(cd $$m && "$$lint" run --allow-parallel-runners --config "$(CURDIR)/.golangci.yaml" --build-tags "$$tags" ./...); \
	done; done

# Uncached: the rules read what go test cannot know that they read.
.PHONY: rules
rules: ## who may import whom, and what the files must not contain
	@echo "rules"; go test -count=1 ./internal/rules

.PHONY: tidy
tidy: ## go.mod and go.sum say what is used
	@for m in $(MODULES); do echo "tidy $$m"; (cd $$m && go mod tidy -diff); done

.PHONY: clean
clean: ## remove what was built
	@rm -rf .cache coverage.out; find . -name '*.test' -type f -delete; find . -name '*.prof' -type f -delete
