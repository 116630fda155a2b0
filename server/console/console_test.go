package console

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// sources are what the page is built from. vite.config.js has the same list.
var sources = []string{"index.html", "icon.svg", "package.json", "package-lock.json", "vite.config.js", "src"}

// The committed page was built from the committed sources: it names their hash. This needs no npm.
func TestBuiltFromSources(t *testing.T) {
	var names []string
	for _, s := range sources {
		err := filepath.WalkDir(filepath.Join("web", s), func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				names = append(names, name)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(names)
	sum := sha256.New()
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		one := sha256.Sum256(text)
		_, _ = sum.Write([]byte(strings.TrimPrefix(filepath.ToSlash(name), "web/") + " " + hex.EncodeToString(one[:]) + "\n"))
	}
	built, err := os.ReadFile("web/dist/sources.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(string(built)); got != hex.EncodeToString(sum.Sum(nil)) {
		t.Error("web/dist was built from other sources: run make console, and commit web/dist")
	}
}

// maxWeight is how many bytes the compressed page may have.
const maxWeight = 60_000

// The page is light, and names no other host.
func TestWeight(t *testing.T) {
	files, err := load()
	if err != nil {
		t.Fatal(err)
	}
	weight := 0
	address := regexp.MustCompile(`(?i)(https?:)?//[a-z0-9-]+\.[a-z]`)
	for name, f := range files {
		weight += len(f.zipped)
		for _, found := range address.FindAllString(string(f.text), -1) {
			if !strings.HasPrefix(found, "http://www.w") { // the names of XML namespaces
				t.Errorf("%s names another host: %s", name, found)
			}
		}
	}
	t.Logf("%d bytes compressed", weight)
	if weight > maxWeight || len(files) < 4 {
		t.Errorf("%d files of %d bytes, compressed; want at most %d bytes", len(files), weight, maxWeight)
	}
}

// Every file has the strict headers. A browser that has it gets 304. Other paths are not found.
func TestServed(t *testing.T) {
	h, err := Handler()
	if err != nil {
		t.Fatal(err)
	}
	for path, kind := range map[string]string{"/ui/": "text/html", "/v1/ui/": "text/html", "/ui/app.js": "text/javascript", "/ui/app.css": "text/css", "/ui/icon.svg": "image/svg+xml"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		csp := w.Header().Get("Content-Security-Policy")
		if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) || w.Header().Get("X-Content-Type-Options") != "nosniff" || w.Header().Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
		if !strings.HasPrefix(csp, "default-src 'none'; ") || strings.Contains(csp, "unsafe") || strings.Contains(csp, "*") || !strings.Contains(csp, "frame-ancestors 'none'") {
			t.Errorf("%s: %s", path, csp)
		}
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("If-None-Match", w.Header().Get("ETag"))
		again := httptest.NewRecorder()
		if h.ServeHTTP(again, r); again.Code != 304 || again.Body.Len() != 0 {
			t.Errorf("%s again: %d with %d bytes", path, again.Code, again.Body.Len())
		}
	}
	for _, path := range []string{"/ui/none", "/ui/../console.go", "/ui/src/main.jsx"} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest("GET", path, nil)); w.Code != 404 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}
