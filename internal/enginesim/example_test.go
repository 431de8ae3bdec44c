package enginesim_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/baton-llm/baton/internal/enginesim"
)

// A client that asks a decode engine for a whole answer.
func Example() {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	e, err := enginesim.New(enginesim.Config{
		Role: enginesim.RoleDecode, Connector: "nixl", Advertise: l.Addr().String(), Strict: true,
	})
	if err != nil {
		panic(err)
	}
	srv := e.NewServer()
	over := make(chan error)
	go func() { over <- srv.Serve(l) }()
	e.Fault(enginesim.Fault{Action: "status", Status: 503, Times: 1})

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range 2 {
		resp, err := client.Post("http://"+l.Addr().String()+"/v1/completions", "application/json",
			strings.NewReader(`{"model":"m","prompt":"hello","max_tokens":9,"stream":true}`))
		if err != nil {
			panic(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Println(resp.StatusCode, strings.Count(string(body), "data: {"), err)
	}
	for _, v := range e.Stats().Violations {
		fmt.Println(v)
	}
	e.Close()
	srv.Close()
	fmt.Println(errors.Is(<-over, http.ErrServerClosed))
	// Output:
	// 503 0 <nil>
	// 200 9 <nil>
	// POST /v1/completions: a plain request on a decode engine (no do_remote_prefill): decode recomputes
	// POST /v1/completions: a plain request on a decode engine (no do_remote_prefill): decode recomputes
	// true
}
