package nvml

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

const migLog = `<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
 <gpu id="00000000:0B:00.0"><uuid>GPU-a</uuid>
  <mig_devices>
   <mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id><compute_instance_id>0</compute_instance_id>
    <fb_memory_usage><total>40448 MiB</total><reserved>0 MiB</reserved><used>298 MiB</used><free>40151 MiB</free></fb_memory_usage></mig_device>
   <mig_device><index>1</index><gpu_instance_id>5</gpu_instance_id><compute_instance_id>0</compute_instance_id>
    <fb_memory_usage><total>20096 MiB</total><used>[Unknown Error]</used></fb_memory_usage></mig_device>
  </mig_devices>
  <processes>
   <process_info><gpu_instance_id>1</gpu_instance_id><compute_instance_id>0</compute_instance_id><pid>77</pid><used_memory>250 MiB</used_memory></process_info>
   <process_info><gpu_instance_id>5</gpu_instance_id><compute_instance_id>0</compute_instance_id><pid>78</pid><used_memory>N/A</used_memory></process_info>
  </processes>
 </gpu>
 <gpu id="00000000:1B:00.0"><uuid>GPU-b</uuid><mig_devices>None</mig_devices></gpu>
</nvidia_smi_log>`

func TestSMIMIG(t *testing.T) {
	f := &fakeSMI{
		gpus: []fakeGPU{gpuRow("0", "GPU-a", "NVIDIA A100", "mig.mode.current", "Enabled"), gpuRow("1", "GPU-b", "NVIDIA A100")},
		other: map[string]string{
			"-L": "GPU 0: NVIDIA A100 (UUID: GPU-a)\n  MIG 3g.40gb     Device  0: (UUID: MIG-1)\n  MIG 2g.20gb     Device  1: (UUID: MIG-2)\nGPU 1: NVIDIA A100 (UUID: GPU-b)\n",
			"-q": migLog,
		},
	}
	s := openFakeSMI(t, f)
	devices, readings := read(t, s)
	require.Len(t, devices, 4)
	assert.Equal(t, Device{Index: 0, UUID: "MIG-1", Name: "NVIDIA A100 MIG 3g.40gb", BusID: "00000000:0B:00.0", Parent: "GPU-a", MIG: 1}, devices[1])
	used, _ := readings[1].bytes(MemoryUsed)
	assert.Equal(t, 298*alloc.MiB, used)
	total, _ := readings[1].bytes(MemoryTotal)
	assert.Equal(t, 40448*alloc.MiB, total)
	assert.ErrorContains(t, readings[2].Err, "[Unknown Error]")
	assert.NoError(t, readings[3].Err)

	list, err := s.Processes(devices[1])
	require.NoError(t, err)
	assert.Equal(t, map[int]alloc.Bytes{77: 250 * alloc.MiB}, list)
	list, err = s.Processes(devices[2])
	require.NoError(t, err)
	assert.Equal(t, map[int]alloc.Bytes{78: -1}, list)

	f.other["-q"] = "<nvidia_smi_log></nvidia_smi_log>"
	_, err = s.Processes(devices[1])
	assert.ErrorIs(t, err, errNoMIG)
	f.other["-q"] = "no XML <"
	_, readings = read(t, s)
	assert.ErrorContains(t, readings[1].Err, "nvidia-smi -q -x")
	f.other["-L"] = "error: not now"
	devices, err = s.Devices()
	require.NoError(t, err)
	assert.Len(t, devices, 2)
}
