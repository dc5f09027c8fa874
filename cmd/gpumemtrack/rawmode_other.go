//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package main

import "os"

func isRaw(*os.File) bool { return false }
