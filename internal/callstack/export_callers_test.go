//go:build !gc || !(amd64 || arm64) || nofp

package callstack

// Walks says whether Capture follows frame pointers.
const Walks = false
