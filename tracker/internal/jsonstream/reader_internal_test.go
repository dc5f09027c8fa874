package jsonstream

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func stream(t require.TestingT, text string) *Reader {
	s, err := NewReader(strings.NewReader(text))
	require.NoError(t, err)
	return s
}

func TestRawReadsOneValue(t *testing.T) {
	for text, want := range map[string]string{
		"1,": "1", " \n-2.5e3]": "-2.5e3", `"a\"]}" `: `"a\"]}"`, `{"a":[1,{"b":"}"}]},`: `{"a":[1,{"b":"}"}]}`, "[] ": "[]", "true}": "true", `"\\"]`: `"\\"`,
	} {
		s := stream(t, text)
		got, err := s.Raw()
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
	for _, torn := range []string{"", " ", "1", `"a`, `"a\`, "[1", `{"a":"]`} {
		_, err := stream(t, torn).Raw()
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF, torn)
	}
	long := `"` + strings.Repeat("x", 1<<18) + `"`
	s, err := NewReader(iotest.OneByteReader(strings.NewReader("[" + long + "," + long + "]")))
	require.NoError(t, err)
	count := 0
	require.NoError(t, s.Elements(func() error {
		text, err := s.Raw()
		assert.True(t, long == string(text))
		count++
		return err
	}))
	assert.Equal(t, 2, count)
}
