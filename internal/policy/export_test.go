package policy

// FBIHash is the hash of the ring, for known answers.
func FBIHash(key string) uint64 { return fbiHash([]byte(key)) }

// Furc is the part of the hash that chooses one of m buckets.
func Furc(key string, m uint32) uint32 { return furc([]byte(key), m) }
