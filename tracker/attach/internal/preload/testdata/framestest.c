// Tests how the shim reads memory that may not be there, and that its walk of Python's frames finds
// what a walk finds that reads each by itself, whatever has changed since the last. The frames are
// made here. A test that fails ends by a signal or with a status other than 0.
#include "shim.c"

#include <stdio.h>
#include <sys/wait.h>

#define CHECK(ok)                                                                  \
	if (!(ok)) {                                                               \
		fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #ok);   \
		exit(1);                                                           \
	}

static word random_state = 1;

static word below(word n) {
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state % n;
}

static void *pages(size_t n) {
	void *at = mmap(NULL, n * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(at != MAP_FAILED);
	return at;
}

// Parts that are not there do not hide those that are.
static void test_parts(void) {
	unsigned char *page = pages(3);
	CHECK(!munmap(page + PAGE, PAGE));
	for (int i = 0; i < PAGE; i++)
		page[i] = page[2 * PAGE + i] = (unsigned char)(i / 8);
	const word good[] = {(word)page, (word)page + 80, (word)page + PAGE - 64, (word)page + 2 * PAGE};
	const word bad[] = {0, 8, (word)page + PAGE, (word)page + PAGE - 8, (word)page + 2 * PAGE - 64, ~(word)7, (word)1 << 63, (word)1 << 47, (word)1 << 52};
	for (int round = 0; round < 400; round++) {
		struct iovec parts[200];
		unsigned char is_there[200], copies[200 * 64];
		int wanted[200], all = 1;
		unsigned n = (unsigned)below(200);
		for (unsigned i = 0; i < n; i++) {
			wanted[i] = round % 5 ? below(50) != 0 : (int)below(2);
			all = all && wanted[i];
			parts[i].iov_base = (void *)(wanted[i] ? good[below(sizeof good / sizeof *good)] : bad[below(sizeof bad / sizeof *bad)]);
			parts[i].iov_len = 8 + 8 * below(8);
			if (!wanted[i])
				parts[i].iov_len = 64;
		}
		CHECK(read_parts(copies, parts, n, is_there) == all);
		unsigned char *at = copies;
		for (unsigned i = 0; i < n; at += parts[i++].iov_len) {
			CHECK(is_there[i] == wanted[i]);
			CHECK(!wanted[i] || !memcmp(at, parts[i].iov_base, parts[i].iov_len));
		}
	}
}

enum { FRAME_SLOTS = 400, FRAME_SLOT = 120, CODES = 60, CODE = 256, STRING = 320, THREAD = 256 };

static struct {
	unsigned char *threads, *frames, *codes, *strings;
	word stack[FRAME_SLOTS], depth; // addresses, the outermost first
	word serial;
} made;

static word fake_thread(void) { return (word)made.threads; }

static void put_word(word at, word w) { memcpy((void *)at, &w, sizeof w); }

static void make_string(unsigned i) {
	const struct py_layout *l = &python.layout;
	word at = (word)made.strings + i * STRING, kind = below(8) ? 1 : below(2) ? 2 : 4, is_ascii = kind == 1 && below(4), length = below(8) ? below(48) : below(400);
	put_word(at + l->length, length);
	put_word(at + STRING_HEAD - 8, kind << 2 | is_ascii << 6);
	for (word k = at + (is_ascii ? l->ascii : l->wide); k + 8 <= at + STRING; k += 8)
		put_word(k, made.serial + below(3));
}

static void make_code(unsigned i) {
	const struct py_layout *l = &python.layout;
	word at = (word)made.codes + i * CODE + l->head;
	made.serial++;
	put_word(at + below(PY_HEAD_WORDS) * 8, made.serial);
	put_word(at + l->first_line / 8 * 8, below(1000) << 32 | below(1000));
	put_word(at + l->file, (word)made.strings + below(2 * CODES) * STRING);
	put_word(at + l->name, (word)made.strings + below(2 * CODES) * STRING);
}

static word any_code(void) { return (word)made.codes + below(CODES) * CODE; }

static void run_code(word frame, word code) {
	const struct py_layout *l = &python.layout;
	if (l->owner != PY_NONE)
		put_word(frame + l->owner / 8 * 8, below(20) ? 0 : below(8) << l->owner % 8 * 8);
	put_word(frame + l->code, code + (below(10) ? 0 : below(4)));
	put_word(frame + l->instruction, l->is_index ? below(500) : code + below(500));
}

static word wild(void) {
	const word some[] = {1, 8, ~(word)0, (word)1 << 63, ~(word)7, (word)1 << 47, (word)made.frames + FRAME_SLOTS * FRAME_SLOT + 64 * PAGE, (word)made.codes,
		(word)made.frames + 3, (word)made.threads};
	return some[below(sizeof some / sizeof *some)];
}

static word top(void) { return made.depth ? made.stack[made.depth - 1] : 0; }

static void push(void) {
	if (made.depth == 200)
		return;
	word at = (word)made.frames + (below(6) ? made.depth : below(FRAME_SLOTS)) * FRAME_SLOT;
	for (word i = 0; i < made.depth; i++)
		if (made.stack[i] == at)
			return;
	put_word(at + python.layout.previous, top());
	run_code(at, any_code());
	made.stack[made.depth++] = at;
}

// change changes something, and returns what another call undoes.
static void change(void) {
	switch (below(8)) {
	case 0:
	case 1:
		for (word n = below(10); n; n--)
			push();
		break;
	case 2:
		for (word n = below(10); n && made.depth; n--)
			made.depth--;
		break;
	case 3:
		if (made.depth)
			run_code(made.stack[below(made.depth)], any_code());
		break;
	case 4: make_code((unsigned)below(CODES)); break;
	case 5: make_string((unsigned)below(2 * CODES)); break;
	case 6:
		if (made.depth)
			put_word(top() + 8 * below(15), below(3)); // also what is not read
		if (made.depth) {
			put_word(top() + python.layout.previous, made.depth > 1 ? made.stack[made.depth - 2] : 0);
			run_code(top(), any_code());
		}
		break;
	}
	word innermost = (word)made.threads + python.layout.current;
	if (python.layout.indirect != PY_NONE) {
		put_word(innermost, (word)made.threads + 128);
		innermost = (word)made.threads + 128 + python.layout.indirect;
	}
	put_word(innermost, top());
}

static word print_alone(word code) {
	const struct py_layout *l = &python.layout;
	word head[PY_HEAD_WORDS];
	CHECK(copy(head, code + l->head, sizeof head));
	word print = py_digest(head), names[] = {l->file, l->name};
	for (int i = 0; i < 2 && l->compares_text; i++) {
		unsigned char string[MAX_STRING];
		word at = py_word(head, names[i]);
		if (!copy(string, at, STRING_HEAD))
			return 0;
		word size = string_size((const word *)(const void *)string);
		if (size == STRING_HEAD || !copy(string, at, size))
			return 0;
		print = mixed(print, string, size);
	}
	return print && print != NO_CODE ? print : 1;
}

// walk_alone is the walk that reads each frame by itself.
static unsigned walk_alone(word *stack, word *prints) {
	const struct py_layout *l = &python.layout;
	word at = word_at(fake_thread() + l->current);
	unsigned n = 0;
	if (at && l->indirect != PY_NONE)
		at = word_at(at + l->indirect);
	for (; at && n < PY_FRAMES; n++) {
		word part[PY_PART_WORDS] = {0}, head[PY_HEAD_WORDS] = {0};
		struct py_frame f = {0};
		int is_read = 0;
		if (at % 8 == 0 && copy(part, at, l->frame_size)) {
			py_decode(&f, l, part);
			is_read = py_runs_code(&f) && copy(head, f.code + l->head, sizeof head);
		}
		*stack++ = is_read ? py_code_word(&f) : f.owner;
		*stack++ = py_line_word(&f, l, is_read ? head : NULL);
		*prints++ = is_read ? print_alone(f.code) : NO_CODE;
		at = f.previous;
	}
	return n;
}

static unsigned compare(void) {
	word stack[2 * PY_FRAMES], prints[PY_FRAMES], alone[2 * PY_FRAMES], prints_alone[PY_FRAMES];
	unsigned n = python_frames(stack, prints, 1), wanted = walk_alone(alone, prints_alone);
	CHECK(n == wanted);
	for (unsigned i = 0; i < n; i++)
		CHECK(stack[2 * i] == alone[2 * i] && stack[2 * i + 1] == alone[2 * i + 1] && prints[i] == prints_alone[i]);
	return n;
}

// A walk is what it is without any before it.
static void test_frames(const struct raw_layout *raw) {
	enum { FRAME_PAGES = FRAME_SLOTS * FRAME_SLOT / PAGE + 1, CODE_PAGES = CODES * CODE / PAGE + 1, STRING_PAGES = 2 * CODES * STRING / PAGE + 1 };
	CHECK(set_layout(raw));
	python.thread = fake_thread;
	made.depth = 0;
	made.threads = pages(1);
	made.frames = pages(FRAME_PAGES);
	made.codes = pages(CODE_PAGES);
	made.strings = pages(STRING_PAGES);
	for (unsigned i = 0; i < CODES; i++)
		make_code(i);
	for (unsigned i = 0; i < 2 * CODES; i++)
		make_string(i);
	unsigned frames = 0, repeated = 0;
	for (int round = 0; round < 300; round++) {
		const struct walk *before = own_reader ? own_reader->latest : NULL;
		for (word n = below(4); n; n--)
			change();
		frames += compare();
		repeated += own_reader->latest == before;
		if (made.depth && round % 4 == 0) { // a word of a frame is anything
			word at = made.stack[below(made.depth)], words[FRAME_SLOT / 8];
			memcpy(words, (void *)at, sizeof words);
			put_word(at + (below(2) ? python.layout.previous : python.layout.code), below(4) ? wild() : at);
			compare();
			memcpy((void *)at, words, sizeof words);
		}
		if (round % 8 == 0) { // a page is away for a while
			unsigned char *all[] = {made.frames, made.codes, made.strings};
			size_t counts[] = {FRAME_PAGES, CODE_PAGES, STRING_PAGES}, i = below(3);
			unsigned char *page = all[i] + below(counts[i]) * PAGE;
			CHECK(!mprotect(page, PAGE, PROT_NONE));
			compare();
			CHECK(!mprotect(page, PAGE, PROT_READ | PROT_WRITE));
			compare();
		}
	}
	CHECK(frames > 4000 && repeated > 20);
}

// The child of a system call reads its own memory, and leaves its parent's alone.
static void test_child(void) {
	compare();
	py_reader *before = pages(sizeof *before / PAGE + 1);
	memcpy(before, own_reader, sizeof *before);
	pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
	if (!pid) {
		for (int i = 0; i < 20; i++) {
			change();
			compare();
		}
		_exit(0);
	}
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(!memcmp(before, own_reader, sizeof *before));
	compare();
}

static void *walks_once(void *unused) {
	compare();
	CHECK(own_reader);
	pthread_setspecific(thread_ends, own_reader);
	return unused;
}

// A signal handler that interrupts a walk takes no frames. A thread that ends leaves no reader.
static void test_readers(void) {
	word stack[2 * PY_FRAMES], prints[PY_FRAMES];
	for (int i = 0; i < 10; i++)
		push();
	change();
	CHECK(compare() >= 1);
	own_reader->is_busy = 1;
	CHECK(python_frames(stack, prints, 1) == 0);
	own_reader->is_busy = 0;
	CHECK(compare() >= 1);
	struct rlimit limit, small;
	CHECK(!getrlimit(RLIMIT_AS, &limit));
	small = limit;
	small.rlim_cur = 200 << 20;
	CHECK(!setrlimit(RLIMIT_AS, &small));
	for (int i = 0; i < 700; i++) { // as many readers need more
		pthread_t t;
		CHECK(!pthread_create(&t, NULL, walks_once, NULL) && !pthread_join(t, NULL));
	}
	CHECK(!setrlimit(RLIMIT_AS, &limit));
}

int main(void) {
	alarm(540); // a deadlock ends, and a busy machine has the time
	pthread_once(&python_once, find_python);
	test_parts();
	for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
		test_frames(&layouts[i]);
	test_child();
	test_readers();
	return 0;
}
