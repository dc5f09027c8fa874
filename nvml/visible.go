package nvml

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/libcuda"
)

// Visible returns the devices that CUDA_VISIBLE_DEVICES leaves to a CUDA program, in the order
// of their CUDA ordinals. It follows CUDA's rules: if the variable is not set, all devices are
// visible; the list ends at the first entry that is not a device; and if a device is listed
// twice, none is visible. getenv is os.LookupEnv, or a function of a test.
//
// Entries may be UUIDs or numbers. Numbers count in CUDA's order: along the PCI bus if
// CUDA_DEVICE_ORDER is PCI_BUS_ID, otherwise the fastest GPU first, which only CUDA knows: see
// VisibleDevices. With GPUs of several models such numbers are an error here. GPUs of one
// model are taken along the bus, which is what CUDA usually does.
func Visible(devices []Device, getenv func(string) (string, bool)) ([]Device, error) {
	list, set := getenv("CUDA_VISIBLE_DEVICES")
	if !set {
		return devices, nil
	}
	gpus := alongTheBus(devices)
	var visible []Device
	for entry := range strings.SplitSeq(list, ",") {
		d, ok, err := visibleEntry(devices, gpus, strings.TrimSpace(entry), getenv)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		if slices.Contains(visible, d) {
			return nil, nil
		}
		visible = append(visible, d)
	}
	return visible, nil
}

func visibleEntry(devices, gpus []Device, entry string, getenv func(string) (string, bool)) (Device, bool, error) {
	ordinal, err := strconv.Atoi(entry)
	if err != nil {
		d, err := byUUID(devices, entry)
		return d, err == nil && entry != "", nil
	}
	if ordinal < 0 || ordinal >= len(gpus) {
		return Device{}, false, nil
	}
	if order, _ := getenv("CUDA_DEVICE_ORDER"); order != "PCI_BUS_ID" && !oneModel(gpus) {
		return Device{}, false, fmt.Errorf("CUDA_VISIBLE_DEVICES has numbers, which CUDA counts from the fastest GPU: "+
			"with %d models of GPU set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPU by its UUID", len(models(gpus)))
	}
	return gpus[ordinal], true, nil
}

func oneModel(gpus []Device) bool { return len(models(gpus)) <= 1 }

func models(gpus []Device) map[string]bool {
	names := make(map[string]bool)
	for _, d := range gpus {
		names[d.Name] = true
	}
	return names
}

// alongTheBus returns the GPUs, without MIG devices, in the order of their PCI addresses; if these
// are unknown, in the driver's order.
func alongTheBus(devices []Device) []Device {
	gpus := slices.DeleteFunc(slices.Clone(devices), func(d Device) bool { return d.Parent != "" })
	slices.SortStableFunc(gpus, func(a, b Device) int { return strings.Compare(a.BusID, b.BusID) })
	return gpus
}

// VisibleDevices returns the devices of src that CUDA_VISIBLE_DEVICES leaves to a CUDA program
// with this process's environment. If the variable has numbers whose meaning only CUDA knows
// (it orders the devices, and replaces a GPU in MIG mode by one of its MIG devices), CUDA is
// asked for its devices, which are matched to those of src by UUID. If CUDA does not answer,
// see Visible. Devices that the process has opened, see FromDevices, are visible. The error says that
// there is no device.
func VisibleDevices(src Source) ([]Device, error) {
	devices, err := src.Devices()
	if err != nil {
		return nil, err
	}
	if _, own := src.(*overDevices); own && len(devices) > 0 {
		return devices, nil
	}
	visible, known := visibleToCUDA(devices, cudaUUIDs)
	if !known {
		visible, err = Visible(devices, os.LookupEnv)
	}
	if err == nil && len(visible) == 0 {
		err = noneVisible(len(devices))
	}
	return visible, err
}

// visibleToCUDA returns the devices that CUDA lists. It asks only if the order is known to CUDA
// alone; known is false if a device is not found.
func visibleToCUDA(devices []Device, ask func() ([]string, error)) (visible []Device, known bool) {
	if !onlyCUDAKnows(devices) {
		return nil, false
	}
	uuids, err := ask()
	if err != nil {
		return nil, false
	}
	for _, uuid := range uuids {
		d, err := byUUID(devices, uuid)
		if err != nil {
			return nil, false
		}
		visible = append(visible, d)
	}
	return visible, true
}

// onlyCUDAKnows reports whether there is a number in CUDA_VISIBLE_DEVICES that counts in
// another order than the bus's, or that may mean a GPU's MIG device.
func onlyCUDAKnows(devices []Device) bool {
	numbered := slices.ContainsFunc(strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ","), func(entry string) bool {
		_, err := strconv.Atoi(strings.TrimSpace(entry))
		return err == nil
	})
	gpus := len(alongTheBus(devices))
	hasMIG := gpus < len(devices)
	ownOrder := gpus > 1 && os.Getenv("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
	return numbered && (hasMIG || ownOrder)
}

// selectDevices returns the devices named, or the visible ones if none is.
func selectDevices(src Source, names []string) ([]Device, error) {
	if len(names) == 0 {
		return VisibleDevices(src)
	}
	devices, err := src.Devices()
	if err != nil {
		return nil, err
	}
	picked := make([]Device, 0, len(names))
	for _, name := range names {
		d, err := pick(devices, name)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(picked, d) {
			picked = append(picked, d)
		}
	}
	return picked, nil
}

func noneVisible(n int) error {
	if n == 0 {
		return notAvailable("the driver lists no GPU")
	}
	return fmt.Errorf("CUDA_VISIBLE_DEVICES leaves none of %d GPUs: name one, or change the variable: %w", n, ErrNoDevice)
}

// cudaUUIDs asks CUDA for the UUIDs of its devices, in the order of their ordinals. It makes no
// context, which would take memory on each device.
func cudaUUIDs() ([]string, error) { return libcuda.UUIDs() }
