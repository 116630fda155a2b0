// Package s3fence fences an object in S3 or a store with its interface.
//
//	f, err := s3fence.New(client, "bucket", "invoices/current") // client: *s3.Client
//	…
//	err = f.Write(ctx, term.Stamp(), report)
//	err = f.Update(ctx, term.Stamp(), func(old []byte) ([]byte, error) { … })
//
// # Many objects
//
// One fenced object can point to many others. Write each object under a new name, which nobody
// else uses ([Name]), and then write the names to the fenced object:
//
//	name := s3fence.Name("invoices/data/", term.Stamp())
//	// PutObject name, as often as needed
//	err = f.Update(ctx, term.Stamp(), func(old []byte) ([]byte, error) { … add the name … })
//
// Readers begin at the fenced object. A leader that was replaced leaves objects that nobody points
// to, and no other trace: delete those that are older than a day.
//
// # Limitations
//
// The store must honour If-Match and If-None-Match on PUT: AWS S3 does since 2024, many stores with
// its interface do not, and then nothing is fenced. Test yours with [Fence.Probe]. Only writers that
// use this package are checked, and replication to another bucket is not fenced. The object begins
// with a line that has the mark; other readers skip that line. An answer that was lost leaves the
// outcome unknown; Read shows it. One object takes some ten writes a second.
//
// # How it works
//
// A write reads the object and its ETag, compares the mark in it with the stamp, and puts the new
// object if the ETag is still the same. An ETag may be a digest of the content, so the first line
// also has a number that is never used twice: equal data has another ETag.
package s3fence
