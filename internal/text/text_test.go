package text_test

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

func TestLine(t *testing.T) {
	for s, want := range map[string]string{
		"main.load": "main.load", "Größe 数": "Größe 数", "": "",
		"a\nb": `"a\nb"`, "\x1b[31mred": `"\x1b[31mred"`, "a\xff": `"a\xff"`, "\x1b]0;title\a": `"\x1b]0;title\a"`, "a\u202eb": `"a\u202eb"`,
	} {
		assert.Equal(t, want, text.Line(s))
	}
}

func TestUTF8(t *testing.T) {
	for s, want := range map[string]string{
		"main.load": "main.load", "Größe\n": "Größe\n", "abc\xff": `abc\xff`, "\xc3(": `\xc3(`, "a\xe2\x82": `a\xe2\x82`, "\ufffd": "\ufffd",
	} {
		assert.Equal(t, want, text.UTF8(s))
		assert.True(t, utf8.ValidString(text.UTF8(s)))
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 7: "7", 999: "999", 1000: "1,000", -100: "-100", -1234: "-1,234", 8030261248: "8,030,261,248"} {
		assert.Equal(t, want, text.Grouped(n))
	}
}
