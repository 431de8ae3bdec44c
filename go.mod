module github.com/baton-llm/baton

go 1.26.0

require github.com/cockroachdb/datadriven v1.0.3

require (
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/oklog/run v1.2.0 // indirect
	github.com/philhofer/fwd v1.2.0 // indirect
	github.com/pmezard/go-difflib v1.0.0 // indirect
	github.com/prometheus/client_golang v1.25.0 // indirect
	github.com/spf13/pflag v1.1.0 // indirect
	github.com/tinylib/msgp v1.6.5 // indirect
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/mod v0.18.0 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/tools v0.22.0 // indirect
	pgregory.net/rapid v1.3.0 // indirect
)
