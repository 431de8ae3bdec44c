package openai

import "strings"

// sessionHeaders are the fields that name a session, first come first, in
// canonical form. Fields that differ from request to request, such as
// x-request-id, x-correlation-id and x-trace-id, never do: they would spread
// what belongs together.
var sessionHeaders = []struct{ field, key string }{
	{"X-Session-Id", "header:x-session-id:"},
	{"X-User-Id", "header:x-user-id:"},
	{"X-Tenant-Id", "header:x-tenant-id:"},
}

var sessionMembers = []struct {
	member int
	key    string
}{
	{SessionParamsID, "session:"},
	{User, "user:"},
	{SessionID, "session:"},
	{UserID, "user:"},
	{PromptCacheKey, "session:"},
}

// Session names what a request belongs to together with others. The zero Session
// is none.
type Session struct {
	// Key says where the name comes from too, as vllm-project/router writes it
	// to hash it: header:NAME:ID, session:ID or user:ID. It is empty where that
	// hashes the name as it hashes prompts: session_params of a chat.
	Key string
	ID  string // the name itself
}

// Session finds the session of a request in its header, which field returns the
// values of by canonical name, or else in its body. Blank names are none.
func (r *Request) Session(field func(name string) string) Session {
	for _, h := range sessionHeaders {
		if id := field(h.field); strings.TrimSpace(id) != "" {
			return newSession(h.key, id)
		}
	}
	for _, m := range sessionMembers {
		v := r.Doc.Value(m.member)
		switch id, _ := v.Text(); {
		case strings.TrimSpace(id) != "" && m.member == SessionParamsID && r.Route != nil && r.Route.Name == "chat":
			return Session{ID: strings.TrimSpace(id)}
		case strings.TrimSpace(id) != "":
			return newSession(m.key, id)
		case v.Kind == Number:
			return newSession(m.key, string(v.Raw))
		}
	}
	return Session{}
}

func newSession(key, id string) Session {
	key += id
	return Session{Key: key, ID: key[len(key)-len(id):]}
}

// Placement returns the text that vllm-project/router hashes for a request
// without a session, "" if there is none that would bring requests together: it
// hashes nothing of a chat, and all of the body of a response, which no two
// turns have in common. Token ids stand for themselves here, and not for their
// number as they do there.
func (r *Request) Placement() string {
	if r.Doc.Value(Messages).Kind != Missing || r.Route != nil && r.Route.Name == "responses" {
		return ""
	}
	for _, m := range [...]int{Prompt, Input, TokenIDs} {
		switch v := r.Doc.Value(m); {
		case v.Kind == String:
			text, _ := v.Text()
			return text
		case v.Kind == Array && v.First == String:
			return joined(v.Raw)
		case v.Kind == Array && v.Len > 0:
			return string(v.Raw)
		}
	}
	return ""
}

// joined returns the strings of an array that has been checked, with a space
// between them.
func joined(raw []byte) string {
	var text []byte
	n, depth := 0, 0
	for i := 0; i < len(raw); i++ {
		switch raw[i] {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case '"':
			end := stringEnd(raw, i)
			if depth == 1 {
				if n++; n > 1 {
					text = append(text, ' ')
				}
				text = appendUnescaped(text, raw[i+1:end-1])
			}
			i = end - 1
		}
	}
	return string(text)
}
