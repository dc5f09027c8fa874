package plain_test

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/plain"
)

func read(text string, as func(*bounded.Reader) (*plain.Data, plain.Value, error)) (string, error) {
	r, err := bounded.NewReader(strings.NewReader(text), 0)
	if err != nil {
		return "", err
	}
	data, v, err := as(r)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	show(&b, data, v)
	return b.String(), nil
}

// show prints a value as Python's repr does, with %q for strings.
func show(b *strings.Builder, d *plain.Data, v plain.Value) {
	switch v.Kind() {
	case plain.None:
		b.WriteString("None")
	case plain.Bool:
		is, _ := v.Bool()
		fmt.Fprint(b, is)
	case plain.Int:
		n, _ := v.Int()
		fmt.Fprint(b, n)
	case plain.Float:
		f, _ := v.Float()
		fmt.Fprint(b, f)
	case plain.String:
		fmt.Fprintf(b, "%q", d.Str(v))
	case plain.List:
		b.WriteByte('[')
		for i, e := range d.List(v) {
			if i > 0 {
				b.WriteByte(' ')
			}
			show(b, d, e)
		}
		b.WriteByte(']')
	case plain.Global:
		b.WriteString(d.Global(v))
	case plain.Called:
		o, _ := d.Object(v)
		show(b, d, o.Callee)
		b.WriteByte('(')
		for i, part := range []plain.Value{o.Args, o.State, o.Items} {
			if i > 0 {
				b.WriteByte(' ')
			}
			show(b, d, part)
		}
		b.WriteByte(')')
	case plain.Dict:
		b.WriteByte('{')
		for key, value := range d.Each(v) {
			fmt.Fprintf(b, "%s:", key)
			show(b, d, value)
			b.WriteByte(' ')
		}
		b.WriteByte('}')
	}
}

func TestPickles(t *testing.T) {
	for text, want := range map[string]string{
		"I42\n.": "42", "I-7\n.": "-7", "I01\n.": "true", "I00\n.": "false", "L123456789012L\n.": "123456789012",
		"L18446744073709551615L\n.": "-1", "F1.5\n.": "1.5", "N.": "None",
		`S'it\'s\n\x41'` + "\n.": `"it's\nA"`, `S"a\\b"` + "\n.": `"a\\b"`,
		"V\\u20ac \xe9 \\n\n.": `"€ é \\n"`, "V\\U0001f600\r\n.": `"😀"`,
		"(lp0\nI1\naI2\na.": "[1 2]", "(dp0\nVa\np1\nI1\nsg1\nI2\ns.": "{a:2 }",
		"(dp0\nVa\np1\nI1\nsVb\nN\nsg1\nVx\ns.": "", "(dp0\nVa\np1\nI1\nsVb\nNsg1\nVx\ns.": `{a:"x" b:None }`, "(I1\nI2\nt.": "[1 2]",
		"(I1\nI2\nI3\nl.": "[1 2 3]", "(Va\nI1\nVb\nN d.": "",
		"\x80\x02K\x01K\x02\x86q\x00h\x00\x86.": "[[1 2] [1 2]]", "\x80\x04]\x94(h\x00K\x01K\x02e0K\x05.": "5",
		"\x80\x04(K\x011K\x02.": "2", "\x80\x04(0K\x02.": "2", "\x80\x03C\x02hi.": `"hi"`,
		"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.": "-1", "\x80\x02\x8a\x02\x00\x80.": "-32768", "\x80\x02\x8a\x00.": "0",
		"\x80\x02G\x3f\xf8\x00\x00\x00\x00\x00\x00.": "1.5", "\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00x.": `"x"`,
	} {
		got, err := read(text, plain.ReadPickle)
		if want == "" {
			assert.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
}

func TestJSON(t *testing.T) {
	many := strings.Repeat("1,", 2500) + "1"
	for text, want := range map[string]string{
		`null `: "None", ` [1, -2.5, true, "a\u20ac", {"k": [], "k": 3}, 18446744073709551615, 1e400]`: "",
		`[1, -2.5, true, "a\u20ac", {"k": [], "k": 3, "l": {}}, 18446744073709551615]`: `[1 -2.5 true "a€" {k:3 l:{} } -1]`,
		"[" + many + "]":                "[" + strings.ReplaceAll(many, ",", " ") + "]",
		`{"a": [` + many + `], "b": 1}`: "{a:[" + strings.ReplaceAll(many, ",", " ") + "] b:1 }",
		`{"a" 1}`:                       "", `{`: "", `]`: "",
	} {
		got, err := read(text, plain.ReadJSON)
		if want == "" {
			assert.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		assert.Equal(t, want, got)
	}
}

// TestManyKeys: a dict of more keys than a shape has keeps them all, the last of each.
func TestManyKeys(t *testing.T) {
	var text, want strings.Builder
	for i := range 100 {
		fmt.Fprintf(&text, `"k%d":0,"k%d":%d,`, i, i, i)
		fmt.Fprintf(&want, "k%d:%d ", i, i)
	}
	got, err := read("{"+strings.TrimSuffix(text.String(), ",")+"}", plain.ReadJSON)
	require.NoError(t, err)
	assert.Equal(t, "{"+want.String()+"}", got)
}

// TestPythonWritesIt holds every protocol of Python's own against the reader.
func TestPythonWritesIt(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not in PATH")
	}
	for protocol := range 6 {
		cmd := exec.Command(python, "-c", fmt.Sprintf(`
import pickle, sys
shared = ["x", (0, 1), {}]
value = [None, True, False, 0, -1, 255, 65536, 1 << 40, -(1 << 40), (1 << 63) - 1, 1.5, "é€😀\\\n'\"", "y" * 700, shared, shared, [],
    {"a": shared, "b": {"c": -0.25}, "n": list(range(1500))[-3:]}, set(), tuple(range(5))]
value.append({str(i): i for i in range(40)})
sys.stdout.buffer.write(pickle.dumps(value, protocol=%d))`, protocol))
		if protocol < 4 { // a set has no opcode of its own yet
			cmd.Args[2] = strings.Replace(cmd.Args[2], "set()", "()", 1)
		}
		out, err := cmd.Output()
		require.NoError(t, err)
		got, err := read(string(out), plain.ReadPickle)
		require.NoError(t, err, "protocol %d", protocol)
		shared := `["x" [0 1] {}]`
		var keys strings.Builder
		for i := range 40 {
			fmt.Fprintf(&keys, "%d:%d ", i, i)
		}
		assert.Equal(t, `[None true false 0 -1 255 65536 1099511627776 -1099511627776 9223372036854775807 1.5 "é€😀\\\n'\"" "`+strings.Repeat("y", 700)+`" `+
			shared+" "+shared+` [] {a:`+shared+` b:{c:-0.25 } n:[1497 1498 1499] } [] [0 1 2 3 4] {`+keys.String()+`}]`, got, "protocol %d", protocol)
	}
}

func FuzzReadPickle(f *testing.F) {
	f.Add("\x80\x04}\x94(\x8c\x01a]\x94(K\x01h\x00eu.")
	f.Add("(dp0\nVa\np1\nI1\ns.")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := bounded.NewReader(strings.NewReader(text), 1<<20)
		if err == nil {
			_, _, _ = plain.ReadPickle(r)
		}
	})
}

// TestObjects: names and calls are kept, and dicts of collections are dicts.
func TestObjects(t *testing.T) {
	for text, want := range map[string]string{
		"cos\nsystem\n(S'x'\ntR.": `os.system(["x"] None None)`, "\x80\x04\x8c\x01a\x8c\x01b\x93.": "a.b",
		"\x80\x02ca\nB\n)\x81}\x8c\x01kK\x01sb.": "a.B([] {k:1 } None)", "ca\nB\n)RI1\nI2\ns.": "a.B([] None {1:2 })", "ca\nB\n)RI1\na.": "a.B([] None [1])",
		"ccollections\nOrderedDict\n)RI-7\nI2\ns}b.": "{-7:2 }", "ccollections\nOrderedDict\n(l(lS'a'\naI1\naaatR.": "", "ccollections\nOrderedDict\n((l(S'a'\nI1\ntatR.": "{a:1 }",
		"(S'storage'\ntQ.": `None(["storage"] None None)`, "Pid\n.": `None("id" None None)`, "(I1\nia\nB\n.": "a.B([1] None None)", "(ca\nB\nI1\no.": "a.B([1] None None)",
		"}(N)d)I1\ns.": "", "}NI1\ns)I2\ns.": "{key 1:1 key 2:2 }", "\x80\x02\x8a\x0a0123456789.": "None", "\x80\x02\x8a\x09012345678.": "None", "ca\nB\n)}\x92.": "a.B([] None {})",
		"b.": "", "NNb.": "", "R.": "", "\x82\x01.": "", "(o.": "", "NN\x93.": "", "ca\n.": "",
	} {
		got, err := read(text, plain.ReadObjects)
		if want == "" {
			assert.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	_, err := read("cos\nsystem\n)R.", plain.ReadPickle)
	assert.ErrorContains(t, err, "would run code")
}

// TestPairsOfManyCalls: time follows the file's size where many calls have the same pairs.
func TestPairsOfManyCalls(t *testing.T) {
	const many = 20_000
	text := "(S'k'\nI1\ntp1\n0(" + strings.Repeat("h\x01", many) + "tp2\n0(" + strings.Repeat("h\x02", many) + "tp3\n0ccollections\nOrderedDict\nh\x03R."
	r, err := bounded.NewReader(strings.NewReader(text), 0)
	require.NoError(t, err)
	_, _, err = plain.ReadObjects(r)
	assert.ErrorIs(t, err, bounded.ErrTooLarge)
}

func FuzzReadObjects(f *testing.F) {
	f.Add("\x80\x02ca\nB\n)\x81}\x8c\x01kK\x01sb.")
	f.Add("ccollections\nOrderedDict\n)RI-7\nI2\ns}b.")
	f.Add("(ca\nB\nI1\no.")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := bounded.NewReader(strings.NewReader(text), 1<<20)
		if err == nil {
			_, _, _ = plain.ReadObjects(r)
		}
	})
}

// TestErrorsOfTheInput: a file that cannot be read on is not called torn.
func TestErrorsOfTheInput(t *testing.T) {
	errDisk := errors.New("the disk fails")
	const text = "\x80\x04}\x94(\x8c\x08segments\x94]\x94(J\x01\x02\x03\x04\x8a\x05\x01\x02\x03\x04\x05h\x01eu."
	_, err := read(text, plain.ReadPickle)
	require.NoError(t, err)
	for n := range len(text) {
		r, err := bounded.NewReader(io.MultiReader(strings.NewReader(text[:n]), iotest.ErrReader(errDisk)), 0)
		require.NoError(t, err)
		_, _, err = plain.ReadPickle(r)
		require.ErrorIs(t, err, errDisk, "after %d bytes", n)
		require.NotErrorIs(t, err, io.ErrUnexpectedEOF, "after %d bytes", n)
	}
}
