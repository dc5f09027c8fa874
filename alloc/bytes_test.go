package alloc_test

import (
	"flag"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// TestBytesString probes both sides of each rounding boundary.
func TestBytesString(t *testing.T) {
	for _, test := range []struct {
		in   alloc.Bytes
		want string
	}{
		{0, "0 B"},
		{16, "16 B"},
		{1023, "1023 B"},
		{1024, "1.0 KiB"},
		{1075, "1.0 KiB"}, // 1.0498
		{1076, "1.1 KiB"}, // 1.0508
		{1536, "1.5 KiB"},
		{1048524, "1023.9 KiB"}, // 1023.949
		{1048525, "1.0 MiB"},    // 1023.950
		{alloc.MiB, "1.0 MiB"},
		{63 * alloc.MiB, "63.0 MiB"},
		{1073688248, "1023.9 MiB"}, // below 1023.95
		{1073689396, "1.0 GiB"},    // above it
		{alloc.GiB, "1.0 GiB"},
		{1023*alloc.GiB + 972*alloc.MiB, "1023.9 GiB"},
		{1023*alloc.GiB + 973*alloc.MiB, "1.0 TiB"},
		{alloc.TiB, "1.0 TiB"},
		{1024*alloc.TiB - 1, "1.0 PiB"},
		{1024 * alloc.TiB, "1.0 PiB"},
		{1 << 20 * alloc.TiB, "1.0 EiB"},
		{math.MaxInt64, "8.0 EiB"},
		{-16, "-16 B"},
		{-1023, "-1023 B"},
		{-1024, "-1.0 KiB"},
		{-2 * alloc.GiB, "-2.0 GiB"},
		{math.MinInt64, "-8.0 EiB"},
	} {
		assert.Equal(t, test.want, test.in.String(), "%d", int64(test.in))
	}
}

func parseBytes(text string) (n alloc.Bytes, err error) {
	err = n.Set(text)
	return n, err
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]alloc.Bytes{
		"0":                          0,
		"16":                         16,
		"16 B":                       16,
		"+16b":                       16,
		"-16 B":                      -16,
		"1K":                         1024,
		"1k":                         1024,
		"1Ki":                        1024,
		"1KiB":                       1024,
		"1kib":                       1024,
		"1KB":                        1000,
		"24GiB":                      24 * alloc.GiB,
		"24 GB":                      24e9,
		" 1.5 MiB ":                  1536 * alloc.KiB,
		".5K":                        512,
		"2.K":                        2048,
		"3TiB":                       3 * alloc.TiB,
		"3PiB":                       3 * 1024 * alloc.TiB,
		"7EiB":                       7 << 20 * alloc.TiB,
		"0.4 B":                      0,
		"0.5 B":                      1,
		"-0.5 B":                     -1,
		"-0.4":                       0,
		"1.0004882 KiB":              1024,
		"1.0004883 KiB":              1025,
		"9223372036854775807":        math.MaxInt64,
		"-9223372036854775808":       math.MinInt64,
		"-8EiB":                      math.MinInt64,
		"9223372036854775807.4":      math.MaxInt64,
		"0.000000000000000000000001": 0,
	} {
		got, err := parseBytes(in)
		if assert.NoError(t, err, "%q", in) {
			assert.Equal(t, want, got, "%q", in)
		}
	}
}

func TestParseBytesRefuses(t *testing.T) {
	for in, message := range map[string]string{
		"":                       "want a decimal number",
		"MiB":                    "want a decimal number",
		".":                      "want a decimal number",
		"1.2.3":                  "want a decimal number",
		"--1":                    "want a decimal number",
		"1-2":                    "want a decimal number",
		"1/2":                    "want a decimal number",
		"0x10":                   "want a decimal number",
		"1e3":                    "want a decimal number",
		"1_000":                  "want a decimal number",
		"1 ZiB":                  "unknown unit",
		"1 KiBB":                 "unknown unit",
		"1 bytes":                "unknown unit",
		"NaN":                    "unknown unit",
		"8EiB":                   "out of range",
		"9223372036854775807.5":  "out of range",
		"-8.0000000000000001EiB": "out of range",
		strings.Repeat("9", 41):  "want a decimal number",
	} {
		_, err := parseBytes(in)
		assert.ErrorContains(t, err, message, "%q", in)
	}
}

// TestBytesRoundTrip: what String writes is read as nearly what it was.
func TestBytesRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := alloc.Bytes(rapid.Int64Range(-7<<60, 7<<60).Draw(t, "n"))
		text := n.String()
		parsed, err := parseBytes(text)
		require.NoError(t, err)
		require.InEpsilon(t, 1+math.Abs(float64(n)), 1+math.Abs(float64(parsed)), 0.051, text)
		require.Equal(t, text, parsed.String(), "what was read prints the same")
	})
}

func TestBytesFlag(t *testing.T) {
	flags := flag.NewFlagSet("test", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	limit := 2 * alloc.GiB
	flags.Var(&limit, "limit", "")
	require.Error(t, flags.Parse([]string{"-limit=much"}))
	assert.Equal(t, 2*alloc.GiB, limit, "a failed Set changes nothing")
	require.NoError(t, flags.Parse([]string{"-limit=1.5GiB"}))
	assert.Equal(t, 1536*alloc.MiB, limit)
}

func FuzzParseBytes(f *testing.F) {
	for _, seed := range []string{"16", "1.5 MiB", "-2GB", "8EiB", ".", "1e999999999", "0x1p-2"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseBytes(text)
		if err != nil {
			require.Zero(t, n)
			return
		}
		if n > math.MinInt64+1<<55 && n < math.MaxInt64-1<<59 { // 8.0 EiB, rounded, is out of range
			again, err := parseBytes(n.String())
			require.NoError(t, err)
			require.Equal(t, n.String(), again.String())
		}
	})
}
