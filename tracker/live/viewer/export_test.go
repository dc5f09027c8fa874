package viewer

// MaxUnsent is the most bytes that answers may take until they are sent.
const MaxUnsent = maxUnsent

// AddUnsent changes how many bytes of answers count as not sent, and returns the number.
func (v *Viewer) AddUnsent(n int64) int64 { return v.session.unsent.Add(n) }
