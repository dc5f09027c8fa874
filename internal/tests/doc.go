// Package tests has only tests, in a module of its own: what they need (a browser, a
// terminal, other readers of the same files) is not for the users of the library.
//
// .ci/run runs them. By themselves:
//
//	go -C internal/tests test -count=1 ./...
package tests
