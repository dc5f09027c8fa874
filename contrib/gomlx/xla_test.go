//go:build cgo

package memtrack_test

import "github.com/gomlx/go-xla/compute/xla"

// xlaIsThere is false without cgo, which go-xla needs.
const xlaIsThere = true

func init() { xla.EnableAutoInstall(false) } // no test downloads a plugin
