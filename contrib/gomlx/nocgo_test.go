//go:build !cgo

package memtrack_test

const xlaIsThere = false
