package webpage_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
)

const evil = "</script><script>alert(1)</script>\" onclick='x' &amp; \u2028 <!-- {{.}} %v %!"

func written(t *testing.T, write func(*webpage.Page)) string {
	t.Helper()
	var p webpage.Page
	write(&p)
	n := p.Len()
	var b strings.Builder
	_, err := p.WriteTo(&b)
	require.NoError(t, err)
	assert.Equal(t, n, b.Len())
	return b.String()
}

// template is a text of another type.
type template string

func TestNamesAreEscaped(t *testing.T) {
	assert.Equal(t, `<p class="a&#34;&#39;&lt;&gt;&amp;amp;">7 &lt;b&gt; <b>bold</b> %v</p>`, written(t, func(p *webpage.Page) {
		p.Put(`<p class="%v">%v %v %v %v</p>`, `a"'<>&amp;`, 7, template("<b>"), webpage.Markup("<b>bold</b>"), "%v")
	}))
	assert.Equal(t, "100% %v <i>", written(t, func(p *webpage.Page) { p.Put("100% %v <i>") }), "without arguments it goes in as it is")
	for _, text := range []string{
		written(t, func(p *webpage.Page) { p.Put(`<p title="%v">%v</p>`, evil, evil) }),
		written(t, func(p *webpage.Page) { p.Link(evil, evil) }),
		written(t, func(p *webpage.Page) { p.Head(evil, evil, "") }),
	} {
		assert.NotContains(t, text, "<script")
		assert.NotContains(t, text, "\" onclick")
	}
}

// TestLinksStayHere: the name of a folder is no scheme and no host.
func TestLinksStayHere(t *testing.T) {
	for path, want := range map[string]string{
		"7-gpu0/": "7-gpu0/", "javascript:alert(1)/": "./javascript:alert%281%29/", "a b?c#d/": "a%20b%3Fc%23d/", "//host/": "./" + "/host/",
	} {
		assert.Equal(t, `<a href="`+want+`">x</a>`, written(t, func(p *webpage.Page) { p.Link(path, "x") }), path)
	}
}

func TestJSONStaysInItsScript(t *testing.T) {
	text := written(t, func(p *webpage.Page) { p.JSON(map[string]string{evil: evil}) })
	for _, not := range []string{"<", ">", "&", "\u2028"} {
		assert.NotContains(t, text, not)
	}
	var p webpage.Page
	p.JSON(math.NaN())
	p.Put("more")
	_, err := p.WriteTo(&strings.Builder{})
	assert.ErrorContains(t, err, "NaN")
}

// TestEveryPlaceOfANameEscapesIt reads the markup of the whole module: a %v stands in text, or in an attribute in double
// quotes that is no address, script or style; and nothing but this module's own files becomes markup.
func TestEveryPlaceOfANameEscapesIt(t *testing.T) {
	places := 0
	require.NoError(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), "webpage") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, 0)
		if err != nil {
			return err
		}
		for _, name := range regexp.MustCompile(`//go:embed (\S+\.html)`).FindAllStringSubmatch(string(text), -1) {
			markup, err := os.ReadFile(filepath.Join(filepath.Dir(path), name[1]))
			if err != nil {
				return err
			}
			places += strings.Count(string(markup), "%v")
			assert.Empty(t, wrongPlaces(string(markup)), name[1])
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if n.Kind == token.STRING {
					markup, err := strconv.Unquote(n.Value)
					require.NoError(t, err)
					places += strings.Count(markup, "%v")
					assert.Empty(t, wrongPlaces(markup), path)
				}
			case *ast.CallExpr:
				if name, ok := n.Fun.(*ast.SelectorExpr); ok && name.Sel.Name == "Markup" {
					ast.Inspect(n.Args[0], func(n ast.Node) bool { return own(t, path, n) })
				} else if name, ok := n.Fun.(*ast.Ident); ok && name.Name == "Markup" {
					ast.Inspect(n.Args[0], func(n ast.Node) bool { return own(t, path, n) })
				}
			}
			return true
		})
		return nil
	}))
	assert.Greater(t, places, 50)
}

// own checks a part of what is converted to Markup: only what the packages uplot and webpage embed, and literals.
func own(t *testing.T, path string, n ast.Node) bool {
	switch n := n.(type) {
	case nil, *ast.BinaryExpr, *ast.BasicLit:
	case *ast.Ident:
		assert.Contains(t, []string{"style", "common"}, n.Name, path)
	case *ast.SelectorExpr:
		from, ok := n.X.(*ast.Ident)
		assert.True(t, ok && from.Name == "uplot", "%s: markup of %v.%s", path, n.X, n.Sel.Name)
		return false
	default:
		assert.Fail(t, "markup that is no constant", "%s: %T", path, n)
	}
	return true
}

var attribute = regexp.MustCompile(`\s([a-z-]+)="([^"]*)$`)

// wrongPlaces returns what stands before each %v whose place Put does not escape for.
func wrongPlaces(markup string) (wrong []string) {
	for i := range markup {
		if !strings.HasPrefix(markup[i:], "%v") {
			continue
		}
		before := markup[:i]
		inScript := strings.Count(before, "<script") > strings.Count(before, "</script") || strings.Count(before, "<style") > strings.Count(before, "</style")
		inTag := strings.LastIndex(before, "<") > strings.LastIndex(before, ">")
		fits := !inScript
		if inTag && fits {
			in := attribute.FindStringSubmatch(before)
			fits = in != nil && in[1] != "style" && !strings.HasPrefix(in[1], "on") && (in[2] != "" || in[1] != "href" && in[1] != "src" && in[1] != "action")
		}
		if !fits {
			wrong = append(wrong, before)
		}
	}
	return wrong
}

func TestWrongPlaces(t *testing.T) {
	for _, good := range []string{`<p>%v</p>`, `%v`, `<p class="a %v">`, `<a href="data:%v">`, `<script></script>%v`} {
		assert.Empty(t, wrongPlaces(good), good)
	}
	for _, bad := range []string{`<p %v>`, `<p class=%v>`, `<a href="%v">`, `<script>%v`, `<style>%v`, `<p onclick="x(%v)">`, `<p style="width: %v">`, `<%v>`, `<p class='%v'>`, `<!-- %v`} {
		assert.Len(t, wrongPlaces(bad), 1, bad)
	}
}
