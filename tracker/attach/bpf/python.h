// Walks the frames of CPython's interpreter. The kernel's programs and the preloaded library include this. It has no loop without a bound, and
// calls nothing but what each of them defines. Before:
//
//	word   an unsigned integer of 64 bits
//	INLINE the keywords of a function that is always inlined
//
// And before or after: struct py_reader, py_read and py_found.
//
// Nothing of the process is trusted: an address may lead anywhere, and a frame to itself. Words are little-endian, as on all machines that
// have programs for this.

enum { PY_FRAMES = 128 }; // the most that are taken

// Of a code object only the head is read, up to the pointer to the line table: all that does not
// change while the object lives, and that identifies it. Since 3.12 that includes a version number,
// which is unique in the process.
enum { PY_HEAD_WORDS = 11, PY_HEAD_SIZE = PY_HEAD_WORDS * 8 };

// The copy of a part has room for so many bytes, however long it is.
enum { PY_MAX_PART = 128, PY_PART_WORDS = PY_MAX_PART / 8 };

enum py_part {
	PY_POINTER, // a word
	PY_FRAME,   // the first frame_size bytes of a frame
	PY_HEAD,    // the head of a code object
};

#define PY_NONE (~(word)0) // the offset of a field that this version does not have

// py_layout has byte offsets in the structures of a version of CPython. Package python computes it.
struct py_layout {
	word version; // 0x030c
	// Of a thread. Unless indirect is PY_NONE, the pointer at current leads to a structure with
	// the innermost frame at that offset.
	word current, indirect;
	// Of a frame. The instruction is an index of 32 bits if is_index, else an address. All is
	// in the first frame_size bytes.
	word previous, code, instruction, is_index, owner, frame_size;
	word head;                    // of a code object: where its head begins
	word first_line, file, name; // of a head
	word object_size;             // of a code object: the bytes that are copied to name it
	word length, ascii, wide;     // of a string: how long it is, and its text, by its kind
	word byte_count, bytes;       // of a bytes object
	word compares_text;           // code objects have no version number: that of before 3.12
};

// The owner of a frame: this and all above run no code, but separate the frames of a call from C
// (enum _frameowner).
enum { PY_OWNED_BY_INTERPRETER = 3 };

// The lowest four bits of an object's address are 0. There a stack has the owner of a frame, and
// whether its code object was not copied. If it was not, the second word has 32 bits of what
// identifies the code object in place of the first line.
enum { PY_OWNER = 7, PY_NOT_COPIED = 8, PY_TAGS = 15 };

struct py_frame {
	word code;      // the address of the code object; 0 if the frame could not be read
	word owner;     // PY_OWNER bits
	word previous;  // the caller's frame
	unsigned where; // of the instruction: bytes from the code object's address, or its index
};

// py_runs_code reports whether a frame has a code object that says what it runs.
static INLINE int py_runs_code(const struct py_frame *f) { return f->code && f->owner < PY_OWNED_BY_INTERPRETER; }

// py_reader is what a walk reads by, and where it leaves what it finds.
typedef struct py_reader py_reader;

// py_read copies size bytes of the process's memory, at most PY_MAX_PART, and returns the copy,
// which stays until the next read of the same part; NULL if they are not all there.
static INLINE const word *py_read(py_reader *r, enum py_part part, word at, word size);

// py_found takes the frame n, 0 being the innermost.
static INLINE void py_found(py_reader *r, unsigned n, const struct py_frame *f);

// py_word returns the word at an offset of a copy. The offset is a multiple of 8.
static INLINE word py_word(const word *part, word offset)
{
	return part[offset / 8 % PY_PART_WORDS];
}

// py_half returns 32 bits at an offset of a copy. The offset is a multiple of 4.
static INLINE unsigned py_half(const word *part, word offset)
{
	return (unsigned)(py_word(part, offset) >> offset % 8 * 8);
}

// py_innermost returns the address of a thread's innermost frame; 0 if there is none.
static INLINE word py_innermost(py_reader *r, const struct py_layout *l, word thread)
{
	const word *at = py_read(r, PY_POINTER, thread + l->current, sizeof *at);
	if (at && *at && l->indirect != PY_NONE)
		at = py_read(r, PY_POINTER, *at + l->indirect, sizeof *at);
	return at ? *at : 0;
}

// py_decode decodes the copy of a frame.
static INLINE void py_decode(struct py_frame *f, const struct py_layout *l, const word *part)
{
	word instruction = py_word(part, l->instruction);
	f->code = py_word(part, l->code) & ~(word)PY_TAGS;
	f->owner = l->owner == PY_NONE ? 0 : py_word(part, l->owner) >> l->owner % 8 * 8 & PY_OWNER;
	f->previous = py_word(part, l->previous);
	f->where = (unsigned)(l->is_index ? instruction : instruction - f->code);
}

// py_digest returns a digest of a head. Two that differ in one word never have the same. The
// multiplications do not wait for each other.
static INLINE word py_digest(const word *head)
{
	word digest = 1, power = 0x9e3779b97f4a7c15;
#pragma GCC unroll 11
	for (int i = 0; i < PY_HEAD_WORDS; i++, power *= 0x9e3779b97f4a7c15)
		digest += head[i] * power;
	return digest ^ digest >> 29;
}

// The two words of a frame in a stack, as package python decodes them. The head is NULL if it was
// not read.
static INLINE word py_code_word(const struct py_frame *f) { return f->code | f->owner; }
static INLINE word py_line_word(const struct py_frame *f, const struct py_layout *l, const word *head)
{
	return (word)f->where << 32 | (head ? py_half(head, l->first_line) : 0);
}

// py_walk takes the frames of a thread, the innermost first, and returns how many there are, at
// most PY_FRAMES. A frame that cannot be read is the last, and has no code.
static INLINE unsigned py_walk(py_reader *r, const struct py_layout *l, word thread)
{
	word at = py_innermost(r, l, thread);
	unsigned n = 0;
#pragma GCC unroll 1
	for (; n < PY_FRAMES && at; n++) {
		struct py_frame f = {0};
		const word *part = py_read(r, PY_FRAME, at, l->frame_size);
		if (part)
			py_decode(&f, l, part);
		py_found(r, n, &f);
		at = f.previous;
	}
	return n;
}
