// Package console is the web page of a Tenure service: who leads each group, why it changed, and
// what an operator may do about it. The source of the page is in web; `make console` builds it
// into web/dist, which is committed and embedded.
//
// The page has no data of its own and uses the API of the service with the caller's rights. Its
// Content-Security-Policy allows nothing from other hosts, no inline scripts and no frames.
//
// # Limitations
//
// The page shows what one instance of the service sees. It cannot show a leader that still
// believes that it leads after its lease has ended; only the fence protects against that one.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"

	"github.com/tenurehq/tenure/server/httpapi"
)

//go:embed web/dist
var dist embed.FS

// policy is the Content-Security-Policy of the page.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

func kindOf(name string) string {
	switch path.Ext(name) {
	case ".html":
		return "text/html; charset=utf-8"
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return "text/plain; charset=utf-8"
}

type file struct {
	kind, etag   string
	text, zipped []byte
}

// Handler serves the page below /ui/.
func Handler() (http.Handler, error) {
	files, err := load()
	if err != nil {
		return nil, fmt.Errorf("console: read the embedded page: %w", err)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, name, _ := strings.Cut(r.URL.Path, "/ui/")
		if name == "" {
			name = "index.html"
		}
		f, ok := files[name]
		if !ok {
			httpapi.WriteProblem(w, httpapi.Refuse(http.StatusNotFound, "no_such_path", "the page has no such file"))
			return
		}
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", f.etag)
		h.Set("Vary", "Accept-Encoding")
		if r.Header.Get("If-None-Match") == f.etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		h.Set("Content-Type", f.kind)
		body := f.text
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			h.Set("Content-Encoding", "gzip")
			body = f.zipped
		}
		_, _ = w.Write(body)
	}), nil
}

func load() (map[string]file, error) {
	const root = "web/dist"
	files := make(map[string]file)
	err := fs.WalkDir(dist, root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := dist.ReadFile(name)
		if err != nil {
			return err
		}
		var zipped bytes.Buffer
		z, err := gzip.NewWriterLevel(&zipped, gzip.BestCompression)
		if err == nil {
			_, _ = z.Write(text) // a buffer takes everything
			err = z.Close()
		}
		sum := sha256.Sum256(text)
		files[strings.TrimPrefix(name, root+"/")] = file{
			kind: kindOf(name), etag: `"` + hex.EncodeToString(sum[:12]) + `"`, text: text, zipped: zipped.Bytes(),
		}
		return err
	})
	return files, err
}
