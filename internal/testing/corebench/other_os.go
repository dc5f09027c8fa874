//go:build !unix

package main

import "os"

func main() {
	os.Stderr.WriteString("corebench: needs a system that counts processor time by getrusage\n")
	os.Exit(2)
}
