package enginesim

import (
	"fmt"
	"mime"
	"strings"
)

// Bounds of what is kept about violations.
const (
	keptViolations = 256
	keptLegs       = 4096
)

// violate notes that the client did what a correct router never does.
func (c *call) violate(format string, args ...any) {
	text := c.r.Method + " " + c.r.URL.Path
	if id := c.r.Header.Get("X-Request-Id"); id != "" {
		text += " " + clip(id)
	}
	text += ": " + fmt.Sprintf(format, args...)
	c.e.log.Warn("violation", "text", text)
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	c.e.violated++
	if len(c.e.violations) < keptViolations {
		c.e.violations = append(c.e.violations, text)
	}
}

// clip bounds what is quoted of a request.
func clip(s string) string {
	if len(s) > 200 {
		s = s[:200] + "..."
	}
	return s
}

// hopByHop are the fields that end at a proxy.
var hopByHop = []string{
	"Keep-Alive", "Te", "Trailer", "Upgrade", "Proxy-Authenticate",
	"Proxy-Authorization", "Proxy-Connection",
}

// checkWire looks at the head of a request as it came over the wire. (A request
// with both Content-Length and Transfer-Encoding reaches a handler as the latter.)
func (e *Engine) checkWire(c *call) {
	h := c.r.Header
	if len(c.r.TransferEncoding) > 0 {
		c.violate("the body has Transfer-Encoding %s instead of a Content-Length",
			strings.Join(c.r.TransferEncoding, ", "))
	}
	for _, v := range h.Values("Connection") {
		for name := range strings.SplitSeq(v, ",") {
			switch strings.ToLower(strings.TrimSpace(name)) {
			case "", "close", "keep-alive":
			default:
				c.violate("hop-by-hop header Connection: %s", clip(v))
			}
		}
	}
	for _, name := range hopByHop {
		if _, ok := h[name]; ok {
			c.violate("hop-by-hop header %s", name)
		}
	}
	if _, ok := h["Expect"]; ok {
		c.violate("header Expect: %s", clip(h.Get("Expect")))
	}
	if e.cfg.Strict && e.cfg.Advertise != "" && c.r.Host != e.cfg.Advertise {
		c.violate("Host is %q, not %q", clip(c.r.Host), e.cfg.Advertise)
	}
	ids := h.Values("X-Request-Id")
	if len(ids) > 1 {
		c.violate("%d X-Request-Id headers", len(ids))
	}
	for _, id := range ids {
		if len(id) > 128 && !e.addressed() {
			c.violate("the X-Request-Id has %d bytes", len(id))
		}
		if i := strings.IndexFunc(id, oddInID); i >= 0 || id == "" {
			c.violate("the X-Request-Id %q has odd bytes", clip(id))
		}
	}
}

// addressed tells whether request ids carry addresses.
func (e *Engine) addressed() bool {
	return e.cfg.Connector == ConnectorP2P || e.cfg.Connector == ConnectorMoRIIO
}

func oddInID(r rune) bool {
	return r <= ' ' || r >= 0x7f || strings.ContainsRune("\"\\<>", r)
}

// checkTwice notes a leg whose request id was used before.
func (e *Engine) checkTwice(c *call) {
	id := c.r.Header.Get("X-Request-Id")
	if id != "" && e.seenBefore(c.rec.Leg+" "+id) {
		c.violate("a second %s leg with the same X-Request-Id", c.rec.Leg)
	}
}

// seenBefore tells whether it was asked about key before.
func (e *Engine) seenBefore(key string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen[key] {
		return true
	}
	e.seen[key] = true
	e.seenOrder = append(e.seenOrder, key)
	if len(e.seenOrder) > keptLegs {
		delete(e.seen, e.seenOrder[0])
		e.seenOrder = append(e.seenOrder[:0], e.seenOrder[1:]...)
	}
	return false
}

// isJSON checks the content type as vLLM does.
func (c *call) isJSON() *apiError {
	kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return badSchema("", "Unsupported Media Type: Only 'application/json' is allowed")
	}
	return nil
}

// classify finds the leg of a generation request, before it is validated.
func (e *Engine) classify(c *call) {
	name := ""
	var params object
	c.parsed, c.bodyErr = parseObject(c.body)
	if o := c.parsed; c.bodyErr == nil {
		name, _ = asText(o["model"])
		if kv, ok := asObject(kvParams(c.r.URL.Path, o)); ok {
			params = kv
		}
	}
	leg := e.conn.leg(params)
	c.note(func(r *Record) { r.Leg, r.Model = leg, name })
	if leg != LegDecode || !e.addressed() { // where the id names the hand-off it may come again
		e.checkTwice(c)
	}
	if !e.cfg.Strict {
		return
	}
	switch {
	case e.cfg.Role == RolePrefill && leg != LegPrefill:
		c.violate("a %s request on a prefill engine (no do_remote_decode)", leg)
	case e.cfg.Role == RoleDecode && leg != LegDecode:
		c.violate("a %s request on a decode engine (no do_remote_prefill): decode recomputes", leg)
	}
}

// kvParams returns the hand-off parameters of a body. The Python server reads
// those of /inference/v1/generate only inside sampling_params.extra_args.
func kvParams(path string, o object) []byte {
	if path != "/inference/v1/generate" {
		return o["kv_transfer_params"]
	}
	sampling, _ := asObject(o["sampling_params"])
	extra, _ := asObject(sampling["extra_args"])
	return extra["kv_transfer_params"]
}
