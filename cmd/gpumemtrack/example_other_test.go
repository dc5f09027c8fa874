//go:build !cuda

package main

import "testing"

const withCUDA = false

func TestRecordsTheExample(t *testing.T) {
	t.Skip("the example takes a device's memory if built with -tags cuda: see scripts/cuda-headers")
}
