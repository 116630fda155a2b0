// Package history writes and reads the recording of a run.
//
// A history is a directory of .ndjson files. Every line is one event. Every instant is a
// reading of the host's clock (package clock). The last line of a file has the number and
// the digest of the lines before it; manifest.json lists the files. [Writer] writes one
// file, [WriteManifest] the manifest, and [Open] reads a directory. Package check decides
// what a history shows.
package history
