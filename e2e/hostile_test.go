//go:build e2e

package e2e_test

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// members returns an object with n members, among them those of a good request.
func members(n int) string {
	var b strings.Builder
	b.WriteString(`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":2`)
	for i := range n - 3 {
		fmt.Fprintf(&b, `,"x%d":%d`, i, i)
	}
	return b.String() + "}"
}

// levels returns a good request whose objects and arrays are n deep.
func levels(n int) string {
	deep := strings.Repeat(`[`, n-1) + strings.Repeat(`]`, n-1)
	return `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":2,"deep":` + deep + `}`
}

// TestRubbishBodies sends bodies that are no request. They must be refused by
// the router, and what is just good enough must not.
func TestRubbishBodies(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1, router: []string{"--max-payload-size", "1000000"}})
	good := `"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":2`
	for _, test := range []struct{ name, body, code string }{
		{"empty", "", "invalid_json"},
		{"space", " \n ", "invalid_json"},
		{"text", "hello", "invalid_json"},
		{"open", "{" + good, "invalid_json"},
		{"open string", `{"model":"m`, "invalid_json"},
		{"more behind", "{" + good + "}x", "invalid_json"},
		{"two", "{" + good + "}{" + good + "}", "invalid_json"},
		{"comma", "{" + good + ",}", "invalid_json"},
		{"single quotes", "{'model':'m'}", "invalid_json"},
		{"array", "[{" + good + "}]", "invalid_json"},
		{"null", "null", "invalid_json"},
		{"number", "1", "invalid_json"},
		{"string", `"{}"`, "invalid_json"},
		{"leading zero", "{" + good + `,"x":01}`, "invalid_json"},
		{"control", "{" + good + ",\"x\":\"\x01\"}", "invalid_json"},
		{"bad escape", "{" + good + `,"x":"\q"}`, "invalid_json"},
		{"nul bytes", strings.Repeat("\x00", 1000), "invalid_json"},
		{"binary", "\x1f\x8b\x08\x00\xff\xfe", "invalid_json"},
		{"byte order mark", "\ufeff{" + good + "}", "invalid_json"},
		{"4097 members", members(4097), "invalid_json"},
		{"1001 levels", levels(1001), "invalid_json"},
		{"brackets", strings.Repeat("[", 900_000), "invalid_json"},
		{"objects", strings.Repeat(`{"a":`, 150_000), "invalid_json"},
		{"model is no string", `{"model":{"a":1},"messages":[]}`, "invalid_model"},
		{"too large", "{" + good + `,"x":"` + strings.Repeat("x", 1_000_000) + `"}`, "payload_too_large"},
	} {
		a := f.client.do(f.client.request(t.Context(), chat.path, []byte(test.body)))
		want := http.StatusBadRequest
		if test.code == "payload_too_large" {
			want = http.StatusRequestEntityTooLarge
		}
		if test.body == "" {
			r := f.client.request(t.Context(), chat.path, nil)
			r.Method = http.MethodPost
			a = f.client.do(r)
		}
		if code, message := a.code(); a.status != want || code != test.code || message == "" {
			t.Errorf("%s: want %d %s: %v", test.name, want, test.code, a)
		}
	}
	for _, e := range f.engines() {
		if n := len(e.records()); n != 0 {
			t.Errorf("%d rubbish requests reached %s", n, e)
		}
	}
	for _, test := range []struct{ name, body string }{
		{"4096 members", members(4096)},
		{"1000 levels", levels(1000)},
		{"just small enough", "{" + good + `,"x":"` + strings.Repeat("x", 1_000_000-len(good)-9) + `"}`},
	} {
		if a := f.client.post(chat.path, []byte(test.body)); a.status != http.StatusOK {
			t.Errorf("%s: %v", test.name, a)
		}
	}
	for name, value := range map[string]string{"Content-Encoding": "gzip", "Content-Type": "multipart/form-data; boundary=x"} {
		a := f.client.post(chat.path, []byte("{"+good+"}"), header{name: value})
		if a.status != http.StatusUnsupportedMediaType {
			t.Errorf("%s %s: %v", name, value, a)
		}
	}
	a := f.client.post(chat.path, []byte("{"+good+"}"), header{"Upgrade": "websocket", "Connection": "Upgrade"})
	if a.status != http.StatusNotImplemented {
		t.Errorf("upgrade: %v", a)
	}
}

// TestBadHTTP sends what is no HTTP, or not all of it.
func TestBadHTTP(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1, router: []string{"--client-body-timeout", "300ms"}})
	const post = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	good := string(question{api: chat, prompt: "hi", tokens: 2}.body())
	sized := fmt.Sprintf("Content-Length: %d\r\n", len(good))
	for _, test := range []struct {
		name, send string
		half       bool  // closes its sending half then
		status     []int // any of these, 0 for a connection that is just closed
	}{
		{"noise", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", false, []int{400}},
		{"http/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", false, []int{400, 404, 405, 505}},
		{"no version", "GET /v1/models\r\n\r\n", false, []int{400}},
		{"version 9", "GET /v1/models HTTP/9.9\r\nHost: x\r\n\r\n", false, []int{400, 505}},
		{"no host", "GET /v1/models HTTP/1.1\r\n\r\n", false, []int{400}},
		{"two hosts", "GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", false, []int{400}},
		{"space in name", post + "X Y: 1\r\n" + sized + "\r\n" + good, false, []int{400}},
		{"space before colon", post + "Content-Length : 3\r\n\r\n{}}", false, []int{400}},
		{"control in value", post + "X: a\x00b\r\n" + sized + "\r\n" + good, false, []int{400}},
		{"negative length", post + "Content-Length: -1\r\n\r\n" + good, false, []int{400}},
		{"length no number", post + "Content-Length: 1e3\r\n\r\n" + good, false, []int{400}},
		{"length over 64 bits", post + "Content-Length: 99999999999999999999\r\n\r\n" + good, false, []int{400}},
		{"two lengths", post + sized + "Content-Length: 3\r\n\r\n" + good, false, []int{400}},
		{"unknown coding", post + "Transfer-Encoding: zip\r\n\r\n" + good, false, []int{400, 501}},
		{"chunk no number", post + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n" + good, false, []int{400, 0}},
		{"chunk too long", post + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + good, false, []int{400, 0}},
		{"head of 2 MB", post + "X: " + strings.Repeat("x", 2<<20) + "\r\n\r\n", false, []int{431, 0}},
		{"many fields", post + strings.Repeat("X: y\r\n", 400_000) + "\r\n", false, []int{431, 0}},
		{"long path", "GET /" + strings.Repeat("x", 2<<20) + " HTTP/1.1\r\nHost: x\r\n\r\n", false, []int{414, 431, 0}},
		{"CONNECT", "CONNECT engine:80 HTTP/1.1\r\nHost: engine:80\r\n\r\n", false, []int{404, 405}},
		{"other server", "GET http://engine.example/sleep HTTP/1.1\r\nHost: x\r\n\r\n", false, []int{404}},
		{"TRACE", "TRACE /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", false, []int{404, 405}},
		{"huge body announced", post + "Content-Length: 10000000000000\r\n\r\n" + good, false, []int{413}},
		{"body stops", post + "Content-Length: 1000\r\n\r\n" + good, false, []int{408}},
		{"chunks stop", post + "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"a\":\r\n", false, []int{408}},
		{"body cut", post + "Content-Length: 1000\r\n\r\n" + good, true, []int{0, 400}},
		{"head cut", post, true, []int{0, 400}},
		{"nothing", "", true, []int{0, 400}},
		// It counts as gone, whether or not its request was complete.
		{"half-closed", post + sized + "\r\n" + good, true, []int{0, 200}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := dial(t, f.addr)
			go func() { // the router need not read it all
				_, _ = io.WriteString(w, test.send)
				if test.half {
					w.CloseWrite()
				}
			}()
			status := 0
			if a, err := w.read(); err == nil {
				status = a.status
				if q := (question{api: chat, prompt: "hi", tokens: 2}); status == http.StatusOK && q.check(a) != nil {
					t.Errorf("an answer that is none: %v", a)
				}
			}
			if !slices.Contains(test.status, status) {
				t.Errorf("status %d, want one of %v", status, test.status)
			}
			if status != http.StatusOK && status != 404 && status != 405 && status != http.StatusNotImplemented {
				if err := w.awaitEnd(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	await(t, patience, "idle", f.quiet)
	f.ask(question{api: chat, prompt: "Still there?", tokens: 5, stream: true})
}

// TestSmuggling sends requests that two servers in a row may take apart
// differently. No engine must see a request that the router has not.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{regular: 1})
	inner := "POST /sleep HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
	body := string(question{api: chat, prompt: "hi", tokens: 2}.body())
	for name, head := range map[string]string{
		"both lengths":    fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", len(inner)+5),
		"coding twice":    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		"coding in a row": "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"vertical tab":    "Transfer-Encoding: \x0bchunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		"bare LF":         fmt.Sprintf("Content-Length: %d\nX: y\r\n\r\n%s", len(body), body),
		"folded":          fmt.Sprintf("X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n%s", len(body), body),
		"in a value":      fmt.Sprintf("X-Request-Id: a\rTransfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n%s", len(body), body),
	} {
		w := dial(t, f.addr)
		if _, err := io.WriteString(w, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+head+inner); err != nil {
			t.Fatal(err)
		}
		for {
			a, err := w.read()
			if err != nil || a.status == http.StatusNotFound { // path_not_served is what /sleep gets
				break
			}
			if a.status == http.StatusBadRequest {
				break
			}
		}
		w.Close()
		s, err := f.regular[0].stats()
		if err != nil || s.Paths["/sleep"] != 0 || s.Sleeping {
			t.Fatalf("%s: an engine was sent /sleep: %v", name, err)
		}
	}
	f.ask(question{api: chat, prompt: "Awake?", tokens: 5})
}

// TestMemory opens many connections that announce much and send little, and
// wants the router's memory to follow what was sent.
func TestMemory(t *testing.T) {
	t.Parallel()
	f := newFleet(t, fleetConfig{prefill: 1, decode: 1, router: []string{"--client-body-timeout", "5s"}})
	const mb = 1 << 20
	some, more, size := 150.0*mb, 700.0*mb, 20*mb
	if raced() {
		some, more, size = 4*some, 2*more, size/5
	}
	rss := func() float64 { return f.metric("process_resident_memory_bytes") }
	before := rss()
	if before == 0 {
		t.Skip("the system does not tell a process's memory")
	}
	var wires []*wire
	for i := range 300 {
		w := dial(t, f.addr)
		wires = append(wires, w)
		var err error
		switch i % 3 {
		case 0: // 300 MB announced
			_, err = fmt.Fprintf(w, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{", 300*mb)
		case 1: // a head that never ends
			_, err = io.WriteString(w, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX: ")
		case 2: // chunks of an unknown sum
			_, err = io.WriteString(w, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n{")
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	await(t, patience, "all have arrived", func() error {
		if n := f.metric("baton_requests_active"); n != 200 {
			return fmt.Errorf("%v requests are active", n)
		}
		return nil
	})
	if got := rss(); got > before+some {
		t.Errorf("300 idle connections take %.0f MB", (got-before)/mb)
	} else {
		t.Logf("RSS %.0f MB before, %.0f MB with 300 connections that send nothing more", before/mb, got/mb)
	}
	// Others are served meanwhile.
	for _, api := range apis {
		f.ask(question{api: api, prompt: "Me too?", tokens: 5, stream: true})
	}
	var wg sync.WaitGroup
	for _, w := range wires {
		wg.Go(func() { _, _ = io.Copy(io.Discard, w) }) // those with a head that never ends take 10 s
	}
	// Large bodies, several at once, twice: memory is given back in between.
	large := []byte(`{"model":"m","max_tokens":2,"messages":[{"role":"user","content":"hi"}],"x":"` + strings.Repeat("x", size) + `"}`)
	for range 2 {
		var answers []<-chan *answer
		for range 4 {
			answers = append(answers, f.client.async(chat.path, large))
		}
		for _, ch := range answers {
			if a := receive(t, ch); a.status != http.StatusOK {
				t.Errorf("a body of %d bytes: %v", size, a)
			}
		}
	}
	// Each is held once as sent and once per leg; the collector may let it double.
	peak := rss()
	if peak > before+more {
		t.Errorf("8 bodies of %d bytes, 4 at a time, take %.0f MB", size, (peak-before)/mb)
	}
	t.Logf("RSS %.0f MB after 8 bodies of %d bytes, 4 at a time", peak/mb, size)
	wg.Wait()
	await(t, patience, "idle", f.quiet)
	await(t, 30*time.Second, "connections closed", func() error {
		if n := f.metric("process_open_fds"); n > 40 {
			return fmt.Errorf("%v files are open", n)
		}
		return nil
	})
}
