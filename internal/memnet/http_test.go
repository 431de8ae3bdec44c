package memnet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/memnet"
)

// serve runs handler at addr until the test ends, and returns a client.
func serve(t *testing.T, n *memnet.Network, addr string, handler http.HandlerFunc) *http.Client {
	t.Helper()
	ln := listen(t, n, addr)
	server := &http.Server{Handler: handler}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		server.Serve(ln)
	}()
	transport := &http.Transport{DialContext: n.DialContext}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		<-stopped
	})
	return &http.Client{Transport: transport}
}

func TestHTTPStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		client := serve(t, n, "worker:8000", func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			for i := range 5 {
				fmt.Fprintf(w, "%s %d\n", body, i)
				http.NewResponseController(w).Flush()
				time.Sleep(time.Second)
			}
		})
		for range 3 { // the second and third on a kept connection
			start := time.Now()
			resp, err := client.Post("http://worker:8000/x", "text/plain", strings.NewReader("token"))
			if err != nil {
				t.Fatal(err)
			}
			if since := time.Since(start); since != 0 {
				t.Errorf("headers after %v", since)
			}
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if want := "token 0\ntoken 1\ntoken 2\ntoken 3\ntoken 4\n"; string(got) != want || err != nil {
				t.Errorf("read %q, %v", got, err)
			}
			if since := time.Since(start); since != 5*time.Second {
				t.Errorf("read in %v", since)
			}
		}
		if n.Open() != 1 {
			t.Errorf("%d connections, want the one that is kept", n.Open())
		}
	})
}

func TestHTTPClientLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		var left time.Time
		client := serve(t, n, "worker:8000", func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
			left = time.Now()
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, "POST", "http://worker:8000/", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if _, err := client.Do(req); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		if left.Sub(start) != time.Minute {
			t.Errorf("the server saw it after %v", left.Sub(start))
		}
	})
}

func TestHTTPServerDiesMidStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		client := serve(t, n, "worker:8000", func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, "first ")
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		resp, err := client.Get("http://worker:8000/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		wantRead(t, resp.Body, "first ")
		n.Kill("worker:8000")
		if _, err := io.ReadAll(resp.Body); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the body ended with %v", err)
		}
		if _, err := client.Get("http://worker:8000/"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the next request: %v", err)
		}
	})
}

func TestHTTPFrozenServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		client := serve(t, n, "worker:8000", func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "ok")
		})
		n.Freeze("worker:8000")
		time.AfterFunc(30*time.Second, func() { n.Thaw("worker:8000") })
		start := time.Now()
		resp, err := client.Get("http://worker:8000/")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		wantRead(t, resp.Body, "ok")
		if since := time.Since(start); since != 30*time.Second {
			t.Errorf("answered after %v", since)
		}
	})
}

func TestHTTPShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		ln := listen(t, n, "worker:8000")
		server := &http.Server{
			ReadHeaderTimeout: 5 * time.Second,
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				time.Sleep(10 * time.Second)
				io.WriteString(w, "done")
			}),
		}
		go server.Serve(ln)
		transport := &http.Transport{DialContext: n.DialContext}
		defer transport.CloseIdleConnections()
		answer := make(chan string)
		go func() {
			resp, err := (&http.Client{Transport: transport}).Get("http://worker:8000/")
			if err != nil {
				t.Error(err)
				close(answer)
				return
			}
			defer resp.Body.Close()
			body, _ := io.ReadAll(resp.Body)
			answer <- string(body)
		}()
		time.Sleep(time.Second)
		stopped := make(chan error)
		go func() { stopped <- server.Shutdown(t.Context()) }()
		if got := <-answer; got != "done" {
			t.Errorf("answered %q during Shutdown", got)
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n.Open() != 0 {
			t.Errorf("%d connections stay open", n.Open())
		}
	})
}
