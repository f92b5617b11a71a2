package wasm

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reserveMemory reserves size bytes of zeros, of which the first huge bytes prefer huge pages: a decode step reads all
// weights once, and with small pages address translation costs it 40 %.
func reserveMemory(size, huge uint64) (*linearMemory, error) {
	all, err := unix.Mmap(-1, 0, int(size+hugePage), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserving %d MiB of memory: %w", size>>20, err)
	}
	start := -uintptr(unsafe.Pointer(unsafe.SliceData(all))) & (hugePage - 1)
	bytes := all[start : uint64(start)+size]
	// Without huge pages (disabled, or none free) everything works, slower.
	_ = unix.Madvise(bytes[:min(roundUp(huge, hugePage), size&^(hugePage-1))], unix.MADV_HUGEPAGE)
	return &linearMemory{bytes: bytes, release: func() error { return unix.Munmap(all) }}, nil
}
