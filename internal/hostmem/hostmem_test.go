package hostmem

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
)

const mib = 1 << 20

func files(text map[string]string) fstest.MapFS {
	root := fstest.MapFS{"proc/meminfo": {Data: []byte("MemTotal:       8388608 kB\nMemFree:          1 kB\nMemAvailable:    4194304 kB\n")}}
	for name, text := range text {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

func TestAvailable(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no group": {nil, 4096 * mib},
		"without limit": {map[string]string{
			"proc/self/cgroup": "0::/user.slice\n", "sys/fs/cgroup/user.slice/memory.max": "max\n",
		}, 4096 * mib},
		"version 2": {map[string]string{
			"proc/self/cgroup":                 "0::/pod/box\n",
			"sys/fs/cgroup/pod/box/memory.max": "1073741824\n", "sys/fs/cgroup/pod/box/memory.current": "104857600\n",
			"sys/fs/cgroup/pod/box/memory.stat": "anon 1\nactive_file 5\ninactive_file 52428800\n",
		}, (1024 - 50) * mib},
		"the group around it is smaller": {map[string]string{
			"proc/self/cgroup":                 "0::/pod/box\n",
			"sys/fs/cgroup/pod/box/memory.max": "1073741824\n",
			"sys/fs/cgroup/pod/memory.max":     "524288000\n", "sys/fs/cgroup/pod/memory.current": "419430400\n",
		}, 100 * mib},
		"full": {map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "1048576\n", "sys/fs/cgroup/memory.current": "2097152\n",
		}, 0},
		"version 1, the path of the host": {map[string]string{
			"proc/self/cgroup":                           "11:cpu,cpuacct:/docker/abc\n7:memory:/docker/abc\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "1073741824\n",
			"sys/fs/cgroup/memory/memory.stat": "inactive_file 7\ntotal_inactive_file 1048576\n",
		}, 1025 * mib},
		"version 1 without limit": {map[string]string{
			"proc/self/cgroup": "7:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 4096 * mib},
	} {
		got, ok := available(files(test.files))
		assert.True(t, ok, name)
		assert.Equal(t, test.want, got, name)
	}
	_, ok := available(fstest.MapFS{})
	assert.False(t, ok, "no /proc")
}
