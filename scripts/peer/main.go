// Command peer compares baton with vllm-router, the program that it replaces:
//
//	peer -peer FILE [-rounds N] [-clients N] [-requests N]   measure both, in turn
//	peer -peer FILE -flags                                    check that baton knows each flag
//
// Both routers run as processes in front of the same simulated engines, which are
// processes too, with equal flags: four regular engines with the policy
// cache_aware, and then two prefill and two decode engines over NIXL. In each
// round each router in turn answers the same closed loop of requests. Printed are
// the medians, and the CPU time of the router's process for each request, its
// start and its probes included. All of it shares the machine's cores, so the
// ratios say more than the figures.
//
// scripts/peer-test installs a release of vllm-router and calls this.
package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.peer, "peer", "", "file of vllm-router")
	flag.BoolVar(&o.flags, "flags", false, "compare flags only")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of each kind")
	flag.IntVar(&o.clients, "clients", 16, "requests at once")
	flag.IntVar(&o.requests, "requests", 2000, "requests of each router in a round")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}

type options struct {
	peer                      string
	flags                     bool
	rounds, clients, requests int
}

func run(ctx context.Context, o options, stdout io.Writer) error {
	if o.peer == "" {
		return errors.New("-peer is missing")
	}
	dir, err := os.MkdirTemp("", "baton-peer-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // a directory in the temporary one
	baton := filepath.Join(dir, "baton")
	build := exec.CommandContext(ctx, "go", "build", "-o", baton, "./cmd/baton")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	if o.flags {
		return compareFlags(ctx, o.peer, baton, stdout)
	}
	fmt.Fprintf(stdout, "%d clients, %d rounds of %d requests; medians\n\n", o.clients, o.rounds, o.requests)
	fmt.Fprintf(stdout, "%-10s %-8s %-12s %9s %10s %12s\n", "fleet", "answers", "router", "req/s", "p50 ms", "CPU us/req")
	for _, f := range []fleet{
		{name: "4 regular", roles: []string{"regular", "regular", "regular", "regular"}},
		{name: "2P + 2D", roles: []string{"prefill", "prefill", "decode", "decode"}},
	} {
		if err := f.compare(ctx, o, baton, stdout); err != nil {
			return err
		}
	}
	return nil
}

// compareFlags gives each flag in the peer's help text to baton, followed by one
// that nobody knows: the error must be about that one.
func compareFlags(ctx context.Context, peer, baton string, stdout io.Writer) error {
	help, err := exec.CommandContext(ctx, peer, "--help").Output()
	if err != nil {
		return fmt.Errorf("%s --help: %w", peer, err)
	}
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^ +(--[a-z][a-z0-9-]*[a-z0-9])(?: |$)`).FindAllStringSubmatch(string(help), -1) {
		names = append(names, m[1])
	}
	slices.Sort(names)
	names = slices.Compact(names)
	passed, failed := 0, 0
	for _, name := range names {
		if name == "--help" {
			continue
		}
		out, _ := exec.CommandContext(ctx, baton, "vllm-router", name+"=1", "--no-such-flag").CombinedOutput() // it must fail
		if bytes.Contains(out, []byte("unknown flag: "+name+"\n")) || bytes.Contains(out, []byte("unknown flag: "+name+";")) {
			fmt.Fprintf(stdout, "FAIL %s: %s\n", name, bytes.TrimSpace(out))
			failed++
			continue
		}
		fmt.Fprintf(stdout, "ok   %s\n", name)
		passed++
	}
	fmt.Fprintf(stdout, "%d passed, %d failed\n", passed, failed)
	if failed > 0 || passed < 50 {
		return errors.New("baton does not know all flags of vllm-router, or its help text was not understood")
	}
	return nil
}

// fleet is a set of simulated engines.
type fleet struct {
	name  string
	roles []string
	urls  []string
}

// process is a program that runs until it is stopped.
type process struct {
	cmd  *exec.Cmd
	over chan struct{}
}

func start(ctx context.Context, name string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, name, args...), over: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = io.Discard, io.Discard
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // it is stopped on purpose
		close(p.over)
	}()
	return p, nil
}

// stop ends the process and returns the CPU time that it took.
func (p *process) stop() time.Duration {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	patience := time.NewTimer(20 * time.Second)
	defer patience.Stop()
	select {
	case <-p.over:
	case <-patience.C:
		_ = p.cmd.Process.Kill()
		<-p.over
	}
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

func freeAddr(ctx context.Context) (addr, port string, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	defer func() { _ = l.Close() }() // the port is all that is wanted
	addr = l.Addr().String()
	_, port, err = net.SplitHostPort(addr)
	return addr, port, err
}

// compare runs both routers in front of the fleet.
func (f fleet) compare(ctx context.Context, o options, baton string, stdout io.Writer) error {
	for _, role := range f.roles {
		addr, port, err := freeAddr(ctx)
		if err != nil {
			return err
		}
		p, err := start(ctx, baton, "sim", "--role", role, "--port", port)
		if err != nil {
			return err
		}
		defer p.stop()
		f.urls = append(f.urls, "http://"+addr)
		if err := await(ctx, "http://"+addr+"/health"); err != nil {
			return err
		}
	}
	var routers []*router
	for _, name := range []string{"baton", "vllm-router"} {
		r, err := f.router(ctx, name, o, baton)
		if err != nil {
			return err
		}
		defer r.process.stop()
		routers = append(routers, r)
	}
	for _, stream := range []bool{false, true} {
		for range o.rounds {
			for _, r := range routers {
				if err := r.round(ctx, o, stream); err != nil {
					return fmt.Errorf("%s, %s: %w", f.name, r.name, err)
				}
			}
		}
	}
	for _, r := range routers {
		r.cpu = r.process.stop()
	}
	for _, stream := range []bool{false, true} {
		kind := map[bool]string{false: "whole", true: "streamed"}[stream]
		for _, r := range routers {
			fmt.Fprintf(stdout, "%-10s %-8s %-12s %9.0f %10.2f %12.0f\n", f.name, kind, r.name, median(r.rate[stream]),
				median(r.wait[stream])*1e3, float64(r.cpu.Microseconds())/float64(r.requests))
		}
		fmt.Fprintf(stdout, "%-10s %-8s %-12s %8.1fx %9.2fx %11.2fx\n", "", "", "ratio", median(routers[0].rate[stream])/median(routers[1].rate[stream]),
			median(routers[0].wait[stream])/median(routers[1].wait[stream]),
			float64(routers[0].cpu)/float64(routers[0].requests)/(float64(routers[1].cpu)/float64(routers[1].requests)))
	}
	return nil
}

// router is one of the two.
type router struct {
	name       string
	process    *process
	url        string
	requests   int
	cpu        time.Duration
	rate, wait map[bool][]float64 // requests a second, median seconds of one; by stream, one a round
}

func (f fleet) router(ctx context.Context, name string, o options, baton string) (*router, error) {
	addr, port, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	_, metrics, err := freeAddr(ctx)
	if err != nil {
		return nil, err
	}
	args := []string{"--port", port, "--prometheus-port", metrics, "--policy", "cache_aware"}
	if f.roles[0] == "regular" {
		args = append(append(args, "--worker-urls"), f.urls...)
	} else {
		args = append(args, "--vllm-pd-disaggregation")
		for i, role := range f.roles {
			args = append(args, "--"+role, f.urls[i])
		}
	}
	file := o.peer
	if name == "baton" {
		file, args = baton, append([]string{"vllm-router", "--log-level", "warn", "--admin-port", "0", "--drain-delay", "0"}, args...)
	} else {
		args = append(args, "--log-level", "warning")
	}
	p, err := start(ctx, file, args...)
	if err != nil {
		return nil, err
	}
	r := &router{name: name, process: p, url: "http://" + addr, rate: map[bool][]float64{}, wait: map[bool][]float64{}}
	if err := await(ctx, r.url+"/readiness"); err != nil {
		p.stop()
		return nil, err
	}
	return r, nil
}

// await waits until the URL answers 200.
func await(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	client := &http.Client{}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close() // its status is all that counts
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: not ready: %w", url, cmp.Or(err, ctx.Err()))
		}
	}
}

// round sends the requests of one round. All must be answered well.
func (r *router) round(ctx context.Context, o options, stream bool) error {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: o.clients}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	var next atomic.Int64
	times := make([]float64, o.requests)
	errs := make(chan error, o.clients)
	var wg sync.WaitGroup
	began := time.Now()
	for range o.clients {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= o.requests {
					return
				}
				sent := time.Now()
				if err := r.ask(ctx, client, i, stream); err != nil {
					errs <- err
					return
				}
				times[i] = time.Since(sent).Seconds()
			}
		})
	}
	wg.Wait()
	took := time.Since(began).Seconds()
	close(errs)
	if err := <-errs; err != nil {
		return err
	}
	r.requests += o.requests
	r.rate[stream] = append(r.rate[stream], float64(o.requests)/took)
	r.wait[stream] = append(r.wait[stream], median(times))
	return nil
}

func (r *router) ask(ctx context.Context, client *http.Client, i int, stream bool) error {
	body := fmt.Sprintf(`{"model":"demo","stream":%t,"max_tokens":16,"messages":[{"role":"user","content":"question %d of session %d"}]}`, stream, i, i%64)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it is read to its end
	answer, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("status %d: %.200s", resp.StatusCode, answer)
	case stream && !bytes.HasSuffix(answer, []byte("data: [DONE]\n\n")):
		return fmt.Errorf("the stream ends with %.200q", answer[max(0, len(answer)-200):])
	}
	return nil
}

func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}
