package plain

// The opcodes of Python's pickletools that build plain data.
const (
	opProto           = 0x80
	opStop            = '.'
	opMark            = '('
	opPop             = '0'
	opPopMark         = '1'
	opDup             = '2'
	opNone            = 'N'
	opNewTrue         = 0x88
	opNewFalse        = 0x89
	opInt             = 'I' // I, L, F, S, V, p and g have an argument of text
	opLong            = 'L'
	opFloat           = 'F'
	opString          = 'S'
	opUnicode         = 'V'
	opPut             = 'p'
	opGet             = 'g'
	opBinInt          = 'J'
	opBinInt1         = 'K'
	opBinInt2         = 'M'
	opLong1           = 0x8a
	opLong4           = 0x8b
	opBinFloat        = 'G'
	opShortBinUnicode = 0x8c
	opBinUnicode      = 'X'
	opBinUnicode8     = 0x8d
	opShortBinBytes   = 'C'
	opBinBytes        = 'B'
	opBinBytes8       = 0x8e
	opByteArray8      = 0x96
	opShortBinString  = 'U'
	opBinString       = 'T'
	opEmptyList       = ']'
	opAppend          = 'a'
	opAppends         = 'e'
	opList            = 'l'
	opEmptyTuple      = ')'
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opTuple           = 't'
	opEmptyDict       = '}'
	opSetItem         = 's'
	opSetItems        = 'u'
	opDict            = 'd'
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opMemoize         = 0x94
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opBinGet          = 'h'
	opLongBinGet      = 'j'
	opFrame           = 0x95
)

// running are the opcodes that call code or name what does.
const running = "cRbio\x81\x92\x82\x83\x84PQ\x93"

const maxProtocol = 5
