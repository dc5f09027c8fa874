package doccheck_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rules are what the glossary of docs/README.md forbids: never is what a text must not say where the glossary's word
// belongs, except what also says it and is right.
var rules = []struct {
	word          string // of the glossary
	never, except *regexp.Regexp
}{
	{"call site", regexp.MustCompile(`(?i)\bsites?\b|Sites?\b|_sites?\b`), regexp.MustCompile(`(?i)(call|cross|same|web)[-_ ]?sites?|/site-functions/|\bsite-packages/`)},
	{"inactive", regexp.MustCompile(`(?i)\b(cached|unused) (memory|bytes|blocks?|segments?)\b|\bfree blocks?\b|free memory (in|of) the cache`), nil},
	{"reclaimable", regexp.MustCompile(`(?i)\breleasable\b|\bstuck memory\b|memory is stuck|stuck_bytes|\blost buffers?\b|own[-_ ]peak`), nil},
	{"reserved", regexp.MustCompile(`(?i)\bheld memory|memory held by the cache`), nil},
	{"requested", regexp.MustCompile(`(?i)tensors? used|used by tensors`), regexp.MustCompile(`Total Tensor Used Memory`)},
	{"memory", regexp.MustCompile(`(?i)\bkinds? of memory\b|\bmemory kinds?\b`), nil},
	{"snapshot", regexp.MustCompile(`(?i)\b(memory|PyTorch) records?\b|\bsnapshot records?\b|\bthe record has\b`), nil},
	{"report", regexp.MustCompile(`(?i)\bHTML reports?\b|\breports? page\b`), nil},
	{"context length", regexp.MustCompile(`(?i)\b(longest|largest|maximum|max)[-_ ]?context\b|\bcontext of \d`), regexp.MustCompile(`(?i)context[-_ ]?length`)},
}

// TestTheGlossaryHolds reads what users read: pages, documentation, exported names, and each text in the code, which
// may be an error, a flag, a metric or a key of JSON.
func TestTheGlossaryHolds(t *testing.T) {
	glossary, err := os.ReadFile("../../../docs/README.md")
	require.NoError(t, err)
	for _, rule := range rules {
		assert.Contains(t, string(glossary), "\n| "+rule.word, "the glossary has no row of %q", rule.word)
	}
	for _, text := range append(pages(t), texts(t)...) {
		for _, rule := range rules {
			right := text.text
			if rule.except != nil {
				right = rule.except.ReplaceAllString(right, "")
			}
			if found := rule.never.FindString(right); found != "" {
				t.Errorf("%s says %q: the glossary's word is %q", text.place, found, rule.word)
			}
		}
	}
}

// said is a text that users read, and where it stands.
type said struct{ place, text string }

// pages returns the lines of pages, schemas and what browsers show.
func pages(t *testing.T) (lines []said) {
	t.Helper()
	walk(t, func(path string) {
		switch filepath.Ext(path) {
		case ".md", ".json", ".yml", ".yaml", ".html", ".js":
		default:
			return
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for i, line := range strings.Split(string(text), "\n") {
			lines = append(lines, said{path + ":" + strconv.Itoa(i+1), line})
		}
	})
	return lines
}

// texts returns what the code says: its strings, and the names and comments of what is exported.
func texts(t *testing.T) (texts []said) {
	t.Helper()
	fset := token.NewFileSet()
	walk(t, func(path string) {
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return
		}
		file, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		add := func(at ast.Node, text string) {
			p := fset.Position(at.Pos())
			texts = append(texts, said{path + ":" + strconv.Itoa(p.Line), text})
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				add(lit, lit.Value)
			}
			return true
		})
		if file.Name.Name != "main" && !strings.Contains(path, "/internal/") {
			addExported(file, add)
		}
	})
	return texts
}

// addExported adds the exported names of a file and their comments.
func addExported(file *ast.File, add func(at ast.Node, text string)) {
	named := func(doc, comment *ast.CommentGroup, names ...*ast.Ident) {
		for _, name := range names {
			if name.IsExported() {
				add(name, name.Name+"\n"+doc.Text()+comment.Text())
			}
		}
	}
	add(file, file.Doc.Text())
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && public(f) {
			named(f.Doc, nil, f.Name)
		}
		d, ok := decl.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.ValueSpec:
				named(s.Doc, s.Comment, s.Names...)
			case *ast.TypeSpec:
				named(d.Doc, s.Comment, s.Name)
				if fields, ok := s.Type.(*ast.StructType); ok && s.Name.IsExported() {
					for _, f := range fields.Fields.List {
						named(f.Doc, f.Comment, f.Names...)
					}
				}
			}
		}
	}
}

// earlier are files that read the keys of earlier versions, and that say which these were.
var earlier = map[string]bool{"schema.go": true, "tablejson.go": true, "dump.schema.json": true}

// walk calls see with each file of the project that is not the tests' own.
func walk(t *testing.T, see func(path string)) {
	t.Helper()
	err := filepath.WalkDir("../../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			if err == nil && !earlier[filepath.Base(path)] {
				see(path)
			}
			return err
		}
		switch name := d.Name(); {
		case name == "testdata", name == "testing" && strings.HasSuffix(path, "internal/testing"), name == "tests":
			return fs.SkipDir
		case path != "../../.." && strings.HasPrefix(name, "."):
			return fs.SkipDir
		}
		return nil
	})
	require.NoError(t, err)
}
