// Command gpumemtrack watches GPU memory from outside a program, estimates what
// a model needs, and works on what package tracker writes. Run it with --help.
//
// It exits with 0 when it did what was asked, 1 when it could not, 2 when it was
// used wrongly; estimate --fits exits with 3 when the model does not fit, diff
// --fail-over with 3 when memory grew by more, and record with the code of the command that it ran.
package main

import "os"

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
