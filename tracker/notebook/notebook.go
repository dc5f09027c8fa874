// Package notebook prints, at the end of each cell of a Go notebook, how much memory and time the cell took, as
// ipygpulogger does for IPython. It is made for the GoNB kernel, where a cell is a program; run this cell once:
//
//	import "github.com/gpumemtrack/gpumemtrack/tracker/notebook"
//
//	func init_zz_measure() { notebook.Measure(main) }
//
// Measure ends the program, so the package is only for notebooks.
package notebook

import (
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Measure runs a cell's main in a section, prints what the section measured if the cell allocated
// device memory, and ends the program. It uses tracker.Default, on the first GPU or else the
// simulated one, without a report. It runs Go's collector before the section and at its end. In a
// test, such as a cell with %test, it does nothing.
//
// If the cell panics, the program ends as it would without Measure.
func Measure(main func()) {
	if testing.Testing() {
		return
	}
	if err := measure(main, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "notebook:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func measure(main func(), out io.Writer) (err error) {
	tr, err := tracker.New(tracker.Config{Report: io.Discard, Sections: tracker.SectionConfig{GCBefore: true}})
	if err != nil {
		return err
	}
	tracker.SetDefault(tr)
	defer func() {
		tracker.SetDefault(nil)
		err = errors.Join(err, tr.Close())
	}()
	if cell := tr.Do("cell", main).Data(); cell.Allocated.Count > 0 {
		_, err = io.WriteString(out, cell.Table())
	}
	return err
}
