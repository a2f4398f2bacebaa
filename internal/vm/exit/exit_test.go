package exit

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/vm/contract"
)

func TestCodeIsTheOutermostOneGiven(t *testing.T) {
	t.Parallel()
	inner := Errorf(contract.ExitDisk, "reading a disk: %w", errors.ErrUnsupported)
	assert.Equal(t, 0, Code(nil))
	assert.Equal(t, contract.ExitInternal, Code(errors.ErrUnsupported))
	assert.Equal(t, contract.ExitDisk, Code(fmt.Errorf("starting: %w", inner)))
	assert.Equal(t, contract.ExitQEMU, Code(Errorf(contract.ExitQEMU, "starting: %w", inner)))
	assert.ErrorIs(t, inner, errors.ErrUnsupported)
}
