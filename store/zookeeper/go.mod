module github.com/tenurehq/tenure/store/zookeeper

go 1.26.0

require (
	github.com/go-zookeeper/zk v1.0.4
	github.com/tenurehq/tenure v0.0.0
)

replace github.com/tenurehq/tenure => ../..
