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
		Name: "packed", What: "a packed file", Source: "zstd, xz, bzip2",
		Instead: "unpack it, or pipe it: zstd -dc FILE | gpumemtrack COMMAND -",
		is: func(h *Head) bool {
			return h.Begins("\x28\xb5\x2f\xfd") || h.Begins("\xfd7zXZ\x00") || h.Begins("BZh") && !h.IsText()
		},
	}
)

var others = []*Kind{HTML, LFS, Packed}
