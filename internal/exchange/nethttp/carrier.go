// Package nethttp implements the ends of the exchange seam with net/http: a
// Carrier over http.Transport and a Sink over http.ResponseWriter. It adds no
// policy: it never retries but for the one re-send on a connection that the
// worker had already closed.
package nethttp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/baton-llm/baton/internal/exchange"
)

// Config is what carriers have in common.
type Config struct {
	// Dial connects; nil means a net.Dialer with TCP keep-alive.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// ConnectTimeout bounds connect and TLS handshake; 0 means 5 s.
	ConnectTimeout time.Duration
	// IdleTimeout is how long an unused connection is kept; 0 means 4 s, which is
	// below the 5 s after which vLLM closes it.
	IdleTimeout time.Duration
	// MaxIdle bounds the unused connections per worker; 0 means 1024.
	MaxIdle int
}

// staleWindow is how soon after sending a reused connection must break to count
// as one that the worker had closed before.
const staleWindow = time.Second

// Carrier sends to one worker over a connection pool of its own.
type Carrier struct {
	base      *url.URL
	transport *http.Transport
}

var _ exchange.Carrier = (*Carrier)(nil)

// New returns a carrier for the worker at base, which has no trailing slash.
func New(base string, cfg Config) (*Carrier, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	dial := cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{KeepAlive: 30 * time.Second}).DialContext
	}
	timeout := orDefault(cfg.ConnectTimeout, 5*time.Second)
	maxIdle := cfg.MaxIdle
	if maxIdle == 0 {
		maxIdle = 1024
	}
	return &Carrier{base: u, transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			return dial(ctx, network, addr)
		},
		TLSHandshakeTimeout: timeout,
		DisableCompression:  true,
		Proxy:               onlyOnce,
		IdleConnTimeout:     orDefault(cfg.IdleTimeout, 4*time.Second),
		MaxIdleConns:        maxIdle,
		MaxIdleConnsPerHost: maxIdle,
		// A prompt of many megabytes needs few writes, a stream small reads.
		WriteBufferSize:        64 << 10,
		MaxResponseHeaderBytes: 1 << 20,
	}}, nil
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

// CloseIdle closes the connections not in use. Those in use are closed once
// they have been idle.
func (c *Carrier) CloseIdle() { c.transport.CloseIdleConnections() }

// Send implements [exchange.Carrier].
func (c *Carrier) Send(ctx context.Context, h exchange.Head, body []byte) (*exchange.Answer, error) {
	answer, err := c.send(ctx, h, body)
	if e, ok := errors.AsType[*exchange.Error](err); ok && e.Sent == exchange.Stale && ctx.Err() == nil {
		// Where one connection was stale others may be: the next one is fresh.
		c.transport.CloseIdleConnections()
		answer, err = c.send(ctx, h, body)
	}
	return answer, err
}

var (
	errBroke    = errors.New("connection broke before the answer")
	errNoAnswer = errors.New("not an HTTP answer")
)

func (c *Carrier) send(ctx context.Context, h exchange.Head, body []byte) (*exchange.Answer, error) {
	trace := new(sendTrace)
	req, err := c.request(trace.watch(ctx), h, body)
	if err != nil {
		return nil, &exchange.Error{Sent: exchange.Nothing, Err: err}
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, &exchange.Error{Sent: trace.sent(), Err: trace.plain(err)}
	}
	if resp.StatusCode < http.StatusOK {
		// A switch of protocols nobody asked for, or no status at all.
		_ = resp.Body.Close() // the exchange has failed already
		return nil, &exchange.Error{Sent: exchange.Maybe, Err: errNoAnswer}
	}
	return &exchange.Answer{Status: resp.StatusCode, Fields: fields(resp.Header), Body: resp.Body}, nil
}

func (c *Carrier) request(ctx context.Context, h exchange.Head, body []byte) (*http.Request, error) {
	u := *c.base
	path, query, asked := strings.Cut(h.Target, "?")
	u.RawQuery, u.ForceQuery = query, asked
	raw := u.EscapedPath() + path
	unescaped, err := url.PathUnescape(raw)
	if err != nil {
		return nil, err
	}
	u.Path, u.RawPath = unescaped, raw
	req := (&http.Request{
		Method:        h.Method,
		URL:           &u,
		Host:          u.Host,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        make(http.Header, len(h.Fields)+1),
		ContentLength: int64(len(body)),
	}).WithContext(ctx)
	for _, f := range h.Fields {
		switch f.Name {
		case "Host", "Content-Length":
		default:
			req.Header[f.Name] = append(req.Header[f.Name], f.Value)
		}
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		// Nothing is added in the client's name.
		req.Header["User-Agent"] = nil
	}
	if len(body) > 0 {
		// No GetBody: the transport must not send again by itself.
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	return req, nil
}

// sendTrace notes how far an attempt came.
type sendTrace struct {
	begun             bool // the transport has looked for a connection
	connected, reused bool
	at                time.Time
	answered          atomic.Bool // set while the answer is read
}

type sendTraceKey struct{}

// watch returns the context of the attempt that t is about.
func (t *sendTrace) watch(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(context.WithValue(ctx, sendTraceKey{}, t), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			t.connected, t.reused, t.at = true, info.Reused, time.Now()
		},
		GotFirstResponseByte: func() { t.answered.Store(true) },
	})
}

// onlyOnce is a Transport.Proxy that never names a proxy. The transport asks it
// each time it looks for a connection, and it fails the second time: without a
// GetBody the transport still sends a request again that has no body.
func onlyOnce(r *http.Request) (*url.URL, error) {
	t, ok := r.Context().Value(sendTraceKey{}).(*sendTrace)
	if !ok || t.begun {
		return nil, errBroke
	}
	t.begun = true
	return nil, nil //nolint:nilnil // the form in which a Proxy says that there is none
}

func (t *sendTrace) sent() exchange.Sent {
	switch {
	case !t.connected:
		return exchange.Nothing
	case t.reused && !t.answered.Load() && time.Since(t.at) < staleWindow:
		return exchange.Stale
	default:
		return exchange.Maybe
	}
}

// plain returns a transport's error as fit for a log: without the URL, whose
// query may be private, and without a worker's words where they make no sense.
func (t *sendTrace) plain(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	_, network := errors.AsType[net.Error](err)
	if t.answered.Load() && !network && !errors.Is(err, io.ErrUnexpectedEOF) {
		return errNoAnswer
	}
	return err
}

func fields(h http.Header) exchange.Fields {
	f := make(exchange.Fields, 0, len(h)+2)
	for name, values := range h {
		for _, v := range values {
			f = append(f, exchange.Field{Name: textproto.CanonicalMIMEHeaderKey(name), Value: v})
		}
	}
	return f
}
