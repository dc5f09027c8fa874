package viewer_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/viewer"
)

// The page of a dump, for who has the token.
func Example() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device})
	if _, err := tr.Alloc(alloc.Shape{512}, alloc.Float32, tracker.Parameter); err != nil {
		fmt.Println(err)
		return
	}
	v := viewer.New(viewer.Config{})
	v.Add(viewer.Source{Name: "rank 0", Read: func(context.Context, *viewer.Progress) (*files.File, error) {
		return &files.File{Format: "dump", Dump: tr.Dump()}, nil
	}})
	if err := v.Run(context.Background()); err != nil {
		fmt.Println(err)
	}
	server := httptest.NewServer(v)
	defer server.Close()
	for _, address := range []string{server.URL + "/", server.URL + "/api/state?token=" + v.Token()} {
		answer, err := http.Get(address)
		if err != nil {
			fmt.Println(err)
			return
		}
		answer.Body.Close()
		fmt.Println(answer.Status)
	}
	fmt.Println(v)
	// Output:
	// 401 Unauthorized
	// 200 OK
	// viewer of 1 files, 1 ready, 0 failed
}
