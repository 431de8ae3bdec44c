package server_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/baton-llm/baton/internal/enginesim"
)

// TestStoredResponses: a response that a worker stored is found whichever worker
// that was, by GET, by cancel and as the one that a next turn continues. One that
// nobody has is 404, with a worker's own words.
func TestStoredResponses(t *testing.T) {
	const body = `{"model":"m","input":"hi","max_output_tokens":4}`
	for name, role := range map[string]string{"regular": enginesim.RoleRegular, "decode": enginesim.RoleDecode} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var engines []enginesim.Config
				for range 4 {
					engines = append(engines, enginesim.Config{Role: role, Store: true, Connector: "nixl"})
				}
				if role == enginesim.RoleDecode {
					engines = append(engines, pdEngines()[0])
				}
				f := start(t, options{engines: engines})
				var ids []string
				for range 8 {
					a := f.post("/v1/responses", body)
					var response struct{ ID string }
					if err := json.Unmarshal([]byte(a.body), &response); err != nil || a.status != 200 || response.ID == "" {
						t.Fatalf("%+v", a)
					}
					ids = append(ids, response.ID)
				}
				for _, id := range ids {
					if a := f.get("/v1/responses/" + id); a.status != 200 {
						t.Errorf("GET %s: %+v", id, a)
					}
					if a := f.post("/v1/responses/"+id+"/cancel", ""); a.status != 400 { // it is no background response
						t.Errorf("cancel %s: %+v", id, a)
					}
					next := `{"model":"m","input":"more","max_output_tokens":4,"previous_response_id":"` + id + `"}`
					want := http.StatusOK
					if role == enginesim.RoleDecode {
						want = http.StatusBadRequest // not_in_pd
					}
					if a := f.post("/v1/responses", next); a.status != want {
						t.Errorf("continue %s: %+v", id, a)
					}
				}
				before := len(f.arrived())
				if a := f.get("/v1/responses/resp_unknown"); a.status != 404 || a.code() == "response_not_found" {
					t.Errorf("%+v", a)
				}
				if asked := len(f.arrived()) - before; asked != 4 {
					t.Errorf("%d workers were asked for what nobody has, want 4", asked)
				}
				// Nothing else is looked for elsewhere.
				before = len(f.arrived())
				if a := f.post("/v1/completions", `{"model":"x","prompt":"p"}`); a.status < 400 {
					t.Errorf("%+v", a)
				}
				if asked := len(f.arrived()) - before; asked > 1 {
					t.Errorf("an unknown model was asked for %d times", asked)
				}
			})
		})
	}
}
