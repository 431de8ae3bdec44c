package enginesim

import "strings"

// model is a served name.
type model struct{ name, parent string }

func parseModels(names []string) []model {
	var out []model
	for _, s := range names {
		name, parent, _ := strings.Cut(s, "=")
		out = append(out, model{name, parent})
	}
	return out
}

// lookup returns the model of a request; without a name it is the base model.
func (e *Engine) lookup(name string) (model, bool) {
	if name == "" {
		return e.models[0], true
	}
	for _, m := range e.models {
		if m.name == name {
			return m, true
		}
	}
	return model{}, false
}

type modelCard struct {
	ID          string            `json:"id"`
	Object      string            `json:"object"`
	Created     int64             `json:"created"`
	OwnedBy     string            `json:"owned_by"`
	Root        string            `json:"root"`
	Parent      *string           `json:"parent"`
	MaxModelLen *int              `json:"max_model_len"`
	Permission  []modelPermission `json:"permission"`
}

type modelPermission struct {
	ID           string `json:"id"`
	Object       string `json:"object"`
	Created      int64  `json:"created"`
	CreateEngine bool   `json:"allow_create_engine"`
	Sampling     bool   `json:"allow_sampling"`
	Logprobs     bool   `json:"allow_logprobs"`
	Search       bool   `json:"allow_search_indices"`
	View         bool   `json:"allow_view"`
	FineTuning   bool   `json:"allow_fine_tuning"`
	Organization string `json:"organization"`
	Group        null   `json:"group"`
	IsBlocking   bool   `json:"is_blocking"`
}

// listModels answers GET /v1/models.
func (e *Engine) listModels(c *call) error {
	created := e.start.Unix()
	cards := []modelCard{}
	for _, m := range e.models {
		card := modelCard{
			ID: m.name, Object: "model", Created: created, OwnedBy: "vllm",
			Root: e.models[0].name, Parent: orNull(m.parent), MaxModelLen: &e.cfg.MaxModelLen,
			Permission: []modelPermission{{
				ID: "modelperm-" + checksum(tokenize(m.name))[:16], Object: "model_permission", Created: created,
				Sampling: true, Logprobs: true, View: true, Organization: "*",
			}},
		}
		if m.parent != "" {
			card.Root, card.MaxModelLen = "/adapters/"+m.name, nil
		}
		cards = append(cards, card)
	}
	return c.json(struct {
		Object string      `json:"object"`
		Data   []modelCard `json:"data"`
	}{"list", cards})
}
