package kube

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestDefinitionsOfAGroupThatDoesNotAnswer: nothing is said about what is served of it, but of other groups' silence nothing comes.
func TestDefinitionsOfAGroupThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for silent, readable := range map[string]bool{"metrics.k8s.io": true, "cluster.x-k8s.io": false} {
		t.Run(silent, func(t *testing.T) {
			t.Parallel()
			groups := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
			answers := map[string]any{
				"/api":  &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}},
				"/apis": groups,
				"/apis/apiextensions.k8s.io/v1/customresourcedefinitions": &metav1.PartialObjectMetadataList{
					TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"},
					Items:    []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: "machines.cluster.x-k8s.io", Labels: map[string]string{"a": "b"}}}},
				},
			}
			for _, group := range []string{"metrics.k8s.io", "cluster.x-k8s.io"} {
				var versions []metav1.GroupVersionForDiscovery
				for _, version := range []string{"v1beta2", "v1beta1"} {
					versions = append(versions, metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + version, Version: version})
					if group != silent {
						answers["/apis/"+group+"/"+version] = &metav1.APIResourceList{
							TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: group + "/" + version,
							APIResources: []metav1.APIResource{{Name: "machines", Kind: "Machine"}, {Name: "machines/status", Kind: "Machine"}},
						}
					}
				}
				groups.Groups = append(groups.Groups, metav1.APIGroup{Name: group, Versions: versions, PreferredVersion: versions[0]})
			}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer, known := answers[r.URL.Path]
				if !known {
					http.Error(w, "it does not answer", http.StatusServiceUnavailable)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				assert.NoError(t, json.NewEncoder(w).Encode(answer))
			}))
			t.Cleanup(server.Close)
			live, err := ForConfig(&rest.Config{Host: server.URL}, Options{})
			require.NoError(t, err)
			found, err := live.Definitions(t.Context())
			if !readable {
				require.ErrorContains(t, err, silent)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, []Definition{{Name: "machines.cluster.x-k8s.io", Labels: map[string]string{"a": "b"}, Served: []string{"v1beta1", "v1beta2"}}}, found)
		})
	}
}
