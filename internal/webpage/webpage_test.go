package webpage_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
)

const evil = "</script><script>alert(1)</script>\" onclick='x' &amp; \u2028 <!-- {{.}} %v %!"

const all = `{{template "head" .}}<body><p title="{{.Title}}">{{.Title}}</p>{{template "scripts" .}}`

func executed(t *testing.T, text string, data any) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, (&webpage.Template{Text: text}).Execute(&b, data))
	return b.String()
}

func TestNamesAreEscaped(t *testing.T) {
	text := executed(t, all, webpage.Page{Title: evil, Policy: evil})
	assert.False(t, strings.Contains(text, "\" onclick"))
	assert.Equal(t, 2, strings.Count(text, "<script"))
}

// TestPolicyAllowsThePagesOwnScripts: a browser runs the scripts whose hashes the policy has, and no other.
func TestPolicyAllowsThePagesOwnScripts(t *testing.T) {
	const script = "const s = `a<b>` + \"'&\" + /</.source; // 1 </ 2\n"
	policy := webpage.Policy(script)
	text := executed(t, all, webpage.Page{Policy: policy, Script: script})
	scripts := regexp.MustCompile(`(?s)<script>(.*?)</script>`).FindAllStringSubmatch(text, -1)
	require.Len(t, scripts, 2)
	assert.Equal(t, script, scripts[1][1])
	for _, s := range scripts {
		sum := sha256.Sum256([]byte(s[1]))
		assert.Contains(t, policy, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
	}
	assert.NotContains(t, executed(t, all, webpage.Page{}), "Content-Security-Policy", "a server sends it")
}

func TestTheLicenceGoesWithTheCharts(t *testing.T) {
	assert.Regexp(t, `(?s)<!-- uPlot [^>]*Permission is hereby granted[^>]* -->`, executed(t, all, webpage.Page{}))
}

func TestJSONStaysInItsScript(t *testing.T) {
	want := map[string]string{evil: evil}
	text := executed(t, `<script type="application/json">{{json .}}</script>`, want)
	text = strings.TrimSuffix(strings.TrimPrefix(text, `<script type="application/json">`), "</script>")
	for _, not := range []string{"<", ">", "&", "\u2028"} {
		assert.NotContains(t, text, not)
	}
	var got map[string]string
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	assert.Equal(t, want, got)
	err := (&webpage.Template{Text: `<script>{{json .}}</script>`}).Execute(&strings.Builder{}, math.NaN())
	assert.ErrorContains(t, err, "NaN")
}

// TestOnlyOwnFilesAreTrusted reads the whole module: html/template escapes all but values of its own types, and only
// constants and embedded files have those.
func TestOnlyOwnFilesAreTrusted(t *testing.T) {
	found := 0
	require.NoError(t, filepath.WalkDir("../..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), `"html/template"`) {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		n, wrong := untrusted(file)
		found += n
		assert.Empty(t, wrong, path)
		return nil
	}))
	assert.Greater(t, found, 5)
}

// untrusted counts the conversions to types that html/template does not escape, and returns those of other values than
// constants and what the packages uplot and webpage embed.
func untrusted(file *ast.File) (n int, wrong []string) {
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncDecl:
			if file.Name.Name == "webpage" && node.Name.Name == "encoded" {
				return false // json.Marshal has escaped it
			}
		case *ast.CallExpr:
			if trusted(node.Fun) {
				n++
				ast.Inspect(node.Args[0], func(part ast.Node) bool { return own(part, &wrong) })
			}
		case *ast.ValueSpec:
			if node.Type != nil && trusted(node.Type) {
				n++
				if node.Doc == nil || !strings.HasPrefix(node.Doc.List[len(node.Doc.List)-1].Text, "//go:embed ") {
					wrong = append(wrong, node.Names[0].Name)
				}
			}
		}
		return true
	})
	return n, wrong
}

var trustedTypes = regexp.MustCompile(`^(CSS|HTML|HTMLAttr|JS|JSStr|Srcset|URL)$`)

func trusted(e ast.Expr) bool {
	name, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	from, ok := name.X.(*ast.Ident)
	return ok && from.Name == "template" && trustedTypes.MatchString(name.Sel.Name)
}

// own collects the parts of an expression that may hold what is not this module's: all but literals, what the packages
// uplot and webpage embed, and how webpage encodes its icon.
func own(node ast.Node, wrong *[]string) bool {
	switch node := node.(type) {
	case *ast.Ident:
		if !slices.Contains([]string{"style", "common", "Icon", "byte"}, node.Name) {
			*wrong = append(*wrong, node.Name)
		}
	case *ast.SelectorExpr:
		if from, ok := node.X.(*ast.Ident); ok && (from.Name == "uplot" || from.Name == "base64") {
			return false
		}
		if node.Sel.Name != "EncodeToString" {
			*wrong = append(*wrong, node.Sel.Name)
			return false
		}
		ast.Inspect(node.X, func(part ast.Node) bool { return own(part, wrong) })
		return false
	}
	return true
}

func TestUntrusted(t *testing.T) {
	for text, want := range map[string]int{
		`var a template.JS`:                                         1,
		"//go:embed a.js\nvar a template.JS":                        1, // the comment is the declaration's, not the value's
		"var (\n//go:embed a.js\na template.JS\n)":                  0,
		`var a = template.HTML("<b>" + uplot.CSS)`:                  0,
		`var a = template.HTML(style)`:                              0,
		`func f(s string) any { return template.HTML(s) }`:          1,
		`func f(s string) any { return template.URL("data:" + s) }`: 1,
		`func f(s row) any { return template.HTMLAttr(s.name) }`:    1,
		`func f(s []string) any { return template.JS(s[0]) }`:       1,
		`func f() any { return template.CSS(fmt.Sprint(1)) }`:       1,
		`func f(s string) any { return other.HTML(s) }`:             0,
	} {
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+text, parser.ParseComments)
		require.NoError(t, err, text)
		_, wrong := untrusted(file)
		assert.Len(t, wrong, want, text)
	}
}
