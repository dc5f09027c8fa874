//go:build !unix

package cli

// addressSpace returns how much address space the program may take; 0 means without limit.
func addressSpace() int64 { return 0 }
