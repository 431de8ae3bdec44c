package api_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/baton-llm/baton/internal/policy"
	"github.com/baton-llm/baton/internal/worker"
)

// lease takes a lease on the one decode worker that can be had, or fails.
func (d *desk) lease() (*worker.Lease, error) {
	grants, err := worker.Pick(worker.Need{
		Pool: d.pools[worker.Decode], Take: worker.Acquire,
		Chooser: policy.LeastLoad{}.Prepare(&policy.Request{}, nil),
	})
	if err != nil {
		return nil, err
	}
	return grants[0].Lease, nil
}

const drained = `{"success":true,"workers":[{"url":"http://a:8000","worker_type":"decode","load":0,"drained":true}]}`

func TestDrain(t *testing.T) {
	d := newDesk(t)
	d.add(`{"url":"http://a:8000","worker_type":"decode"}`)
	lease, err := d.lease()
	if err != nil {
		t.Fatal(err)
	}
	const target = "/workers/http%3A%2F%2Fa%3A8000"
	d.want(200, `{"success":true,"workers":[{"url":"http://a:8000","worker_type":"decode","load":1,"drained":false}]}`)(d.do("POST", target+"/drain", ""))
	if _, err := d.lease(); err == nil {
		t.Error("a draining worker was picked")
	}
	lease.Release()
	d.want(200, drained)(d.do("POST", target+"/drain", ""))
	d.want(200, `{"success":true,"workers":[{"url":"http://a:8000","worker_type":"decode","load":0,"drained":false}]}`)(d.do("POST", target+"/undrain", ""))
	if lease, err = d.lease(); err != nil {
		t.Error(err)
	} else {
		lease.Release()
	}
	d.want(404, `{"code":"WORKER_NOT_FOUND","error":"worker http://b:8000 is not registered"}`)(d.do("POST", "/workers/http%3A%2F%2Fb%3A8000/drain", ""))
	d.want(404, `{"code":"WORKER_NOT_FOUND","error":"worker http://a:8000 is not registered"}`)(d.do("POST", target+"/drain?worker_type=prefill", ""))
	d.want(404, `{"code":"NOT_FOUND","error":"POST /workers/{url}/drain and /workers/{url}/undrain are served"}`)(d.do("POST", target, ""))
}

// TestDrainEndsWithTheLifetime: a restarted worker is a new one.
func TestDrainEndsWithTheLifetime(t *testing.T) {
	d := newDesk(t)
	d.add(`{"url":"http://a:8000","worker_type":"decode"}`)
	d.do("POST", "/workers/http%3A%2F%2Fa%3A8000/drain", "")
	d.reg.Renew(d.pools[worker.Decode].Snapshot().Workers[0].ID())
	lease, err := d.lease()
	if err != nil {
		t.Fatal(err)
	}
	lease.Release()
}

// TestRemoveDrains: a removal with ?drain= waits for the leases, up to the time
// given, and a claimed worker is not even drained.
func TestRemoveDrains(t *testing.T) {
	const target = "/workers/http%3A%2F%2Fa%3A8000"
	for _, tt := range []struct {
		name, drain   string
		release, want time.Duration
	}{
		{"finishes", "30", 5 * time.Second, 5 * time.Second},
		{"is cut short", "2.5", time.Minute, 2500 * time.Millisecond},
		{"at once", "0", time.Minute, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(t)
				d.add(`{"url":"http://a:8000","worker_type":"decode"}`)
				lease, err := d.lease()
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(tt.release, lease.Release)
				start := time.Now()
				d.want(200, `{"message":"worker http://a:8000 removed","success":true}`)(d.do("DELETE", target+"?drain="+tt.drain, ""))
				if took := time.Since(start); took < tt.want || took > tt.want+20*time.Millisecond {
					t.Errorf("took %v, want %v", took, tt.want)
				}
				d.wantRegistered()
				time.Sleep(2 * time.Minute)
			})
		})
	}
	d := newDesk(t)
	d.add(`{"url":"http://a:8000","worker_type":"decode"}`)
	for _, bad := range []string{"x", "-1", "NaN", "1e9"} {
		d.want(400, `{"code":"INVALID_DRAIN","error":"drain must be a number of seconds between 0 and 86400"}`)(d.do("DELETE", target+"?drain="+bad, ""))
	}
	if _, _, err := d.reg.Register("static", worker.Registration{ID: worker.ID{Role: worker.Decode, URL: "http://a:8000"}}, 0); err != nil {
		t.Fatal(err)
	}
	if status, _ := d.do("DELETE", target+"?drain=1", ""); status != 409 {
		t.Errorf("removing a claimed worker answered %d", status)
	}
	if lease, err := d.lease(); err != nil {
		t.Errorf("the claimed worker: %v", err)
	} else {
		lease.Release()
	}
}
