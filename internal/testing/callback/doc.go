// Package callback calls Go from C, to test call stacks that run through both. It is a package of its own because test files
// cannot use cgo; without cgo it is empty.
package callback
