package nvml

import "fmt"

// schema names the format of a recording's file and its version.
const schema = "gpumemtrack.recording/1"

// maxDevices bounds the devices of a file, each of which takes memory for every quantity: more
// than any machine has, MIG devices included.
const maxDevices = 256

func checkDevices(n int) error {
	if n > maxDevices {
		return fmt.Errorf("more than %d devices", maxDevices)
	}
	return nil
}
