package remote

// Prefer makes the store begin with the instance of that number.
func Prefer(s *Store, at int) { s.prefer(at) }
