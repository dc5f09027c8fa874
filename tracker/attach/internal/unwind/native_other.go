//go:build !(linux && arm64)

package unwind

// Native is this machine.
var Native = AMD64
