package live

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func TestSpool(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	text := make([]byte, 3*maxInMemory)
	_, _ = rand.Read(text)
	for _, size := range []int{0, 1, maxInMemory, maxInMemory + 1, len(text)} {
		s := &spool{files: newSemaphore(1)}
		for _, b := range [][]byte{text[:size/2], text[size/2 : size]} {
			n, err := s.Write(b)
			require.NoError(t, err)
			require.Equal(t, len(b), n)
		}
		assert.Equal(t, int64(size), s.size)
		assert.Equal(t, size > maxInMemory, s.file != nil)
		var got bytes.Buffer
		require.NoError(t, s.sendTo(&got))
		assert.True(t, bytes.Equal(text[:size], got.Bytes()))
		require.NoError(t, s.close())
		assert.Empty(t, s.files)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Empty(t, left)
	}
}

func TestSpoolThatCannotSpill(t *testing.T) {
	large := make([]byte, maxInMemory+1)
	full := &spool{files: newSemaphore(0)}
	_, err := full.Write(large)
	assert.ErrorIs(t, err, errBusy)
	require.NoError(t, full.close())

	t.Setenv("TMPDIR", t.TempDir()+"/missing")
	s := &spool{files: newSemaphore(1)}
	_, err = s.Write(large)
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.ErrorContains(t, err, "needs a temporary file")
	assert.Empty(t, s.files)
	require.NoError(t, s.close())
}

// TestMakingIsLimited: of the answers that copy the ledger only so many are made at
// a time.
func TestMakingIsLimited(t *testing.T) {
	h := Handler(exporttest.New(t, tracker.Config{})).(*handler)
	status := func(page string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/"+page, nil))
		return w
	}
	h.waitLimit = 0
	for range maxCopies {
		require.True(t, h.copies.tryAcquire())
	}
	w := status("report")
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.NotEmpty(t, w.Header().Get("Retry-After"))
	assert.Equal(t, http.StatusOK, status("levels").Code)
	assert.Equal(t, http.StatusOK, status("profile").Code)
	h.copies.release()
	assert.Equal(t, http.StatusOK, status("report").Code)
	assert.Equal(t, http.StatusOK, status("dump").Code)
}

// TestErrorOfMaking is told in the place of the answer, packed or not.
func TestErrorOfMaking(t *testing.T) {
	h := Handler(exporttest.New(t, tracker.Config{})).(*handler)
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	h.send(w, r, jsonFile.named("x.json"), func(w io.Writer) error {
		_, _ = w.Write(make([]byte, 5*maxInMemory))
		return errors.New("broken")
	})
	assert.Equal(t, http.StatusInternalServerError, w.Code)
	assert.Equal(t, "broken\n", w.Body.String())
	assert.Empty(t, w.Header().Get("Content-Encoding"))
	assert.Empty(t, w.Header().Get("Content-Disposition"))
	assert.Empty(t, h.files)
}

// TestAPlaceIsWaitedFor: who comes while others are made gets an answer, not a refusal.
func TestAPlaceIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Handler(exporttest.New(t, tracker.Config{})).(*handler)
		for range maxCopies {
			require.True(t, h.copies.tryAcquire())
		}
		start := time.Now()
		go func() {
			time.Sleep(time.Second)
			h.copies.release()
		}()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/snapshot", nil))
		assert.Equal(t, http.StatusOK, w.Code)
		assert.Equal(t, time.Second, time.Since(start))
	})
}
