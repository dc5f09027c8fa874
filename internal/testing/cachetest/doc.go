// Package cachetest makes caches for tests, and checks what must always be true of one: Invariants of
// its blocks and sums, Naive the decisions that it takes, Uses that memory is handed out only when the
// work on it is done.
package cachetest
