package scheduler

import "math/bits"

// philox is the counter-based generator Philox4x32-10: ten rounds of a keyed bijection over a 128-bit counter. Salmon,
// Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011. It has no state, so the number for a step
// can be had without those of the steps before it, which is what lets an answer continue after a crash.
func philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	const (
		m0, m1 = 0xD2511F53, 0xCD9E8D57 // multipliers
		w0, w1 = 0x9E3779B9, 0xBB67AE85 // Weyl increments of the key
	)
	for range 10 {
		hi0, lo0 := bits.Mul32(m0, counter[0])
		hi1, lo1 := bits.Mul32(m1, counter[2])
		counter = [4]uint32{hi1 ^ counter[1] ^ key[0], lo1, hi0 ^ counter[3] ^ key[1], lo0}
		key[0] += w0
		key[1] += w1
	}
	return counter
}

// uniform returns the number in [0,1) that belongs to (seed, turn, step), with 53 random bits.
func uniform(seed, turn, step uint64) float64 {
	r := philox([4]uint32{uint32(step), uint32(step >> 32), uint32(turn), uint32(turn >> 32)},
		[2]uint32{uint32(seed), uint32(seed >> 32)})
	return float64((uint64(r[1])<<32|uint64(r[0]))>>11) / (1 << 53)
}
