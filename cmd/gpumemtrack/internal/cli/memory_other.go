//go:build !unix

package cli

// addressSpace returns how much address space the program may take; 0 is no limit.
func addressSpace() int64 { return 0 }
