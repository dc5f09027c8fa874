package symbols

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestInstructions: by objdump of binutils 2.40, which decodes each as one instruction.
func TestInstructions(t *testing.T) {
	jump := func(distance int64) instruction { return instruction{jumps: true, distance: distance} }
	for name, test := range map[string]struct {
		code []byte
		size int
		want instruction
	}{
		"ret":                       {[]byte{0xc3}, 1, instruction{returns: true}},
		"repz ret":                  {[]byte{0xf3, 0xc3}, 2, instruction{returns: true}},
		"bnd ret":                   {[]byte{0xf2, 0xc3}, 2, instruction{returns: true}},
		"ret $0x8":                  {[]byte{0xc2, 8, 0}, 3, instruction{returns: true}},
		"endbr64":                   {endbr64, 4, instruction{}},
		"jmp +0x10":                 {[]byte{0xeb, 0x10}, 2, jump(0x12)},
		"jmp -0x100":                {[]byte{0xe9, 0, 0xff, 0xff, 0xff}, 5, jump(5 - 0x100)},
		"ja +0x100":                 {[]byte{0x0f, 0x87, 0, 1, 0, 0}, 6, jump(0x106)},
		"jrcxz +1":                  {[]byte{0xe3, 1}, 2, jump(3)},
		"jmp *%rax":                 {[]byte{0xff, 0xe0}, 2, instruction{jumpsAnywhere: true}},
		"notrack jmp *%rax":         {[]byte{0x3e, 0xff, 0xe0}, 3, instruction{jumpsAnywhere: true}},
		"jmp *0x10(%rip)":           {[]byte{0xff, 0x25, 0x10, 0, 0, 0}, 6, instruction{jumpsAnywhere: true}},
		"call *%rax":                {[]byte{0xff, 0xd0}, 2, instruction{}},
		"mov $0xc3,%al":             {[]byte{0xb0, 0xc3}, 2, instruction{}},
		"vzeroupper":                {[]byte{0xc5, 0xf8, 0x77, 0xc3, 0xc3, 0xc3}, 3, instruction{}},
		"vmovups (%rax),%ymm0":      {[]byte{0xc5, 0xfc, 0x10, 0x00, 0xc3, 0xc3}, 4, instruction{}},
		"vmovdqu 8(%rsp),%xmm0":     {[]byte{0xc5, 0xfa, 0x6f, 0x44, 0x24, 0x08}, 6, instruction{}},
		"vpinsrq $1,%rax,%xmm0":     {[]byte{0xc4, 0xe3, 0xf9, 0x22, 0xc0, 0x01}, 6, instruction{}},
		"vpshufd $0xe0,%xmm0,%xmm0": {[]byte{0xc5, 0xf9, 0x70, 0xc0, 0xe0, 0xc3}, 5, instruction{}},
		"vpbroadcastq %rax,%xmm0":   {[]byte{0x62, 0xf2, 0xfd, 0x08, 0x7c, 0xc0}, 6, instruction{}},
		"vmovdqu64 (%rip),%zmm0":    {[]byte{0x62, 0xf1, 0xfe, 0x48, 0x6f, 0x05, 1, 2, 3, 4}, 10, instruction{}},
		"not one":                   {[]byte{0x06}, 0, instruction{unknown: true}},
	} {
		it, size := amd64Instruction(test.code)
		assert.Equal(t, test.want, it, name)
		assert.Equal(t, test.size, size, name)
	}
	for name, test := range map[string]struct {
		word uint32
		want instruction
	}{
		"ret":              {0xd65f03c0, instruction{returns: true}},
		"ret x1":           {0xd65f0020, instruction{returns: true}},
		"retaa":            {0xd65f0bff, instruction{returns: true}},
		"retab":            {0xd65f0fff, instruction{returns: true}},
		"br x16":           {0xd61f0200, instruction{jumpsAnywhere: true}},
		"braaz x16":        {0xd61f0a1f, instruction{jumpsAnywhere: true}},
		"braa x16, x17":    {0xd71f0a11, instruction{jumpsAnywhere: true}},
		"blr x8":           {0xd63f0100, instruction{}},
		"blraa x8, x9":     {0xd73f0909, instruction{}},
		"b .+16":           {0x14000004, jump(16)},
		"b .-16":           {0x17fffffc, jump(-16)},
		"bl .+16":          {0x94000004, instruction{}},
		"b.eq .-8":         {0x54ffffc0, jump(-8)},
		"cbz x0, .+12":     {0xb4000060, jump(12)},
		"cbnz w0, .-4":     {0x35ffffe0, jump(-4)},
		"tbz x0, #3, .+8":  {0x36180040, jump(8)},
		"tbnz x0, #3, .-8": {0x371fffc0, jump(-8)},
		"stp x29, x30":     {0xa9bf7bfd, instruction{}},
	} {
		assert.Equal(t, test.want, arm64Instruction(test.word), name)
	}
}
