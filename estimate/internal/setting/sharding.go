package setting

import (
	"fmt"
)

// Sharding is estimate.Sharding.
type Sharding struct {
	Data         int
	ZeRO         int
	Tensor       int
	Pipeline     int
	MicroBatches int
}

// maxDevices bounds each way of sharding.
const maxDevices = 1 << 20

// check fills in the defaults and reports what makes no sense.
func (s *Sharding) check() error {
	if s.ZeRO < 0 || s.ZeRO > 3 {
		return fmt.Errorf("estimate sharding: ZeRO is %d: want a stage from 0 to 3", s.ZeRO)
	}
	s.Data, s.Tensor, s.Pipeline = Or(s.Data, 1), Or(s.Tensor, 1), Or(s.Pipeline, 1)
	s.MicroBatches = Or(s.MicroBatches, s.Pipeline)
	for _, f := range []struct {
		name  string
		value int
	}{{"Data", s.Data}, {"Tensor", s.Tensor}, {"Pipeline", s.Pipeline}, {"MicroBatches", s.MicroBatches}} {
		if f.value < 1 || f.value > maxDevices {
			return fmt.Errorf("estimate sharding: %s is %d: want 1 or more, and at most %d", f.name, f.value, maxDevices)
		}
	}
	return nil
}

// Devices is the number of devices that share the weights or the layers.
func (s Sharding) Devices() int {
	n := s.Tensor * s.Pipeline
	if s.ZeRO >= 3 {
		n *= s.Data
	}
	return n
}
