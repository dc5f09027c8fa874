package strictjson

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestJSONIsReadStrictly(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":{"x":1},"b":{"x":1},"c":[{"x":1},{"x":1}],"x":"a"}`: "",
		" [1, {\"a\" : [ ]} ,\t\"}\\\"{\\\\\" ]\n":                "",
		`"name"`: "",

		`{"a":1,"b":2,"a":3}`:              `duplicate object member name "a"`,
		`[[{"b":{"a":1,"c":[],"a":{}}}]]`:  `duplicate object member name "a"`,
		`{"a":1,"\u0061":2}`:               `duplicate object member name "a"`,
		`{"a\"":{"a\"":1},"a\u0022":[{}]}`: `duplicate object member name "a\""`,
		"{\"a\":\"\xff\"}":                 "invalid UTF-8",
		"\"\xe2\x82\"":                     "invalid UTF-8",
		`{"a":1} {}`:                       "something follows the JSON at byte 7",
		`{"a":1}x`:                         "something follows the JSON at byte 7",
		`{"a":1,}`:                         "invalid character '}'",
		`{"a":`:                            "unexpected EOF",
		``:                                 "EOF",
		strings.Repeat("[", 1_000_000):     "exceeded max depth",
	} {
		value, err := Read(strings.NewReader(text))
		if want != "" {
			assert.ErrorContains(t, err, want, "%.40q", text)
			continue
		}
		require.NoError(t, err, text)
		assert.JSONEq(t, text, string(value))
	}
}

func TestJSONCursorFindsNamesAndValues(t *testing.T) {
	c := Cursor{[]byte(`{ "a" : [ 1 , [ "]" ] , { } ] , "b\"\u0062":-1.5e3,"c": true }`)}
	c.Token()
	var got []string
	for c.More() {
		got = append(got, string(Unquote(c.Member())), string(c.Value()))
	}
	assert.Equal(t, []string{"a", `[ 1 , [ "]" ] , { } ]`, `b"b`, "-1.5e3", "c", "true"}, got)
}
