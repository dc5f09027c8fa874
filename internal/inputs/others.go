package inputs

import "strings"

// Files that no command reads, but that are given to them.
var (
	HTML = &Kind{
		Name: "html", What: "a page", Source: "show --web, convert, and web servers",
		Instead: "open it in a browser",
		is: func(h *Head) bool {
			begin := strings.ToLower(h.text[:min(len(h.text), len("<!doctype html"))])
			return begin == "<!doctype html" || strings.HasPrefix(begin, "<html")
		},
	}
	LFS = &Kind{
		Name: "lfs", What: "a pointer of Git LFS, and the file itself is not here", Source: "git",
		Instead: "run git lfs pull",
		is:      func(h *Head) bool { return h.Begins("version https://git-lfs") },
	}
	Packed = &Kind{
		Name: "xz", What: "a packed file", Source: "xz",
		Instead: "pipe it: xz -dc FILE | gpumemtrack COMMAND -",
		is:      func(h *Head) bool { return h.Begins("\xfd7zXZ\x00") },
	}
	Archive = &Kind{
		Name: "archive", What: "an archive", Source: "tar, 7z, and zip from a pipe",
		Instead: "unpack it into a folder",
		is: func(h *Head) bool {
			return h.Begins("7z\xbc\xaf\x27\x1c") || h.Begins("PK\x03\x04") || h.isTar()
		},
	}
)

// isTar reports whether the bytes begin as an archive of tar does (POSIX ustar).
func (h *Head) isTar() bool { return len(h.raw) > 262 && string(h.raw[257:262]) == "ustar" }

var others = []*Kind{HTML, LFS, Packed, Archive}
