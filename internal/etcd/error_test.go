package etcd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/kube"
)

func TestWhatMayPassByItself(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err  error
		want bool
	}{
		"it applies slower than it promises": {status.Error(codes.Unavailable, "etcdserver: request timed out, waiting for the applied index took too long"), true},
		"it has no leader":                   {rpctypes.ErrNoLeader, true},
		"it did not agree in time":           {rpctypes.ErrTimeout, true},
		"nobody answers in time":             {context.DeadlineExceeded, true},
		"the network is slow":                {&net.DNSError{IsTimeout: true}, true},
		"somebody pressed Ctrl-C":            {context.Canceled, false},
		"it is refused":                      {status.Error(codes.PermissionDenied, "no"), false},
		"it is no member":                    {rpctypes.ErrMemberNotFound, false},
		"it cannot be read":                  {errors.New("no table"), false},
	} {
		err := fmt.Errorf("promoting: %w", &Error{Endpoint: "https://etcd", Operation: "promotion", Err: test.err})
		assert.Equal(t, test.want, kube.Transient(err), name)
	}
}
