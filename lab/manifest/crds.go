package manifest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CRDKind is the kind of a CRD.
const CRDKind = "CustomResourceDefinition"

const servedPoll = 25 * time.Millisecond

// Asker asks an API server whether it serves a path.
type Asker struct {
	// Client authenticates; URL is the server's address.
	Client *http.Client
	URL    string
	Clock  clock.WithTicker
}

// EnsureCRDs makes CRDs exist and returns when all their versions are served.
func EnsureCRDs(ctx context.Context, c client.Client, ask Asker, crds []*unstructured.Unstructured) error {
	if err := Ensure(ctx, c, crds); err != nil {
		return err
	}
	var all []string
	for _, crd := range crds {
		paths, err := servedPaths(crd)
		if err != nil {
			return err
		}
		all = append(all, paths...)
	}
	err := Each(ctx, crds, func(ctx context.Context, crd *unstructured.Unstructured) error {
		paths, err := servedPaths(crd)
		if err != nil {
			return err
		}
		for _, path := range paths {
			err := ask.wait(ctx, func(ctx context.Context) error { return ask.served(ctx, path) })
			if err != nil {
				return fmt.Errorf("waiting for CRD %s to be served: %w", crd.GetName(), err)
			}
		}
		return nil
	})
	if err != nil || len(all) == 0 {
		return err
	}
	// Discovery follows later, and a controller that starts in between ends with
	// "no matches for kind".
	err = ask.wait(ctx, func(ctx context.Context) error { return ask.discovered(ctx, all) })
	if err != nil {
		return fmt.Errorf("waiting for CRDs to be discoverable: %w", err)
	}
	return nil
}

// servedPaths returns the URL path of every served version.
func servedPaths(crd *unstructured.Unstructured) ([]string, error) {
	group, _, err := unstructured.NestedString(crd.Object, "spec", "group")
	if err != nil {
		return nil, fmt.Errorf("reading CRD %s: %w", crd.GetName(), err)
	}
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil {
		return nil, fmt.Errorf("reading CRD %s: %w", crd.GetName(), err)
	}
	plural := strings.TrimSuffix(crd.GetName(), "."+group)
	var paths []string
	for _, v := range versions {
		version, ok := v.(map[string]any)
		if ok && version["served"] == true {
			paths = append(paths, fmt.Sprintf("/apis/%s/%s/%s", group, version["name"], plural))
		}
	}
	return paths, nil
}

// wait polls until do succeeds.
func (a Asker) wait(ctx context.Context, do func(context.Context) error) error {
	tick := a.Clock.NewTicker(servedPoll)
	defer tick.Stop()
	for {
		last := do(ctx)
		if last == nil {
			return nil
		}
		select {
		case <-tick.C():
		case <-ctx.Done():
			return fmt.Errorf("%w, last: %w", ctx.Err(), last)
		}
	}
}

// discovered says whether all paths are in the discovery document that clients
// read first.
func (a Asker) discovered(ctx context.Context, paths []string) error {
	raw, err := a.get(ctx, "/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	if err != nil {
		return err
	}
	var doc apidiscoveryv2.APIGroupDiscoveryList
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("reading the discovery document: %w", err)
	}
	known := map[string]bool{}
	for _, group := range doc.Items {
		for _, version := range group.Versions {
			for _, resource := range version.Resources {
				known["/apis/"+group.Name+"/"+version.Version+"/"+resource.Resource] = true
			}
		}
	}
	for _, path := range paths {
		if !known[path] {
			return fmt.Errorf("looking for %s: discovery does not know it yet", path)
		}
	}
	return nil
}

// served asks for one object of the kind. The CRD's condition Established says
// nearly the same, but reading a large CRD again and again is far dearer.
func (a Asker) served(ctx context.Context, path string) error {
	_, err := a.get(ctx, path+"?limit=1", "application/json")
	return err
}

func (a Asker) get(ctx context.Context, path, accept string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+path, nil)
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", path, err)
	}
	req.Header.Set("Accept", accept)
	resp, err := a.Client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking for %s: %w", path, err)
	}
	defer resp.Body.Close() //nolint:errcheck // Nothing was written.
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading the answer for %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking for %s: %s", path, resp.Status)
	}
	return raw, nil
}
