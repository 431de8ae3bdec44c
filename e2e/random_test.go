//go:build e2e

package e2e_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// newRand returns a source of random numbers that is the same in every run,
// unless E2E_SEED says otherwise.
func newRand(t testing.TB, stream uint64) *rand.Rand {
	t.Helper()
	seed := uint64(1)
	if s := os.Getenv("E2E_SEED"); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("E2E_SEED: %v", err)
		}
	}
	return rand.New(rand.NewPCG(seed, stream))
}
