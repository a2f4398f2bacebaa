package certtest_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/lab/certtest"
)

func TestWhatIsNoCertificateHasNoEnd(t *testing.T) {
	t.Parallel()
	_, err := certtest.EndAt(time.Now(), nil, nil, nil)
	require.Error(t, err)
	assert.ErrorContains(t, err, "reading the CA")
}
