module github.com/tenurehq/tenure/store/postgres

go 1.26.0

require (
	github.com/jackc/pgx/v5 v5.11.0
	github.com/tenurehq/tenure v0.0.0
	github.com/tenurehq/tenure/fence/pgxfence v0.0.0-00010101000000-000000000000
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	github.com/jackc/puddle/v2 v2.2.2 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.29.0 // indirect
)

replace (
	github.com/tenurehq/tenure => ../..
	github.com/tenurehq/tenure/fence/pgxfence => ../../fence/pgxfence
)

// Only modernc.org/sqlite's own tests want it, and it cannot be had.
exclude github.com/google/pprof v0.0.0-20261016150608-1facf8f91b50
