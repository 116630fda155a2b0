package labapi

import (
	"encoding/json"
	"fmt"
	"os"
)

// FleetFile lists the processes of a fleet with their addresses. The process that starts the
// fleet writes it; load generators and fault injectors read it.
type FleetFile struct {
	Group   string `json:"group"`
	Backend string `json:"backend"`
	TTLMS   int64  `json:"ttl_ms"`
	Dir     string `json:"dir"`
	Lab     bool   `json:"lab"`
	// Engine is its first member; empty if the nodes elect among themselves.
	Engine  Process      `json:"engine"`
	Engines []EngineFile `json:"engines,omitempty"`
	Ledger  LedgerFile   `json:"ledger"`
	Nodes   []NodeFile   `json:"nodes"`
	Workers []WorkerFile `json:"workers"`
	Proxies ProxiesFile  `json:"proxies"`
}

// Process is a process that can be called.
type Process struct {
	URL string `json:"url,omitempty"`
	PID int    `json:"pid,omitempty"`
}

// EngineFile is a member of the engine.
type EngineFile struct {
	ID string `json:"id"`
	Process
}

// LedgerFile is the ledger and its database.
type LedgerFile struct {
	Process
	DB string `json:"db,omitempty"`
}

// NodeFile is a node and the names of the proxies that stand between it and others.
type NodeFile struct {
	ID string `json:"id"`
	Process
	Proxies NodeProxies `json:"proxies"`
}

// NodeProxies are names of proxies; empty: none.
type NodeProxies struct {
	// Engine is the proxy to the engine's first member; Engines has those to all members, by id.
	Engine  string            `json:"engine,omitempty"`
	Engines map[string]string `json:"engines,omitempty"`
	Ledger  string            `json:"ledger,omitempty"`
	Client  string            `json:"client,omitempty"`
	// Peers are the proxies to the node's Raft peers, by their id.
	Peers map[string]string `json:"peers,omitempty"`
}

// WorkerFile is a worker.
type WorkerFile struct {
	ID string `json:"id"`
	Process
}

// ProxiesFile says where the proxies are controlled.
type ProxiesFile struct {
	API string `json:"api,omitempty"`
}

// ReadFleetFile reads a fleet file.
func ReadFleetFile(path string) (FleetFile, error) {
	var f FleetFile
	data, err := os.ReadFile(path)
	if err != nil {
		return f, fmt.Errorf("read the fleet file: %w", err)
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%s is not a fleet file: %w", path, err)
	}
	return f, nil
}
