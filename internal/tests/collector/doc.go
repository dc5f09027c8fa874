// Package collector has only tests, in a module of its own: a real OpenTelemetry Collector, built from its Go modules,
// receives what tracker/export/otlp pushes. The Collector is the test's own binary, started again with a variable set.
//
// .ci/run runs them. By themselves:
//
//	go -C internal/tests/collector test -count=1 ./...
package collector
