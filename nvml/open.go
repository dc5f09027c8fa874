package nvml

// Open opens the best source there is: the driver's library, or without the
// library nvidia-smi. Its error is ErrNotAvailable and says why each of
// them cannot be had.
func Open() (Source, error) {
	lib, libErr := OpenLibrary("")
	if libErr == nil {
		return lib, nil
	}
	smi, smiErr := OpenSMI("")
	if smiErr == nil {
		return smi, nil
	}
	return nil, notAvailable("%v; %v", reason(libErr), reason(smiErr))
}
