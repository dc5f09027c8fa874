package text

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestWhen(t *testing.T) {
	assert.Equal(t, "2026-03-02 10:04:50 UTC", When(time.Date(2026, 3, 2, 10, 4, 50, 0, time.UTC)))
	assert.Equal(t, "10:04:50", When(time.Date(1970, 1, 1, 10, 4, 50, 0, time.UTC)))
}
