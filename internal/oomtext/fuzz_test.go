package oomtext_test

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/oomtext"
)

func FuzzRead(f *testing.F) {
	r := rand.New(rand.NewPCG(42, 3))
	for _, form := range forms {
		f.Add(form.print(randomValues(r, form.units)))
	}
	paths, err := filepath.Glob(filepath.Join("testdata", "*.*"))
	require.NoError(f, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		report, err := oomtext.Read(strings.NewReader(text))
		if err != nil {
			return
		}
		printed := report.String()
		assert.True(t, utf8.ValidString(printed))
		for _, c := range printed {
			require.True(t, c == '\n' || unicode.IsPrint(c) || c == '\u3000' || unicode.IsSpace(c), "%q", printed)
		}
		_, err = json.Marshal(report)
		require.NoError(t, err)
	})
}
