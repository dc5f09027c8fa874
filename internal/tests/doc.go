// Package tests has only tests, in a module of its own: what they need (a browser, a
// terminal, other readers of the same files) is not for the users of the library.
//
// internal/testing/readme runs them with the other module's. By itself:
//
//	go -C internal/tests test -count=1 ./...
package tests
