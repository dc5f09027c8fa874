package text

import "time"

// When prints a time with its zone. A source that knows only the time of day puts it on January 1, 1970: then it has no
// date.
func When(t time.Time) string {
	if t.Year() == 1970 {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04:05 MST")
}
