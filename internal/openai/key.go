package openai

import (
	"bytes"
	"encoding/hex"
	"hash/maphash"
	"slices"
	"sync"
	"unicode/utf8"
)

// KeyWriter takes a routing key as it is written. It never fails: it takes what
// it has room for.
type KeyWriter interface {
	Write(p []byte) (int, error)
	// Full reports whether writing more makes no difference.
	Full() bool
}

// minMedia is how long a string inside a media part must be to stand in the key
// as its hash. Shorter ones are names and links, which are their own best key.
const minMedia = 4 << 10

// mediaHead is within how many bytes the data of a data: URL must begin.
const mediaHead = 128

// mediaNames are the members whose long strings are media: those of vLLM's
// content parts, and the source of Anthropic's.
var mediaNames = []string{"image_url", "input_audio", "video_url", "audio_url", "source", "file_data"}

// KeyRoot returns what two requests must have in common to share any part of
// their KV cache: the model, which names the LoRA adapter too, and the salt.
func (r *Request) KeyRoot() []string {
	salt, _ := r.Doc.Value(CacheSalt).Text()
	return []string{r.Model, salt}
}

// WriteKey writes the routing key: the conversation in the order in which the
// engine sees it, that is tools, then instructions, then the messages or the
// prompt. The key of a next turn begins with the whole key of this one: what can
// grow is written without its end.
//
// Texts are unescaped and white space between values is dropped, so that what
// means the same has one key; anything else is as the client sent it. Media is
// written as a hash, which differs from process to process. Writing stops when w
// is full. Nothing is written if the request has no such members.
func (r *Request) WriteKey(w KeyWriter) {
	s := scribes.Get().(*scribe)
	defer scribes.Put(s)
	s.w, s.n = w, 0
	for _, m := range [...]int{Tools, System, Instructions} {
		if v := r.Doc.Value(m); v.Kind != Missing && v.Kind != Null {
			s.put(members.name(m))
			s.value(v.Raw, false)
			s.byte(',')
		}
	}
	for _, m := range [...]int{Messages, Prompt, Input, TokenIDs} {
		switch v := r.Doc.Value(m); {
		case v.Kind == Missing, v.Kind == Null, v.Kind == Array && v.Len == 0:
		case v.Kind == String:
			s.put(members.name(m))
			s.text(v.Raw[1 : len(v.Raw)-1])
		default:
			s.put(members.name(m))
			s.value(v.Raw, v.Kind == Array)
		}
	}
	s.flush()
	s.w = nil
}

// name returns a path's last name as it stands before a value.
func (p *Paths) name(id int) string { return p.nodes[p.ids[id]].member }

// scribe writes a key through a buffer, so that escapes and brackets do not cost
// a call each.
type scribe struct {
	w    KeyWriter
	n    int
	buf  [1024]byte
	hash maphash.Hash
}

var mediaSeed = maphash.MakeSeed()

var scribes = sync.Pool{New: func() any {
	s := new(scribe)
	s.hash.SetSeed(mediaSeed)
	return s
}}

func (s *scribe) flush() {
	if s.n > 0 {
		_, _ = s.w.Write(s.buf[:s.n]) // a KeyWriter does not fail
		s.n = 0
	}
}

func (s *scribe) byte(c byte) {
	if s.n == len(s.buf) {
		s.flush()
	}
	s.buf[s.n] = c
	s.n++
}

func (s *scribe) put(name string) {
	for i := range len(name) {
		s.byte(name[i])
	}
}

func (s *scribe) bytes(p []byte) {
	if len(p) > len(s.buf)-s.n {
		s.flush()
	}
	if len(p) > len(s.buf) {
		_, _ = s.w.Write(p) // a KeyWriter does not fail
		return
	}
	s.n += copy(s.buf[s.n:], p)
}

func (s *scribe) rune(r rune) {
	if len(s.buf)-s.n < utf8.UTFMax {
		s.flush()
	}
	s.n += utf8.EncodeRune(s.buf[s.n:s.n+utf8.UTFMax], r)
}

// text writes the text of a string given without its quotes.
func (s *scribe) text(raw []byte) {
	for !s.w.Full() {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			s.bytes(raw)
			return
		}
		s.bytes(raw[:i])
		r, n := unescape(raw[i:])
		s.rune(r)
		raw = raw[i+n:]
	}
}

// unescape reads the escape at the start of s and returns how many bytes it took.
func unescape(s []byte) (rune, int) {
	switch c := s[1]; c {
	case 'u':
		return unescapeRune(s)
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	default: // a quote, a backslash or a slash
		return rune(c), 2
	}
}

// media writes the hash of a string's text.
func (s *scribe) media(raw []byte) {
	s.hash.Reset()
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			break
		}
		_, _ = s.hash.Write(raw[:i]) // never fails
		r, n := unescape(raw[i:])
		var text [utf8.UTFMax]byte
		_, _ = s.hash.Write(text[:utf8.EncodeRune(text[:], r)]) // never fails
		raw = raw[i+n:]
	}
	_, _ = s.hash.Write(raw) // never fails
	var sum [8]byte
	h := s.hash.Sum64()
	for i := range sum {
		sum[i] = byte(h >> (56 - 8*i))
	}
	var digits [16]byte
	hex.Encode(digits[:], sum[:])
	s.bytes(digits[:])
}

// value writes a value that has been checked. An open array is written so that
// it is the beginning of the same array with more elements.
func (s *scribe) value(raw []byte, open bool) {
	depth, media := 0, 0 // media is the depth of the object whose member is media; 0 is none
	for i := 0; i < len(raw); {
		switch c := raw[i]; c {
		case ' ', '\t', '\n', '\r':
			i++
		case '"':
			if s.w.Full() {
				return
			}
			end := stringEnd(raw, i)
			text := raw[i+1 : end-1]
			i = skipSpace(raw, end)
			if peek(raw, i) == ':' {
				if depth == media {
					media = 0
				}
				if media == 0 && isMedia(text) {
					media = depth
				}
				s.byte('"')
				s.text(text)
				s.byte('"')
				s.byte(':')
				i++
				continue
			}
			s.byte('"')
			if media > 0 && len(text) > minMedia || dataURL(text) {
				s.media(text)
			} else {
				s.text(text)
			}
			s.byte('"')
		case '{', '[':
			depth++
			s.byte(c)
			i++
		case '}', ']':
			if depth--; depth < media {
				media = 0
			}
			if depth == 0 && open {
				c = ','
			}
			s.byte(c)
			i++
		default:
			s.byte(c)
			i++
		}
	}
}

// stringEnd returns where the string at i of a checked value ends.
func stringEnd(raw []byte, i int) int {
	end, err := skipString(raw, i)
	if err != nil {
		panic("BUG: a body that was checked is not JSON: " + err.Error())
	}
	return end
}

func isMedia(name []byte) bool {
	return slices.ContainsFunc(mediaNames, func(media string) bool { return string(name) == media })
}

// dataURL reports whether a string, as it stands in the body, is a data: URL and
// not a text that happens to begin like one.
func dataURL(raw []byte) bool {
	if !bytes.HasPrefix(raw, []byte("data:")) {
		return false
	}
	head := raw[:min(len(raw), mediaHead)]
	comma := bytes.IndexByte(head, ',')
	return comma >= 0 && bytes.IndexByte(head[:comma], ' ') < 0
}
