package jsonstream

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
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
	for _, torn := range []string{"", " ", `"a`, `"a\`, "[1", `{"a":"]`} {
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

// TestLongElementsAreRefused: what is read as a whole is bounded, whatever the file's size, and whether it is a string, a
// number or a list.
func TestLongElementsAreRefused(t *testing.T) {
	for _, unit := range []string{`"` + strings.Repeat("x", 1<<20), strings.Repeat("1", 1<<20), "[" + strings.Repeat("1,", 1<<19)} {
		body := strings.TrimLeft(unit, `"[`)
		in := io.MultiReader(strings.NewReader("["+unit), strings.NewReader(strings.Repeat(body, 17)))
		s, err := NewReader(in)
		require.NoError(t, err)
		err = s.Elements(func() error { _, err := s.Raw(); return err })
		require.ErrorIs(t, err, bounded.ErrTooLarge)
		assert.ErrorContains(t, err, "an element of the JSON has more than 16 MiB")
	}
	many := stream(t, "["+strings.Repeat(`"`+strings.Repeat("x", 1<<20)+`",`, 20)+"1]")
	count := 0
	require.NoError(t, many.Elements(func() error { count++; _, err := many.Raw(); return err }), "many short ones are not bounded")
	assert.Equal(t, 21, count)
}

// TestErrorsSayWhere: an error names the member of the text that is wrong, in few words.
func TestErrorsSayWhere(t *testing.T) {
	read := func(text string) error {
		s := stream(t, text)
		var value func() error
		value = func() error {
			switch first, err := s.Next(); {
			case err != nil:
				return err
			case first == '{':
				_, err := s.Members(func(string) error { return value() })
				return err
			case first == '[':
				return s.Elements(value)
			}
			_, err := s.Raw()
			return err
		}
		return value()
	}
	for text, want := range map[string]string{
		`{"a":[1,{"b":x}]}`: "invalid character 'x' at start of value within \"/a/1/b\"",
		`{"a":[1 2]}`:       "invalid character '2' after array element (expecting ',' or ']') within \"/a\"",
		`x`:                 "invalid character 'x' at start of value",
		`{"` + strings.Repeat("a", 1000) + `": x}`: "invalid character 'x' at start of value within \"/" + strings.Repeat("a", 99) + `"`,
		`{"a":`: io.ErrUnexpectedEOF.Error(),
		``:      io.ErrUnexpectedEOF.Error(),
	} {
		assert.EqualError(t, read(text), want, text)
	}
	_, err := stream(t, `[1]`).Members(nil)
	assert.EqualError(t, err, "the JSON is an array, want an object")
	s := stream(t, `{"a":"b"}`)
	_, err = s.Members(func(string) error { return s.Elements(nil) })
	assert.EqualError(t, err, `"/a" is a string, want an array`)
	broken := errors.New("broken")
	failing, err := NewReader(io.MultiReader(strings.NewReader("["), iotest.ErrReader(broken)))
	require.NoError(t, err)
	assert.Equal(t, broken, failing.Elements(func() error { _, err := failing.Raw(); return err }), "the file's own error")
}

// TestOffset counts what was used, though more was read.
func TestOffset(t *testing.T) {
	s := stream(t, ` [1, "two"] 3`)
	require.NoError(t, s.Elements(func() error { _, err := s.Raw(); return err }))
	assert.EqualValues(t, len(` [1, "two"]`), s.Offset())
}

// TestTextThatIsNotUTF8: a program's names may have any bytes; what is no JSON string is refused all the same.
func TestTextThatIsNotUTF8(t *testing.T) {
	text, err := Text([]byte("\"a\xffb\\n\""))
	require.NoError(t, err)
	assert.Equal(t, "a\uFFFDb\n", text)
	for _, wrong := range []string{"", "12", "\"a", "\"a\xff", "\"\\q\xff\""} {
		_, err := Text([]byte(wrong))
		assert.Error(t, err, wrong)
	}
}
