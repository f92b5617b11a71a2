package wasm

import "github.com/tetratelabs/wazero/experimental"

// linearMemory is a guest's memory, reserved in full before the guest starts: it never moves and its pages become
// resident when they are first touched. It belongs to the stepper, which releases it after the guest is closed.
type linearMemory struct {
	bytes   []byte
	release func() error
}

var _ experimental.MemoryAllocator = (*linearMemory)(nil)

// Allocate implements experimental.MemoryAllocator.
func (m *linearMemory) Allocate(_, _ uint64) experimental.LinearMemory { return m }

// Reallocate implements experimental.LinearMemory.
func (m *linearMemory) Reallocate(size uint64) []byte {
	if size > uint64(len(m.bytes)) {
		return nil
	}
	return m.bytes[:size:len(m.bytes)]
}

// Free implements experimental.LinearMemory. The owner frees.
func (m *linearMemory) Free() {}

func (m *linearMemory) close() error {
	release := m.release
	m.bytes, m.release = nil, nil
	if release == nil {
		return nil
	}
	return release()
}
