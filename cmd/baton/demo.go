package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/baton-llm/baton/internal/discovery/zmq"
	"github.com/baton-llm/baton/internal/enginesim"
	"github.com/baton-llm/baton/internal/worker"
)

const demoModel = "demo"

// demoFleet are the engines of the demo, by role.
var demoFleet = []string{enginesim.RolePrefill, enginesim.RolePrefill, enginesim.RoleDecode, enginesim.RoleDecode}

// runDemo starts simulated engines and a router in front of them, and streams
// one answer through prefill and decode.
func runDemo(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var addr, prompt, logLevel string
	d := &demo{out: stdout}
	var once bool
	flags := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	flags.StringVar(&addr, "addr", "127.0.0.1:30000", "address of the router; port 0: any free one")
	flags.BoolVar(&once, "once", false, "end after the answer, with exit code 1 if anything about it was wrong")
	flags.StringVar(&d.connector, "kv-connector", "nixl", "KV connector of the engines: "+strings.Join(connectors, ", "))
	flags.StringVar(&d.mode, "transfer-mode", "WRITE", "of moriio: READ or WRITE")
	flags.StringVar(&prompt, "prompt", "Why is a relay race won or lost at the hand-over?", "what to ask")
	flags.StringVar(&logLevel, "log-level", "warn", "debug, info, warn or error")
	if err := parse(flags, args, stdout); err != nil {
		return err
	}
	log, err := newLogger(stderr, "text", logLevel)
	if err != nil {
		return usageError{err}
	}
	if !slices.Contains(connectors, d.connector) {
		return usageError{fmt.Errorf("--kv-connector %q is not supported: %s are", d.connector, strings.Join(connectors, ", "))}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer d.wait()
	defer cancel()
	if err := d.newRouter(ctx, addr, log); err != nil {
		return err
	}
	if err := d.startEngines(ctx, log); err != nil {
		d.router.close()
		return err
	}
	d.introduce()
	runCtx, stop := context.WithCancel(ctx)
	defer stop()
	d.background(func() {
		defer cancel()
		d.routerErr = runUntilSignal(runCtx, d.router)
	})
	if err := d.ask(ctx, prompt); err != nil {
		if ctx.Err() != nil {
			return nil // a signal came first
		}
		return err
	}
	if once {
		stop()
		d.wait()
		return errors.Join(d.routerErr, d.verify())
	}
	fmt.Fprintf(stdout, "\nTry it, and end the demo with Ctrl-C:\n\n  curl -N http://%s/v1/chat/completions -H 'Content-Type: application/json' \\\n"+
		"    -d '{\"model\":%q,\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n", d.router.addr(), demoModel)
	fmt.Fprintf(stdout, "  curl http://%s/workers\n", d.router.others[0].listener.Addr())
	d.wait()
	return d.routerErr
}

// demo is a running demonstration.
type demo struct {
	out       io.Writer
	connector string
	mode      string // of moriio
	engines   []*enginesim.Engine
	urls      []string
	router    *router
	routerErr error // valid after wait
	running   []chan struct{}

	firstAt, lastAt time.Time // first and last part of the answer
	parts           int
}

func (d *demo) background(f func()) {
	done := make(chan struct{})
	d.running = append(d.running, done)
	go func() {
		defer close(done)
		f()
	}()
}

func (d *demo) wait() {
	for _, done := range d.running {
		<-done
	}
}

func (d *demo) startEngines(ctx context.Context, log *slog.Logger) error {
	for _, role := range demoFleet {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		engine, err := enginesim.New(enginesim.Config{
			Role: role, Models: []string{demoModel}, Advertise: listener.Addr().String(), Strict: true,
			Connector: d.connector, TransferMode: d.mode, PingIdentity: d.connector == "p2p",
			Discovery: d.router.discovery.Addr().String(), ExtraRegistration: map[string]string{"kv_connector": d.connector},
			PrefillBase: 50 * time.Millisecond, PrefillPerToken: 500 * time.Microsecond, DecodePerToken: 40 * time.Millisecond,
			DefaultTokens: 48,
		})
		if err != nil {
			_ = listener.Close() // nothing was served
			return err
		}
		d.engines = append(d.engines, engine)
		d.urls = append(d.urls, "http://"+listener.Addr().String())
		d.background(func() {
			if err := serveEngine(ctx, engine, listener); err != nil {
				log.Error("engine ended", "err", err)
			}
		})
		d.background(func() {
			if err := engine.RunPings(ctx); err != nil {
				log.Error("engine registers no more", "err", err)
			}
		})
	}
	return nil
}

func (d *demo) newRouter(ctx context.Context, addr string, log *slog.Logger) error {
	cfg := defaultConfig()
	cfg.public, cfg.admin, cfg.metrics = addr, "127.0.0.1:0", ""
	cfg.drainTimeout = 5 * time.Second
	allowed, err := zmq.ParseAllowed([]string{"127.0.0.0/8"})
	if err != nil {
		return err
	}
	cfg.discovery = zmq.Config{Address: "127.0.0.1:0", TTL: zmq.DefaultTTL, Allowed: allowed, Dialect: d.connector}
	if d.router, err = newRouter(ctx, cfg, log); err != nil {
		return fmt.Errorf("%w (--addr sets another address)", err)
	}
	return nil
}

// introduce says what is running.
func (d *demo) introduce() {
	connector := d.connector
	if connector == "moriio" {
		connector += " " + d.mode
	}
	fmt.Fprintf(d.out, "Baton demo: two prefill and two decode engines (simulated), KV connector %s.\n"+
		"The engines register with the router over ZMQ, every three seconds.\n\n", connector)
	for i, role := range demoFleet {
		fmt.Fprintf(d.out, "  %-8s %s\n", role, d.urls[i])
	}
	fmt.Fprintf(d.out, "  router   listening on http://%s\n", d.router.addr())
}

// ask sends one streamed chat request through the router and prints the answer
// as it comes.
func (d *demo) ask(ctx context.Context, prompt string) error {
	if err := d.awaitReady(ctx); err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{
		"model": demoModel, "stream": true,
		"messages": []map[string]string{{"role": "user", "content": prompt}},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+d.router.addr()+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	fmt.Fprintf(d.out, "\n> %s\n\n  ", prompt)
	start := time.Now()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // read to its end, or given up
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // whatever came says more than nothing
		return fmt.Errorf("the router answered %s: %s", resp.Status, text)
	}
	if err := d.print(resp.Body); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "\n\n  first token after %s, the last after %s, %d parts\n", since(start, d.firstAt), since(start, d.lastAt), d.parts)
	for i, e := range d.engines {
		for _, r := range e.Requests() {
			if r.Leg != "" {
				fmt.Fprintf(d.out, "  %-8s %s  %s, %s\n", r.Leg, d.urls[i], r.Outcome, since(r.Arrival, r.End))
			}
		}
	}
	return nil
}

func since(start, end time.Time) time.Duration { return end.Sub(start).Round(time.Millisecond) }

// print writes the text of a chat stream as it comes.
func (d *demo) print(stream io.Reader) error {
	lines := bufio.NewScanner(stream)
	done := false
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			done = true
			continue
		}
		var chunk struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
			Error any `json:"error"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return fmt.Errorf("the stream holds what is no JSON: %w", err)
		}
		if chunk.Error != nil {
			return fmt.Errorf("the stream ended with an error: %v", chunk.Error)
		}
		for _, c := range chunk.Choices {
			if c.Delta.Content == "" {
				continue
			}
			d.lastAt = time.Now()
			if d.parts++; d.parts == 1 {
				d.firstAt = d.lastAt
			}
			fmt.Fprint(d.out, c.Delta.Content)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !done {
		return errors.New("the stream ended without [DONE]")
	}
	return nil
}

// awaitReady waits until every engine has been admitted.
func (d *demo) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		ready := 0
		for _, role := range worker.Roles() {
			for _, w := range d.router.pools[role].Snapshot().Workers {
				if w.Blocked() == 0 {
					ready++
				}
			}
		}
		if ready == len(demoFleet) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d engines are ready: %w", ready, len(demoFleet), ctx.Err())
		}
	}
}

// verify checks what the demonstration has shown, once router and engines are
// idle.
func (d *demo) verify() error {
	var errs []error
	legs := map[string]int{}
	for i, e := range d.engines {
		stats := e.Stats()
		for _, v := range stats.Violations {
			errs = append(errs, fmt.Errorf("engine %s: violation: %s", d.urls[i], v))
		}
		if stats.Running != 0 || stats.PinnedHandoffs != 0 {
			errs = append(errs, fmt.Errorf("engine %s: %d requests, %d hand-offs left", d.urls[i], stats.Running, stats.PinnedHandoffs))
		}
		for _, r := range e.Requests() {
			if r.Leg != "" {
				legs[demoFleet[i]+" engine, "+r.Leg+" leg"]++
			}
		}
	}
	for _, want := range []string{"prefill engine, prefill leg", "decode engine, decode leg"} {
		if legs[want] != 1 {
			errs = append(errs, fmt.Errorf("%s: seen %d times, want once", want, legs[want]))
		}
	}
	if !d.firstAt.Before(d.lastAt) {
		errs = append(errs, errors.New("the first token did not come before the last"))
	}
	for _, role := range worker.Roles() {
		for _, w := range d.router.pools[role].Snapshot().Workers {
			if w.Load() != 0 || w.Holds() != 0 {
				errs = append(errs, fmt.Errorf("worker %s: load %d, holds %d", w.ID(), w.Load(), w.Holds()))
			}
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintln(d.out, "\n  both legs seen, loads back at 0, no violations")
	return nil
}
