package logging_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/logging"
)

func TestLevels(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		verbosity         int
		info, debug, deep bool
	}{
		"quiet shows what happened": {0, true, false, false},
		"some more shows how":       {2, true, true, false},
		"everything":                {5, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := &bytes.Buffer{}
			logger, err := logging.New(logging.Options{Out: out, Verbosity: test.verbosity})
			require.NoError(t, err)

			log := logging.Logr(logger).WithName("a").WithName("b").WithValues("machine", klog.KRef("ns", "m"))
			log.Info("plain")
			log.V(4).Info("debugging")
			log.V(6).Info("tracing")

			assert.Equal(t, test.info, bytes.Contains(out.Bytes(), []byte("plain")), out.String())
			assert.Equal(t, test.debug, bytes.Contains(out.Bytes(), []byte("debugging")), out.String())
			assert.Equal(t, test.deep, bytes.Contains(out.Bytes(), []byte("tracing")), out.String())
			assert.Contains(t, out.String(), "logger=a/b")
			assert.Contains(t, out.String(), "machine=ns/m")
		})
	}
}

func TestObjectsAreNamedNotDumped(t *testing.T) {
	t.Parallel()
	out := &bytes.Buffer{}
	logger, err := logging.New(logging.Options{Out: out, Format: logging.FormatJSON})
	require.NoError(t, err)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, StringData: map[string]string{"value": "hunter2"}}

	logging.Logr(logger).Error(errors.New("broken"), "writing", "secret", secret)

	assert.NotContains(t, out.String(), "hunter2")
	assert.Contains(t, out.String(), `"error":"broken"`)
	assert.Contains(t, out.String(), `"level":"error"`)
}

func TestUnknownFormat(t *testing.T) {
	t.Parallel()
	_, err := logging.New(logging.Options{Out: &bytes.Buffer{}, Format: "xml"})
	require.ErrorContains(t, err, `format "xml" is unknown`)
}
