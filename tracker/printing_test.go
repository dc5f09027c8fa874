package tracker_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// TestValuesPrint: what a program holds prints well.
func TestValuesPrint(t *testing.T) {
	tr, _ := open(t, tracker.Config{Clock: clock()})
	b := take(t, tr, tracker.Parameter, 1024, 1024)
	section := tr.Section("step")
	require.NoError(t, take(t, tr, tracker.Activation, 1<<20).Free())
	m := tr.Track()
	assert.Equal(t, "Simulated GPU [0]: 1 buffer, 4.0 MiB live, peak 8.0 MiB", fmt.Sprint(tr))
	assert.Equal(t, "cache of Simulated GPU 0: 4.0 MiB of 20.0 MiB allocated", fmt.Sprint(tr.Device()))
	assert.Regexp(t, `^RSS: .*GPU: .* step \(Consumed/Peaked/Used Total\)$`, fmt.Sprint(section))
	assert.Regexp(t, `(?s)^mark 1 at printing_test\.go:\d+ tracker_test\.TestValuesPrint: 1 buffer, 4\.0 MiB live\n.*Parameter`, fmt.Sprint(m))
	assert.Regexp(t, `^dump: \d+ events, \d+ marks\n`, tr.Dump().String())
	section.End()
	assert.Contains(t, fmt.Sprint(tr.Profile()), "step")
	require.NoError(t, b.Free())
	require.NoError(t, tr.Close())
	assert.Equal(t, "Simulated GPU [0]: closed", fmt.Sprint(tr))
	assert.Equal(t, "<nil>", fmt.Sprint((*tracker.MemTracker)(nil)))
}

// printed are the packages of whose types TestPrintingBesideUse wants a value, by their folder.
var printed = []string{".", "mem", "snapshot", "snapshot/explain", "snapshot/leaks", "snapshot/sections", "../alloc", "../alloc/cache"}

// notPrinted are types that a caller fills in, and no tracker gives.
var notPrinted = map[string]bool{"cache.Config": true, "tracker.Config": true, "tracker.SectionConfig": true, "snapshot.DeltaBuilder": true}

// TestPrintingBesideUse prints and marshals all that can be reached from a tracker, while others use it: whatever its
// fields, methods and iterators give, so that a new type is in the test. None shows what is inside.
func TestPrintingBesideUse(t *testing.T) {
	tr, _ := open(t, tracker.Config{MaxEvents: 256, MaxMarks: 8, Sections: tracker.SectionConfig{Host: "detail"}})
	b := take(t, tr, tracker.Parameter, 8)
	section := tr.Section("all")
	_, oom := tr.Alloc(alloc.Shape{1 << 20, 1 << 20}, alloc.Float32, tracker.Input)
	require.Error(t, oom)
	tr.Track()
	begun := tr.Dump() // with a mark that has changes: the workers' may have none
	largest, _, _ := begun.Snapshot.LargestStacks(func(of snapshot.Totals) mem.Tally { return of.Live }, 1)
	var done atomic.Bool
	var using sync.WaitGroup
	for worker := range 3 {
		using.Go(func() {
			for i := 0; !done.Load(); i++ {
				s := section.Section("part")
				buf, err := tr.Alloc(alloc.Shape{1 + i%1000, 1 + worker}, alloc.Float32, tracker.Activation)
				if assert.NoError(t, err) {
					buf.SetLabel("x")
					assert.NoError(t, buf.Free())
				}
				s.End()
				if i%16 == 0 {
					tr.Track()
					b.SetKind(tracker.Parameter)
				}
			}
		})
	}
	seen := make(printing)
	for range 5 {
		for _, v := range []any{
			tr, begun, largest, section, b, oom, tr.Leaks(), leaks.Suspect{Path: mem.Path{{}}}, sections.Estimate{}, explain.Snapshot(tr.Snapshot()), explain.Line{},
		} {
			seen.walk(t, reflect.ValueOf(v), 0)
		}
	}
	done.Store(true)
	using.Wait()
	section.End()
	for _, folder := range printed {
		for _, name := range exportedTypes(t, folder) {
			if !notPrinted[name] {
				assert.NotZero(t, seen[name], "no value of %s was printed", name)
			}
		}
	}
}

// printing is how often a value of each type was printed.
type printing map[string]int

// changes are methods without parameters that do more than tell.
var changes = map[string]bool{"Close": true, "Free": true, "ClearCache": true, "Trim": true, "Locked": true, "End": true, "Err": true}

var inside = regexp.MustCompile(`0x[0-9a-f]{12}\b|^&\{|%!|PANIC`)

func (p printing) walk(t *testing.T, v reflect.Value, depth int) {
	const most = 3 // of each type and list
	for v.IsValid() && v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if !v.IsValid() || depth > 9 || v.Kind() == reflect.Pointer && v.IsNil() {
		return
	}
	of := v.Type()
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	ours := strings.HasPrefix(of.PkgPath(), "github.com/gpumemtrack/gpumemtrack/") && !strings.Contains(of.PkgPath(), "/internal/")
	if of.Name() != "" && of.PkgPath() != "iter" && !(ours && token.IsExported(of.Name())) {
		return
	}
	if ours {
		name, _, _ := strings.Cut(of.String(), "[")
		if p[name]++; p[name] > 30 {
			return
		}
		for _, verb := range []string{"%v", "%+v", "%s"} {
			said := fmt.Sprintf(verb, v.Interface())
			if verb == "%s" && (of.Kind() != reflect.Struct || strings.HasPrefix(said, "{")) {
				said = strings.ReplaceAll(said, "%!s(", "(") // a number, of which package fmt says its type
			}
			assert.NotRegexp(t, inside, said, "%v of a %v", verb, v.Type())
		}
		if _, err := json.Marshal(v.Interface()); !v.IsZero() { // no element type is none
			assert.NoError(t, err, "%v", v.Type())
		}
	}
	for i := range v.NumMethod() {
		name, m := v.Type().Method(i).Name, v.Method(i).Type()
		if ours && m.NumIn() == 0 && m.NumOut() > 0 && !changes[name] {
			p.walk(t, v.Method(i).Call(nil)[0], depth+1)
		}
	}
	switch v.Kind() {
	case reflect.Pointer:
		p.fields(t, v.Elem(), depth)
	case reflect.Struct:
		p.fields(t, v, depth)
	case reflect.Slice, reflect.Array:
		for i := range min(most, v.Len()) {
			p.walk(t, v.Index(i), depth+1)
		}
	case reflect.Func:
		if v.Type().CanSeq() && !v.IsNil() {
			n := 0
			for its := range v.Seq() {
				p.walk(t, its, depth+1)
				if n++; n == most {
					break
				}
			}
		}
	}
}

func (p printing) fields(t *testing.T, v reflect.Value, depth int) {
	for i := 0; v.Kind() == reflect.Struct && i < v.NumField(); i++ {
		if v.Type().Field(i).IsExported() {
			p.walk(t, v.Field(i), depth+1)
		}
	}
}

// exportedTypes returns the exported types of values that the files of a folder declare, as package.Name.
func exportedTypes(t *testing.T, folder string) (names []string) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok {
				for _, s := range g.Specs {
					if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() && s.Assign == token.NoPos && isValue(s.Type) {
						names = append(names, file.Name.Name+"."+s.Name.Name)
					}
				}
			}
		}
	}
	return names
}

// isValue reports whether a type is neither an interface nor an option.
func isValue(of ast.Expr) bool {
	switch of.(type) {
	case *ast.InterfaceType, *ast.FuncType:
		return false
	}
	return true
}

// TestNamesInJSON are those of the schemas: in lower case, with the unit of an amount.
func TestNamesInJSON(t *testing.T) {
	tr, _ := open(t, tracker.Config{Sections: tracker.SectionConfig{Host: "detail"}})
	section := tr.Section("step")
	take(t, tr, tracker.Parameter, 1024)
	require.NoError(t, take(t, tr, tracker.Activation, 1<<20).Free())
	section.End()
	tr.Track()
	values := []any{tr.Suspects(), leaks.Growing(tr.Snapshot()), tr.Leaks(), tr.Dump().Marks, tr.Profile(), section.Data(), explain.Snapshot(tr.Snapshot())}
	for e := range tr.Dump().Events() {
		values = append(values, e)
	}
	for _, v := range values {
		text, err := json.Marshal(v)
		require.NoError(t, err, "%T", v)
		assert.Regexp(t, `^(\[|\{".+\}$)`, string(text), "%T", v)
		for _, key := range regexp.MustCompile(`"([^"]*)":`).FindAllSubmatch(text, -1) {
			assert.Regexp(t, `^[a-z][a-z0-9_]*$`, string(key[1]), "%T", v)
		}
	}
}
