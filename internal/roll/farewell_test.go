package roll

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/translate"
)

// TestNothingIsSaidTwiceToAMachineThatGoes: a run that is killed after each of its writes gets past this one.
func TestNothingIsSaidTwiceToAMachineThatGoes(t *testing.T) {
	t.Parallel()
	hooked := map[string]any{translate.DeletionHooks()[0]: "", "kept": "yes"}
	machine := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"annotations": hooked}}}
	limits := map[string]any{"nodeDrainTimeoutSeconds": int64(20), "nodeVolumeDetachTimeoutSeconds": int64(20)}
	assert.Equal(t, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{translate.DeletionHooks()[0]: nil}},
		"spec":     map[string]any{"deletion": limits},
	}, farewell(machine, 20*time.Second))

	machine.SetAnnotations(map[string]string{"kept": "yes"})
	assert.Empty(t, farewell(machine, 0), "one that may take its time is not limited")
	machine.Object["spec"] = map[string]any{"deletion": limits}
	assert.Empty(t, farewell(machine, 20*time.Second))
	machine.Object["spec"] = map[string]any{"deletion": map[string]any{"nodeDrainTimeoutSeconds": int64(600), "nodeVolumeDetachTimeoutSeconds": int64(20)}}
	assert.Equal(t, map[string]any{"spec": map[string]any{"deletion": map[string]any{"nodeDrainTimeoutSeconds": int64(20)}}}, farewell(machine, 20*time.Second))
}
