package enginesim

import "bytes"

// Finish reasons.
const (
	finishStop   = "stop"
	finishLength = "length"
	finishAbort  = "abort"
	finishError  = "error"
)

// sequence is one choice of one prompt while it is generated.
type sequence struct {
	index  int
	prompt *prompt
	hold   *hold
	story  *story
	total  int // tokens to generate
	shown  int // bytes of the story that become text
	finish string
	stop   any // the stop text that ended it, or nil
	reason string
	call   *toolCall // nil if it spells none

	tokens  []int
	text    []byte
	blocks  []*block // beyond the prompt's
	pending output   // generated, not yet sent
	started bool     // something was sent
	over    bool     // its last chunk was sent
}

// output is what one or more steps add to a choice.
type output struct {
	seq    *sequence
	text   string
	tokens []int
	finish string // "" while it goes on
	first  bool
}

func (j *job) newSequence(index int, p *prompt, h *hold) *sequence {
	s := &sequence{
		index: index, prompt: p, hold: h, total: j.limit, shown: j.limit, reason: finishLength,
		story: newStory(p.sum, index%j.n),
	}
	if j.force != nil {
		s.force(j)
	}
	if j.c.form("eos") != nil && !j.noEOS {
		s.total, s.shown, s.reason = 1, 0, finishStop
	} else if j.natural && s.call == nil {
		s.shown, s.reason = s.total-1, finishStop // the last token is the end of text
	}
	text := s.story.head(s.shown)
	for _, stop := range j.stops {
		i := bytes.Index(text, []byte(stop))
		if end := i + len(stop); stop != "" && i >= 0 && end <= s.total {
			s.total, s.shown, s.reason, s.stop = end, i, finishStop, stop
			text = text[:min(len(text), end)]
		}
	}
	return s
}

// advance generates one token.
func (s *sequence) advance() {
	i := len(s.tokens)
	id := eosToken
	if i < len(s.story.buf) && (s.stop != nil || i < s.shown) {
		id = int(s.story.buf[i]) + firstByte
	}
	s.tokens = append(s.tokens, id)
	s.pending.tokens = append(s.pending.tokens, id)
	if i < s.shown {
		s.text = append(s.text, s.story.buf[i])
		s.pending.text += string(s.story.buf[i : i+1])
	}
	if i+1 >= s.total {
		s.finish = s.reason
	}
}

// take returns what is pending, in whole characters.
func (s *sequence) take() output {
	o := s.pending
	s.pending = output{}
	if s.finish == "" {
		o.text, s.pending.text = complete(o.text)
	}
	o.seq, o.finish, o.first = s, s.finish, !s.started
	return o
}

// growLocked takes a block when the last one is full. It returns false if there is
// none.
func (e *Engine) growLocked(s *sequence) bool {
	have := len(s.hold.blocks) + len(s.blocks)
	if len(s.prompt.tokens)+len(s.tokens) <= have*e.cfg.BlockSize {
		return true
	}
	b := e.cache.take()
	if b != nil {
		s.blocks = append(s.blocks, b)
	}
	return b != nil
}

// keepLocked makes what s has computed findable and gives its blocks back.
func (e *Engine) keepLocked(s *sequence, first bool, extra string) {
	size := e.cfg.BlockSize
	full := len(s.hold.hashes)
	if first && len(s.hold.blocks) >= full {
		prev := []byte(extra)
		if full > 0 {
			prev = s.hold.hashes[full-1][:]
		}
		rest := append(append([]int{}, s.prompt.tokens[full*size:]...), s.tokens...)
		blocks := append(append([]*block{}, s.hold.blocks[full:]...), s.blocks...)
		e.cache.keep(blocks, chainFrom(prev, rest, size))
	}
	e.cache.release(s.blocks)
	s.blocks = nil
}
