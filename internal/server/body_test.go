package server_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"mime/multipart"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/memnet"
	"github.com/baton-llm/baton/internal/server"
)

func limit(n int64) func(*server.Config) {
	return func(c *server.Config) { c.MaxPayload = n }
}

// sized returns a completion request of n bytes.
func sized(n int) string {
	const frame = `{"model":"m","max_tokens":1,"prompt":""}`
	return strings.TrimSuffix(frame, `"}`) + strings.Repeat("a", n-len(frame)) + `"}`
}

// Case 4.21: a body over the limit is refused as soon as that is known.
func TestBodyLimit(t *testing.T) {
	const most = 1000
	head := func(more string) string {
		return "POST /v1/completions HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\n" + more + "\r\n"
	}
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	over := sized(most + 1)
	for _, tt := range []struct {
		name   string
		send   []string
		status int
	}{
		{"announced, nothing sent", []string{head("Content-Length: 1001\r\n")}, 413},
		{"announced, all sent", []string{head("Content-Length: 1001\r\n"), over}, 413},
		{"announced, to be continued", []string{head("Content-Length: 1001\r\nExpect: 100-continue\r\n")}, 413},
		{"announced, beyond all numbers", []string{head("Content-Length: 9223372036854775807\r\n")}, 413},
		{"chunked, not at its end", []string{head("Transfer-Encoding: chunked\r\n"), chunk(over[:600]), chunk(over[600:])}, 413},
		{"chunked, in one", []string{head("Transfer-Encoding: chunked\r\n"), chunk(over), "0\r\n\r\n"}, 413},
		{"as much as may be", []string{head("Content-Length: 1000\r\n"), sized(most)}, 200},
		{"as much as may be, chunked", []string{head("Transfer-Encoding: chunked\r\n"), chunk(sized(most)), "0\r\n\r\n"}, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{server: limit(most)})
				r := f.dial()
				began := time.Now()
				for _, s := range tt.send {
					r.say(s)
				}
				a := r.answer()
				if a.err != nil || a.status != tt.status {
					t.Fatalf("%+v, want %d", a, tt.status)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("it took %v", took)
				}
				synctest.Wait()
				if line := f.access(); line["status"] != float64(tt.status) {
					t.Errorf("%v", line)
				}
				if tt.status == 200 {
					return
				}
				if a.code() != "payload_too_large" || a.header.Get("Connection") != "close" || !r.closed() {
					t.Errorf("%+v", a)
				}
				if len(f.arrived()) != 0 {
					t.Error("it reached the worker")
				}
			})
		})
	}
}

// An announced length is only a word.
func TestHugeLengthDoesNotAllocate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{})
		r := f.dial()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r.say("POST /v1/completions HTTP/1.1\r\nHost: router\r\nContent-Length: 500000000\r\n\r\n{")
		synctest.Wait()
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 2<<20 {
			t.Errorf("%d bytes were allocated", got)
		}
		r.conn.Close()
	})
}

func TestBodyTimeout(t *testing.T) {
	const timeout = 40 * time.Second
	body := sized(100)
	for _, tt := range []struct {
		name   string
		pauses []time.Duration // each before a byte of the body; then silence
		status int
	}{
		{"silence from the start", nil, 408},
		{"silence after a part", []time.Duration{0, 0, time.Second}, 408},
		{"silence after a slow part", []time.Duration{39 * time.Second, 39 * time.Second, 9 * time.Second}, 408},
		{"slow but steady", []time.Duration{
			39 * time.Second, 5 * time.Second, 39 * time.Second, 9 * time.Second, 39 * time.Second,
		}, 200},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{server: func(c *server.Config) { c.BodyTimeout = timeout }})
				r := f.dial()
				r.say("POST /v1/completions HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n")
				for i, pause := range tt.pauses {
					time.Sleep(pause)
					r.say(body[i : i+1])
				}
				if tt.status == 200 {
					r.say(body[len(tt.pauses):])
				}
				silent := time.Now()
				a := r.answer()
				if a.err != nil || a.status != tt.status {
					t.Fatalf("%+v after %v, want %d", a, time.Since(silent), tt.status)
				}
				if line := f.access(); line["status"] != float64(tt.status) {
					t.Errorf("%v", line)
				}
				if tt.status == 200 {
					// The connection is as good as new, however long it is not used.
					time.Sleep(100 * time.Second)
					r.say("GET /liveness HTTP/1.1\r\nHost: router\r\n\r\n")
					if a := r.answer(); a.status != 200 {
						t.Errorf("%+v", a)
					}
					return
				}
				if took := time.Since(silent); took < timeout || took > timeout*5/4 {
					t.Errorf("after %v of silence, want %v", took, timeout)
				}
				if a.code() != "body_timeout" || a.header.Get("Connection") != "close" || !r.closed() {
					t.Errorf("%+v", a)
				}
				if len(f.arrived()) != 0 {
					t.Error("it reached the worker")
				}
			})
		})
	}
}

// Case 4.15: the times for a client to send and to take its parts say nothing
// about how long a worker may need.
func TestLongAnswers(t *testing.T) {
	for name, body := range map[string]string{"whole": comp, "stream": strings.Replace(comp, "{", `{"stream":true,`, 1)} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{engines: []enginesim.Config{{PrefillBase: 10 * time.Minute, DecodePerToken: 4 * time.Minute}}})
				began := time.Now()
				if a := f.post("/v1/completions", body); a.err != nil || a.status != 200 {
					t.Errorf("%+v after %v", a, time.Since(began))
				}
				if took := time.Since(began); took != 22*time.Minute {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A client that leaves while it sends its body gets no answer: one that closed
// its sending half alone could take it for the answer to what it wanted.
func TestClientGoneWhileSending(t *testing.T) {
	for name, leave := range map[string]func(*memnet.Conn){
		"close":      func(c *memnet.Conn) { c.Close() },
		"reset":      func(c *memnet.Conn) { c.Reset() },
		"half close": func(c *memnet.Conn) { c.CloseWrite() },
	} {
		for _, framing := range []string{"Content-Length: 100\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n50\r\n"} {
			t.Run(name+" "+framing[:7], func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := start(t, options{})
					r := f.dial()
					r.say("POST /v1/completions HTTP/1.1\r\nHost: router\r\n" + framing + sized(60))
					time.Sleep(time.Second)
					leave(r.conn)
					synctest.Wait()
					if line := f.access(); line["status"] != 499.0 || line["duration"] != float64(time.Second) {
						t.Errorf("%v", line)
					}
					if got := f.counted("completions", 499); got != "1" {
						t.Errorf("counted %s", got)
					}
					if len(f.arrived()) != 0 {
						t.Error("it reached the worker")
					}
					if name == "half close" && !r.closed() {
						t.Error("there is an answer")
					}
				})
			})
		}
	}
}

// A client that leaves once its request is being carried out gets none either,
// and what has begun does not look complete (cases 4.4, 4.5).
func TestHalfCloseIsGone(t *testing.T) {
	for name, body := range map[string]string{
		"before the head": comp,
		"in the stream":   strings.Replace(comp, "{", `{"stream":true,`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{engines: []enginesim.Config{{DecodePerToken: 10 * time.Second}}})
				r := f.dial()
				r.say(fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
				time.Sleep(time.Second)
				r.conn.CloseWrite()
				a := r.answer()
				if a.err == nil {
					t.Errorf("the answer looks complete: %+v", a)
				}
				if line := f.access(); line["status"] != 499.0 {
					t.Errorf("%v", line)
				}
				if got := f.counted("completions", 499); got != "1" {
					t.Errorf("counted %s", got)
				}
			})
		})
	}
}

// Case 4.12.
func TestExpectContinue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{})
		r := f.dial()
		body := sized(2 << 20)
		r.say(fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(body)))
		if resp, err := http.ReadResponse(r.br, nil); err != nil || resp.StatusCode != 100 {
			t.Fatalf("%v, %v", resp, err)
		}
		r.say(body)
		// It is longer than the engine's context: it has read it all.
		if a := r.answer(); a.err != nil || a.status != 400 {
			t.Fatalf("%+v", a)
		}
		arrived := f.arrived()
		if len(arrived) != 1 || arrived[0].BodyLen != len(body) || arrived[0].Header.Get("Expect") != "" {
			t.Errorf("%d arrived", len(arrived))
		}

		// A path that is not served needs no body.
		r = f.dial()
		r.say("POST /sleep HTTP/1.1\r\nHost: router\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
		if a := r.answer(); a.status != 404 {
			t.Errorf("%+v", a)
		}
	})
}

// Cases 4.9 and 4.11: whatever the client's framing, the worker gets a length,
// and a connection serves request after request.
func TestFraming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{engines: []enginesim.Config{{MaxModelLen: 30_000}}})
		for range 4 {
			r := f.dial()
			for i, size := range []int{60, 700, 70_000, 300_000, 255<<10 + 1023, 256 << 10, 256<<10 + 1, 1 << 20} {
				body := sized(size)
				head := "POST /v1/completions HTTP/1.1\r\nHost: router\r\nContent-Type: application/json\r\n"
				if i%2 == 0 {
					r.say(head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", size, body))
				} else {
					r.say(head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", 40, body[:40], size-40, body[40:]))
				}
				a := r.answer()
				if want := map[bool]int{true: 200, false: 400}[size < 30_000]; a.err != nil || a.status != want {
					t.Errorf("%d bytes: %+v, want %d", size, a, want)
				}
				arrived := f.arrived()
				last := arrived[len(arrived)-1]
				sum := sha256.Sum256([]byte(body))
				if last.BodySHA256 != hex.EncodeToString(sum[:]) {
					t.Errorf("%d bytes: another body arrived", size)
				}
				if got := last.Header.Get("Content-Length"); got != strconv.Itoa(size) {
					t.Errorf("%d bytes: Content-Length %q", size, got)
				}
			}
		}
		if len(f.arrived()) != 32 {
			t.Errorf("%d requests arrived", len(f.arrived()))
		}
	})
}

func TestBadBodies(t *testing.T) {
	for _, tt := range []struct {
		name, path, body string
		header           []string
		status           int
		code             string
	}{
		{"nothing", chat, "", nil, 400, "invalid_json"},
		{"no JSON", chat, "hello", nil, 400, "invalid_json"},
		{"cut off", chat, `{"model":"m"`, nil, 400, "invalid_json"},
		{"a list", chat, `[{"model":"m"}]`, nil, 400, "invalid_json"},
		{"null", chat, `null`, nil, 400, "invalid_json"},
		{"a number", "/v1/embeddings", `5`, nil, 400, "invalid_json"},
		{"nothing, on a path like any other", "/v1/future", "", nil, 400, "invalid_json"},
		{"model is a number", chat, `{"model":5}`, nil, 400, "invalid_model"},
		{"on messages", "/v1/messages", `{"model":[]}`, nil, 400, "invalid_model"},
		{"coded", chat, chatBody("hi"), []string{"Content-Encoding", "gzip"}, 415, "encoded_body"},
		{"a form that is coded", "/v1/audio/transcriptions", "x", []string{"Content-Type", "multipart/form-data; boundary=x", "Content-Encoding", "br"}, 415, "encoded_body"},
		{"a form", chat, "--x--", []string{"Content-Type", "multipart/form-data; boundary=x"}, 415, "not_json"},
		{"a form in capitals", chat, "--x--", []string{"Content-Type", "Multipart/Form-Data; boundary=x"}, 415, "not_json"},
		{"a bad form", "/v1/audio/transcriptions", "--y--", []string{"Content-Type", "multipart/form-data; boundary=x"}, 400, "invalid_form"},
		{"a form without boundary", "/v1/audio/transcriptions", "--y--", []string{"Content-Type", "multipart/form-data"}, 400, "invalid_form"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := start(t, options{})
				a := f.post(tt.path, tt.body, tt.header...)
				if a.status != tt.status || a.code() != tt.code {
					t.Errorf("%+v, want %d %s", a, tt.status, tt.code)
				}
				if len(f.arrived()) != 0 {
					t.Error("it reached the worker")
				}
				line := f.access()
				if line["status"] != float64(tt.status) || line["code"] != tt.code || line["bytes_in"] != float64(len(tt.body)) {
					t.Errorf("%v", line)
				}
				wantErrorObject(t, tt.path, a)
			})
		})
	}
}

func TestBadChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, options{})
		r := f.dial()
		r.say("POST /v1/completions HTTP/1.1\r\nHost: router\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nxyz\r\n")
		if a := r.answer(); a.status != 400 || a.code() != "invalid_body" || !r.closed() {
			t.Errorf("%+v", a)
		}
	})
}

// Case 5.9: a form passes as it is, and goes to a worker of its model.
func TestForms(t *testing.T) {
	build := func(modelFirst bool) (contentType string, body []byte) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		model := func() { w.WriteField("model", "b") }
		if modelFirst {
			model()
		}
		file, err := w.CreateFormFile("file", "Jübel 音.wav")
		if err != nil {
			t.Fatal(err)
		}
		file.Write(bytes.Repeat([]byte("\r\n--x\x00\xff"), 200_000))
		if !modelFirst {
			model()
		}
		w.Close()
		return w.FormDataContentType(), b.Bytes()
	}
	for _, modelFirst := range []bool{true, false} {
		for _, chunked := range []bool{true, false} {
			t.Run(fmt.Sprintf("model first %t, chunked %t", modelFirst, chunked), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := start(t, options{engines: []enginesim.Config{{Models: []string{"a"}}, {Models: []string{"b"}}}})
					contentType, body := build(modelFirst)
					r := f.request(http.MethodPost, "/v1/audio/transcriptions", string(body), "Content-Type", contentType, "Authorization", "Bearer k")
					if chunked {
						r.ContentLength = -1
					}
					if a := f.do(r); a.err != nil || a.status != 200 {
						t.Fatalf("%+v", a)
					}
					arrived := f.engines[1].Requests()
					last := arrived[len(arrived)-1]
					sum := sha256.Sum256(body)
					if last.BodySHA256 != hex.EncodeToString(sum[:]) || last.Header.Get("Content-Type") != contentType {
						t.Error("the form has changed")
					}
					if last.Header.Get("Authorization") != "Bearer k" || last.Header.Get("Content-Length") != strconv.Itoa(len(body)) {
						t.Errorf("header %v", last.Header)
					}
					if line := f.access(); line["model"] != "b" || line["route"] != "transcriptions" {
						t.Errorf("%v", line)
					}
				})
			})
		}
	}
	t.Run("capitals", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := start(t, options{engines: []enginesim.Config{{Models: []string{"a"}}, {Models: []string{"b"}}}})
			contentType, body := build(true)
			contentType = strings.Replace(contentType, "multipart/form-data", "Multipart/Form-Data", 1)
			if a := f.post("/v1/audio/transcriptions", string(body), "Content-Type", contentType); a.status != 200 {
				t.Errorf("%+v", a)
			}
		})
	})
}
