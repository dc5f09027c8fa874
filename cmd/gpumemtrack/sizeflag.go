package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// sizeFlag makes alloc.Bytes a flag. A small number without a unit is refused: who
// writes 10 does not mean ten bytes.
type sizeFlag struct{ *alloc.Bytes }

func (sizeFlag) Type() string { return "size" }

func (s sizeFlag) String() string {
	if s.Bytes == nil || *s.Bytes == 0 {
		return ""
	}
	return s.Bytes.String()
}

func (s sizeFlag) Set(text string) error {
	text = strings.TrimSpace(text)
	if v, err := strconv.ParseFloat(text, 64); err == nil && v != 0 && v < float64(alloc.MiB) && v > 0 {
		return fmt.Errorf("did you mean %sGiB? A number needs its unit: %sB for bytes", text, text)
	}
	return s.Bytes.Set(text)
}

// flagError says in plain words what is wrong with a flag.
func flagError(err error) error {
	wrong, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	want := map[string]string{
		"int": "want a whole number", "duration": "want a time such as 500ms, 10s or 5m", "bool": "want true or false",
		"float64": "want a number", "float64Slice": "want numbers such as 3,1",
	}[wrong.GetFlag().Value.Type()]
	if want == "" {
		return fmt.Errorf("--%s %s: %w", wrong.GetFlag().Name, wrong.GetValue(), errors.Unwrap(wrong))
	}
	return fmt.Errorf("--%s %s: %s", wrong.GetFlag().Name, wrong.GetValue(), want)
}
