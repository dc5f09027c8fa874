package procfs

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestMaps(t *testing.T) {
	all := ParseMaps([]byte(`55638e42b000-55638e42c000 r--p 00000000 fe:00 4242                       /home/me/my program
55638e42c000-55638e42d000 r-xp 00001000 fe:00 4242                       /home/me/my program
7f1329200000-7f1329355000 r-xp 00026000 fe:00 17                         /usr/lib/libc.so.6 (deleted)
7f1329400000-7f1329401000 rwxp 00000000 00:00 0
7ffd-xyz r-xp zz fe:00 1 /torn
torn
`))
	assert.Equal(t, []Mapping{
		{Start: 0x55638e42c000, End: 0x55638e42d000, Offset: 0x1000, Device: "fe:00", Inode: 4242, Path: "/home/me/my program"},
		{Start: 0x7f1329200000, End: 0x7f1329355000, Offset: 0x26000, Device: "fe:00", Inode: 17, Path: "/usr/lib/libc.so.6"},
		{Start: 0x7f1329400000, End: 0x7f1329401000, Offset: 0, Device: "00:00", Inode: 0, Path: ""},
	}, all)
	for address, want := range map[uint64]int{
		0x55638e42bfff: -1, 0x55638e42c000: 0, 0x55638e42cfff: 0, 0x55638e42d000: -1, 0x7f1329354fff: 1, 0x7f1329400001: 2, 1 << 63: -1, 0: -1,
	} {
		m, ok := Find(all, address)
		if assert.Equal(t, want >= 0, ok, "%#x", address); ok {
			assert.Equal(t, all[want], m)
		}
	}
}
