package check

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metricRequested is the API server's own record of what it was asked for in a version that a later release does not serve, since it started (Kubernetes 1.19 and later,
// staging/src/k8s.io/apiserver/pkg/endpoints/metrics/metrics.go).
const metricRequested = "apiserver_requested_deprecated_apis"

// Requests are what people and programs ask a workload cluster for, as far as it matters.
type Requests struct {
	// Going are the APIs that were asked for and that a later release removes, sorted.
	Going []GoingAPI
}

// GoingAPI is a version of an API that a release removes.
type GoingAPI struct {
	Group, Version, Resource string
	// Removed is the release, for example 1.22.
	Removed string
}

func (a GoingAPI) String() string {
	return fmt.Sprintf("%s of %s/%s", a.Resource, a.Group, a.Version)
}

// AskRequests reads the metrics of a workload cluster's API server; get reads one path of it.
func AskRequests(ctx context.Context, get func(ctx context.Context, path string) ([]byte, error)) (*Requests, error) {
	page, err := get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	going, err := readRequests(page)
	if err != nil {
		return nil, fmt.Errorf("reading the metrics of the workload cluster's API server: %w", err)
	}
	return &Requests{Going: going}, nil
}

// readRequests takes one family out of a page of metrics. A page has tens of thousands of lines, so the others are not parsed.
func readRequests(page []byte) ([]GoingAPI, error) {
	var ours bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(page))
	lines.Buffer(nil, len(page)+1)
	for lines.Scan() {
		if bytes.HasPrefix(lines.Bytes(), []byte(metricRequested+"{")) {
			ours.Write(lines.Bytes())
			ours.WriteByte('\n')
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(&ours)
	if err != nil {
		return nil, err
	}
	var going []GoingAPI
	for _, m := range families[metricRequested].GetMetric() {
		if m.GetUntyped().GetValue() == 0 {
			continue
		}
		label := func(name string) string {
			i := slices.IndexFunc(m.GetLabel(), func(p *dto.LabelPair) bool { return p.GetName() == name })
			if i < 0 {
				return ""
			}
			return m.GetLabel()[i].GetValue()
		}
		// A subresource goes with its resource.
		one := GoingAPI{Group: label("group"), Version: label("version"), Resource: label("resource"), Removed: label("removed_release")}
		if one.Removed != "" && !slices.Contains(going, one) {
			going = append(going, one)
		}
	}
	slices.SortFunc(going, func(a, b GoingAPI) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Resource, b.Resource))
	})
	return going, nil
}

// stillServed looks for APIs in use that the new control plane, one minor version above, does not serve any more.
func stillServed(v *view) verdict {
	have, ok := minor(v.running("kubernetes"))
	if !ok {
		return failed(nil, "the running version %q cannot be read, so nobody knows which APIs the next one removes", v.running("kubernetes"))
	}
	var lost []string
	for _, api := range v.Requests.Going {
		if removed, ok := minor(api.Removed); ok && removed <= have+1 {
			lost = append(lost, api.String()+", removed in "+api.Removed)
		}
	}
	if len(lost) > 0 {
		return failed(lost, "Kubernetes 1.%d does not serve %s that somebody asks for", have+1, plural(len(lost), "API", "APIs"))
	}
	later := make([]string, 0, len(v.Requests.Going))
	for _, api := range v.Requests.Going {
		later = append(later, api.String()+", removed in "+api.Removed)
	}
	return held("nobody has asked for an API that Kubernetes 1.%d removes, since the API server started", have+1).listing(later)
}
